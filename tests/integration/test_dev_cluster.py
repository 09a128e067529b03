"""`schedctl dev` with members and workers: a whole cluster of real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from support.cluster import DevCluster, dev_cluster
from support.wait import WAIT_TIMEOUT, wait_until


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[DevCluster]:
    options = {"members": 3, "workers": 2, "overrides": ["schedd.member_ttl=3s", "m3.weight=50"]}
    with dev_cluster(request.session, **options) as up:
        yield up


@pytest.fixture(autouse=True)
def whole(cluster: DevCluster) -> None:
    """Start what the test before stopped."""
    cluster.up()


def view(cluster: DevCluster, member: str = "m1") -> dict[str, object]:
    answer = cluster.get(member, "/api/v1/cluster")
    assert answer is not None
    assert answer.status == 200
    content: dict[str, object] = json.loads(answer.body)
    return content


def test_up_returns_when_there_is_a_leader_every_shard_is_owned_and_all_workers_are_attached(
    cluster: DevCluster,
) -> None:
    seen = view(cluster)
    assert seen["leader"] in {"m1", "m2", "m3"}
    assert seen["owned"] == seen["shards"] == 256
    for member in ("m1", "m2", "m3"):
        answer = cluster.get(member, "/readyz")
        assert answer is not None
        assert answer.status == 200


def test_the_printed_line_lets_schedctl_talk_to_it(cluster: DevCluster) -> None:
    again = cluster.dev("up", "--detach")
    assert again.returncode == 0
    assert again.stdout == f"export SCHEDCTL_ENDPOINTS={','.join(cluster.endpoints)}\n"
    assert f"http://{cluster.entry('m1')['http']}/" in again.stderr


def test_kill_leader_kills_it_and_up_brings_it_back(cluster: DevCluster) -> None:
    leader = wait_until(cluster.leader, WAIT_TIMEOUT, "a leader")
    process = cluster.process(leader)
    assert cluster.dev("kill-leader").returncode == 0
    wait_until(lambda: not process.alive(), WAIT_TIMEOUT, "the leader's end")
    cluster.up()
    assert cluster.process(leader) != process


def test_a_paused_worker_is_stopped_until_it_is_resumed(cluster: DevCluster) -> None:
    worker = cluster.process("w1")
    assert cluster.dev("pause-worker", "w1").returncode == 0
    wait_until(worker.paused, WAIT_TIMEOUT, "w1 to stand still")
    assert cluster.dev("resume-worker", "w1").returncode == 0
    wait_until(lambda: not worker.paused(), WAIT_TIMEOUT, "w1 to continue")


def test_up_restarts_every_killed_process(cluster: DevCluster) -> None:
    before = cluster.record
    for name in ("w1", "w2", "m1", "m2", "m3", "postgres", "etcd"):
        cluster.kill(name)
    cluster.up()
    after = cluster.record
    assert [m["grpc"] for m in after["members"]] == [m["grpc"] for m in before["members"]]


def test_an_unknown_setting_is_reported_and_not_stored(cluster: DevCluster) -> None:
    cluster.kill("m2")
    refused = cluster.dev("up", "--detach", "--set", "schedd.member_tttl=3s")
    assert refused.returncode == 2
    assert "member_tttl" in refused.stderr
    assert "member_ttl" in refused.stderr
    assert cluster.dev("up", "--detach").returncode == 0


def test_down_ends_members_and_workers_gracefully(cluster: DevCluster) -> None:
    names = ("m1", "m2", "m3", "w1", "w2", "etcd", "postgres")
    processes = [cluster.process(name) for name in names]
    cluster.pause("w2")
    cluster.down()
    assert not any(process.alive() for process in processes)
