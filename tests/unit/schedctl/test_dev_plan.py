"""`up` decides what to start, from the stored plan and the request."""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from schedctl.dev.errors import BadOverride, DevError
from schedctl.dev.plan import Requested, complete, overrides_of
from schedctl.dev.records import PORTS, ClusterFolder, ClusterState, PartKind
from schedctl.dev.servers import processes
from schedctl.dev.servers.processes import HOST, DevProcess, find


def names(state: ClusterState) -> list[str]:
    return list(state.parts)


def me() -> DevProcess:
    process = find(os.getpid())
    assert process is not None
    return process


def with_running(state: ClusterState, *running: str) -> ClusterState:
    for name in running:
        state = state.with_part(replace(state.parts[name], process=me()))
    return state


def test_a_new_cluster_has_three_members_and_two_workers() -> None:
    assert names(complete(None, Requested())) == ["etcd", "postgres", "m1", "m2", "m3", "w1", "w2"]


def test_every_part_gets_its_ports_and_none_repeats() -> None:
    state = complete(None, Requested(members=9, workers=9))
    ports = [port for part in state.parts.values() for port in part.ports.values()]
    assert len(ports) == len(set(ports)) == 2 + 1 + 9 * 2 + 9
    assert all(tuple(part.ports) == PORTS[part.kind] for part in state.parts.values())


def test_ports_are_below_the_ephemeral_range() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    state = complete(None, Requested())
    assert all(port < lowest for part in state.parts.values() for port in part.ports.values())


def test_a_cluster_without_members_has_no_workers_either() -> None:
    assert names(complete(None, Requested(members=0))) == ["etcd", "postgres"]
    with pytest.raises(BadOverride, match="need a member"):
        complete(None, Requested(members=0, workers=1))


def test_up_without_options_keeps_the_cluster() -> None:
    before = complete(
        None, Requested(members=5, workers=1, slots=7, overrides=("schedd.weight=1",))
    )
    assert complete(before, Requested()) == before


def test_a_foreign_database_is_used_and_remembered() -> None:
    before = complete(None, Requested(foreign_dsn="postgresql://db/x"))
    assert "postgres" not in names(before)
    assert complete(before, Requested()).dsn == "postgresql://db/x"


def test_up_adds_daemons_and_keeps_running_ones_when_fewer_are_requested() -> None:
    before = with_running(complete(None, Requested(members=3, workers=2)), "m3")
    after = complete(before, Requested(members=1, workers=3))
    assert names(after) == ["etcd", "postgres", "m1", "m3", "w1", "w2", "w3"]
    assert after.parts["m3"] == before.parts["m3"]


def test_a_setting_given_again_replaces_the_remembered_one() -> None:
    before = complete(None, Requested(overrides=("schedd.member_ttl=3s", "workerd.slots=1")))
    after = complete(before, Requested(overrides=("schedd.member_ttl=9s",)))
    assert after.overrides == ("schedd.member_ttl=9s", "workerd.slots=1")


def test_a_setting_for_an_unknown_daemon_is_refused() -> None:
    assert len(overrides_of(complete(None, Requested(overrides=("m3.weight=0",))))) == 1
    with pytest.raises(BadOverride, match=r"daemon 'scheddd' not found"):
        overrides_of(complete(None, Requested(overrides=("scheddd.weight=0",))))


def test_a_port_of_another_program_is_replaced_unless_it_is_published() -> None:
    before = complete(None, Requested())
    with socket.socket() as stranger:
        stranger.bind((HOST, before.parts["m1"].ports["grpc"]))
        stranger.listen()
        after = complete(before, Requested())
        assert after.parts["m1"].ports["grpc"] != before.parts["m1"].ports["grpc"]
        assert after.parts["m2"] == before.parts["m2"]
        with pytest.raises(DevError, match="of m1 is used by another program"):
            complete(with_running(before, "w1"), Requested())


def test_a_reused_pid_is_not_our_process() -> None:
    someone_else = DevProcess(os.getpid(), born="long ago")
    assert not someone_else.alive()
    assert not someone_else.send(signal.SIGCONT)
    assert me().alive()


def test_a_saved_plan_is_loaded_unchanged(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    assert folder.load() is None
    state = with_running(complete(None, Requested(overrides=("schedd.weight=1",))), "etcd", "w1")
    folder.save(state)
    assert folder.load() == state


def test_cluster_json_has_the_documented_fields(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    state = with_running(complete(None, Requested(members=1, workers=1)), "etcd", "postgres", "m1")
    folder.save(state)
    part, pid = state.parts, os.getpid()
    sql = part["postgres"].ports["sql"]
    assert json.loads(folder.cluster.read_text()) == {
        "etcd": [
            {
                "pid": pid,
                "endpoint": part["etcd"].address("client"),
                "user": "schedd",
                "password": state.password,
            }
        ],
        "postgres": {
            "pid": pid,
            "dsn": f"postgresql://schedd:{state.password}@127.0.0.1:{sql}/schedd",
        },
        "members": [
            {
                "name": "m1",
                "pid": pid,
                "grpc": part["m1"].address("grpc"),
                "http": part["m1"].address("http"),
                "log": str(tmp_path / "m1.log"),
            }
        ],
        "workers": [
            {
                "name": "w1",
                "pid": None,
                "http": part["w1"].address("http"),
                "log": str(tmp_path / "w1.log"),
            }
        ],
    }
    assert [p.name for p in state.parts_of_kind(PartKind.MEMBER)] == ["m1"]


@pytest.fixture
def few_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> range:
    """The only ports to reserve, of a sequence that no other process draws from."""
    [first] = processes.reserve(1)
    ports = range(first, first + 20)
    monkeypatch.setattr(processes, "_LOWEST", ports.start)
    monkeypatch.setattr(processes, "_ceiling", lambda: ports.stop)
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path))
    return ports


def test_no_port_is_reserved_again_before_all_others_were(few_ports: range) -> None:
    free = [port for port in few_ports if processes.is_free(port)]
    drawn = [port for _ in free for port in processes.reserve(1)]
    assert sorted(drawn) == free
    assert processes.reserve(2) == drawn[:2]


def test_a_used_port_and_an_excluded_one_are_not_reserved(few_ports: range) -> None:
    [used, excluded, *others] = (port for port in few_ports if processes.is_free(port))
    with socket.create_server((HOST, used)):
        assert sorted(processes.reserve(len(others), but={excluded})) == others
        with pytest.raises(OSError, match="fewer than 2 ports of this host are free"):
            processes.reserve(2, but={excluded, *others})
