"""A worker drained and undrained on a real cluster, also through its own restart."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from schedclient import Run, SyncClient, Worker
from support import fork_server
from support.cluster import DevCluster
from support.probe import DatabaseProbe
from support.relay import Relay
from support.wait import WAIT_TIMEOUT, wait_until

RUNS = 12
NOTICED_WITHIN = 3.0
"""Seconds from the end of the run until the waiting command ends: a check each second, and the time
to store the result and to end a process.
"""


def test_a_drained_worker_finishes_its_runs_and_gets_none_until_it_is_undrained(
    fault_cluster: DevCluster, client: SyncClient, tmp_path: Path
) -> None:
    held = gated_run(client, tmp_path)
    drained = held.worker

    fault_cluster.schedctl("worker", "drain", drained, "--reason", "new kernel")
    wait_until(lambda: client.workers.get(drained).state == "DRAINING", WAIT_TIMEOUT, "it to drain")
    wait_until(
        lambda: client.workers.get(drained).running == 1,
        WAIT_TIMEOUT,
        "its run to continue alone: runs of tests before have ended",
    )
    assert client.runs.get(held.run.run_id).state == "RUNNING"
    assert drained not in workers_of(client, tmp_path / "while-drained")
    held.finish.touch()
    assert client.runs.wait(held.run, timeout=20).succeeded
    fault_cluster.schedctl("worker", "drain", drained, "--wait")

    fault_cluster.terminate(drained)
    fault_cluster.up()
    wait_until(
        lambda: client.workers.get(drained).state == "DRAINING",
        WAIT_TIMEOUT,
        "its next start knows",
    )
    assert client.workers.get(drained).drain_reason == "new kernel"
    assert drained not in workers_of(client, tmp_path / "restarted")

    others = [one.name for one in client.workers.list() if one.name != drained]
    for name in others:
        client.workers.drain(name)
    client.workers.undrain(drained)
    try:
        wait_until(
            lambda: client.workers.get(drained).state == "LIVE",
            WAIT_TIMEOUT,
            "it to be undrained",
        )
        wait_until(
            lambda: {client.workers.get(one).state for one in others} == {"DRAINING"},
            WAIT_TIMEOUT,
            "so have the others",
        )
        assert set(workers_of(client, tmp_path / "undrained")) == {drained}
    finally:
        for name in others:
            client.workers.undrain(name)


@pytest.mark.alone
def test_a_command_that_waits_for_a_drain_calls_once_and_ends_with_the_drain(
    fault_cluster: DevCluster, client: SyncClient, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    held = gated_run(client, tmp_path)
    name = held.worker
    with Relay(fault_cluster.endpoints[0]) as relay:
        command = [sys.executable, "-m", "schedctl", "worker", "drain", name, "--wait"]
        env = {**os.environ, "SCHEDCTL_ENDPOINTS": relay.address}
        with fork_server.Popen(command, stderr=subprocess.PIPE, env=env, text=True) as waits:
            try:
                wait_until(lambda: relay.requests == 2, WAIT_TIMEOUT, "the drain, and its watch")
                time.sleep(5.0)
                held.finish.touch()
                finished = time.monotonic()
                _, progress = waits.communicate(timeout=WAIT_TIMEOUT)
                took = time.monotonic() - finished
            finally:
                waits.kill()
                client.workers.undrain(name)
    assert progress.splitlines()[-1].startswith(f"drained {name}: no run in progress"), progress
    assert (waits.returncode, relay.requests) == (0, 2)
    figure(f"a drain's end was reported {took:.1f} s after the run there had ended")
    assert took < NOTICED_WITHIN


@pytest.mark.root
def test_a_drain_waits_until_a_full_disk_has_room_for_the_results(
    fault_cluster: DevCluster, client: SyncClient, tmp_path: Path
) -> None:
    """An operator who stops the worker earlier makes the run start again."""
    held = gated_run(client, tmp_path)
    name = held.worker
    full = "1 result isn't stored yet: spool rejects writes: No space left on device"
    with full_disk(fault_cluster.directory / name):
        held.finish.touch()
        wait_until(
            lambda: client.workers.get(name).refusal_reason, WAIT_TIMEOUT, "its disk to be full"
        )
        waited = fault_cluster.schedctl("worker", "drain", name, "--wait", "--timeout", "5")
        assert waited.returncode != 0
        assert full in waited.stderr
        assert "drained" not in waited.stderr
        assert client.runs.get(held.run.run_id).state == "RUNNING"
    try:
        waited = fault_cluster.schedctl("worker", "drain", name, "--wait")
        assert f"drained {name}: no run in progress" in waited.stderr
        assert client.runs.get(held.run.run_id).succeeded
        assert len(held.probe.starts()) == 1
    finally:
        client.workers.undrain(name)


def test_drain_wait_reports_that_the_worker_was_killed_instead(
    fault_cluster: DevCluster, client: SyncClient, tmp_path: Path
) -> None:
    """Its runs start again: the command must not print "drained"."""
    held = gated_run(client, tmp_path)
    name = held.worker
    with drain_waited_for(fault_cluster, client, name) as waits:
        fault_cluster.kill(name)
        cut_off = wait_until(lambda: unknown_worker(client, name), WAIT_TIMEOUT, "lost streams")
        assert cut_off.state == "DRAINING", "its drain is known, although it can't report it"
        waited = waits.result()
    held.finish.touch()
    fault_cluster.up()
    client.workers.undrain(name)
    assert waited.returncode == 1, waited.stderr
    *_, unknown, gone, last = waited.stderr.splitlines()
    assert unknown == "its runs are unknown: no member receives its heartbeats"
    assert gone == "the worker is lost"
    assert last.startswith(f"{name} was lost before the drain completed")
    assert client.runs.wait(held.run, timeout=60).succeeded
    assert len(held.probe.starts()) == 2


@pytest.mark.alone
def test_drain_wait_reports_that_the_worker_was_killed_and_returned_at_once(
    fault_cluster: DevCluster, client: SyncClient, tmp_path: Path
) -> None:
    """As a supervisor starts it again, long before its lease has ended."""
    held = gated_run(client, tmp_path)
    name = held.worker
    with drain_waited_for(fault_cluster, client, name) as waits:
        fault_cluster.kill(name)
        fault_cluster.up()
        waited = waits.result()
    held.finish.touch()
    client.workers.undrain(name)
    assert waited.returncode == 1, waited.stderr
    last = waited.stderr.splitlines()[-1]
    assert last.startswith(f"{name} was restarted before the drain completed")
    assert client.runs.wait(held.run, timeout=60).succeeded
    assert len(held.probe.starts()) == 2


@dataclass(frozen=True)
class GatedRun:
    """A run that lasts until its file `finish` exists."""

    run: Run
    probe: DatabaseProbe
    worker: str
    finish: Path


@contextlib.contextmanager
def drain_waited_for(
    fault_cluster: DevCluster, client: SyncClient, name: str
) -> Iterator[Future[subprocess.CompletedProcess[str]]]:
    """Yield the outcome of `worker drain --wait`, once the worker drains."""
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(
            fault_cluster.schedctl, "worker", "drain", name, "--wait", "--timeout", "60"
        )
        wait_until(
            lambda: client.workers.get(name).state == "DRAINING", WAIT_TIMEOUT, "it to drain"
        )
        yield waits


def unknown_worker(client: SyncClient, name: str) -> Worker | None:
    """Return the worker, if its runs are unknown and its lease hasn't ended."""
    found = client.workers.get(name)
    return found if found.heartbeats_missing and found.state != "LOST" else None


def gated_run(client: SyncClient, directory: Path) -> GatedRun:
    """Return a run that has started."""
    finish, probe = directory / "finish", DatabaseProbe(directory / "held")
    wait = f"while [ ! -e {finish} ]; do sleep 0.1; done"
    run = client.submit(name="held", shell=probe.shell(wait))
    started = wait_until(probe.starts, WAIT_TIMEOUT, "it has started")
    return GatedRun(run, probe, started[0].worker, finish)


@contextlib.contextmanager
def full_disk(over: Path) -> Iterator[None]:
    """A disk without a byte to spare, in the place of this folder."""
    size = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(over)]
    mounted = subprocess.run(size, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"can't mount: {mounted.stderr.decode().strip()}")
    try:
        with (over / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(4096))
        yield
    finally:
        subprocess.run(["umount", "-l", str(over)], check=True)


def workers_of(client: SyncClient, file: Path) -> list[str]:
    """Submit runs, and return the workers that ran them."""
    probe = DatabaseProbe(file)
    runs = [client.submit(name=f"{file.name}-{n}", shell=probe.shell()) for n in range(RUNS)]
    for run in runs:
        assert client.runs.wait(run, timeout=20).succeeded
    return [start.worker for start in probe.starts()]
