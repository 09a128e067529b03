"""The ground under the fault rows: hosts, cuts, detours, and nothing left of a killed owner."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from faults.world import grounds
from faults.world.needs import no_hosts_here
from faults.world.network import Host, Network
from schedctl.dev.servers.processes import find
from support.wait import WAIT_TIMEOUT, wait_until

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(no_hosts_here() is not None, reason=no_hosts_here() or ""),
]


@pytest.fixture
def network() -> Iterator[Network]:
    claimed = grounds.claim()
    try:
        made = Network(claimed)
        made.lay()
        for name in ("h1", "h2", "h3"):
            made.add(name)
        yield made
    finally:
        grounds.release(claimed)


def listening(host: Host, at: str) -> socket.socket:
    server = host.socket()
    server.bind((at, 4000))
    server.listen()
    server.settimeout(WAIT_TIMEOUT)
    return server


def test_every_host_reaches_every_other(network: Network) -> None:
    a, b, c = network.hosts.values()
    assert all(network.passes(*pair) for pair in ((a, b), (b, a), (b, c), (c, a)))


def test_a_cut_has_a_direction_and_no_other_wire_feels_it(network: Network) -> None:
    a, b, c = network.hosts.values()
    network.cut(a, b)
    assert not network.passes(a, b)
    assert network.passes(b, a)
    assert network.passes(a, c)
    network.reconnect(a, b)
    assert network.passes(a, b)


def test_a_connection_over_a_cut_gets_no_answer(network: Network) -> None:
    a, b, _ = network.hosts.values()
    with listening(b, b.address), network.severed(a, b), a.socket() as client:
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.connect((b.address, 4000))


def test_a_detour_leads_to_another_host_that_can_forward_to_the_first(network: Network) -> None:
    a, b, c = network.hosts.values()
    network.add_address(b, c)
    network.detour(a, b, c)
    with listening(c, b.address) as astray, a.socket() as client:
        client.settimeout(WAIT_TIMEOUT)
        client.connect((b.address, 4000))
        assert astray.accept()[1][0] == a.address
    with listening(b, b.back_door) as true, c.socket() as onward:
        onward.settimeout(WAIT_TIMEOUT)
        onward.connect((b.back_door, 4000))
        true.accept()
    network.straighten(a, b, c)
    network.forget(b, c)
    assert network.passes(a, b)
    assert network.rules() == []


def test_aborted_connections_end_at_once_and_no_others(network: Network) -> None:
    a, b, c = network.hosts.values()
    with (
        ExitStack() as opened,
        listening(b, b.address) as server,
        a.socket() as client,
        c.socket() as other,
    ):
        for each in (client, other):
            each.settimeout(2)
            each.connect((b.address, 4000))
            session, _ = server.accept()
            opened.enter_context(session).sendall(b"hello")
            assert each.recv(5) == b"hello"
        network.abort(a, b)
        with pytest.raises(ConnectionAbortedError):
            client.recv(1)
        other.settimeout(0.1)
        with pytest.raises(TimeoutError):
            other.recv(1)


OWNER = """
import os, subprocess, sys, time
sys.path[:0] = sys.argv[1:]
from faults.world import grounds
from faults.world.network import Network
claimed = grounds.claim()
network = Network(claimed)
network.lay()
host = network.add("h1")
grounds.disk(claimed.work / "disk", 1)
child = subprocess.Popen([*host.enter(), "sleep", "1000"], start_new_session=True)
while os.readlink(f"/proc/{child.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
    time.sleep(0.01)  # it isn't in its host yet, and has no owner
print(claimed.key, claimed.work, child.pid, flush=True)
time.sleep(1000)
"""


def test_processes_of_a_killed_owner_are_ended_by_the_next_claim() -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, *filter(None, sys.path)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    key, work, pid = owner.stdout.readline().split()
    child = find(int(pid))
    assert child is not None
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    claimed = grounds.claim()
    try:
        wait_until(lambda: not child.alive(), WAIT_TIMEOUT, "the end of what it had started")
        assert f"{key}-" not in grounds.run("ip", "netns", "list") or claimed.key == key
        assert not Path(work).exists()
        assert work not in Path("/proc/self/mounts").read_text()
    finally:
        grounds.release(claimed)
    assert f"{claimed.key}-" not in grounds.run("ip", "netns", "list")


def test_two_fault_environments_share_no_addresses_or_names() -> None:
    one, other = grounds.claim(), grounds.claim()
    try:
        assert one.key != other.key
        assert one.address(11) != other.address(11)
        for each in (one, other):
            made = Network(each)
            made.lay()
            made.add("h1")
    finally:
        grounds.release(one)
        grounds.release(other)
