"""Broadcasts on a real cluster: each matching worker runs it once, although processes end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from schedclient import Run, SyncClient
from schedclient.errors import FailedPrecondition
from support.cluster import DevCluster, dev_cluster
from support.probe import DatabaseProbe
from support.wait import WAIT_TIMEOUT, wait_until

TTL = "3s"
SLOTS = 4
SSD = ["w1", "w2"]
"""Of three workers, by their labels."""

OWNER = """
SELECT t.member FROM runs r JOIN shards s ON s.id = r.shard JOIN tenures t ON t.id = s.owner
WHERE r.run_id = %s
"""


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[DevCluster]:
    labels = [
        f"{name}.labels.disk={'ssd' if name in SSD else 'hdd'}" for name in ("w1", "w2", "w3")
    ]
    with dev_cluster(
        request.session,
        members=2,
        workers=3,
        slots=SLOTS,
        overrides=[f"schedd.member_ttl={TTL}", f"schedd.worker_ttl={TTL}", *labels],
    ) as made:
        yield made


@pytest.fixture
def client(cluster: DevCluster) -> Iterator[SyncClient]:
    cluster.up()  # what the test before killed
    with SyncClient(cluster.endpoints) as made:
        wait_until(
            lambda: [one.state for one in made.workers.list()].count("LIVE") == 3,
            WAIT_TIMEOUT,
            "all three workers",
        )
        yield made


@pytest.fixture
def job(client: SyncClient) -> Iterator[Callable[..., str]]:
    """Makes a job that is broadcast to those with an SSD; gives its name."""
    made: list[str] = []

    def create(probe: DatabaseProbe, then: str = "", **more: object) -> str:
        name = f"broadcast-{uuid4().hex[:6]}"
        fields: dict[str, object] = {"on_demand": True, "require": {"disk": ["ssd"]}}
        fields |= {"retry": {"max_attempts": 1}, "shell": probe.shell(then)}
        client.jobs.create(name, {"placement": "broadcast", **fields, **more})
        made.append(name)
        return name

    yield create
    for name in made:
        client.jobs.delete(name)


def children(client: SyncClient, run: Run) -> dict[str, Run]:
    """By the worker that each is for."""
    found = list(client.runs.list(parent=run.run_id))
    assert len({one.target for one in found}) == len(found)
    return {str(one.target): one for one in found}


def ended(client: SyncClient, run: Run) -> Run:
    return client.runs.wait(run, timeout=2 * WAIT_TIMEOUT)


def test_each_matching_worker_runs_once_per_scheduled_time(
    client: SyncClient, job: Callable[..., str], tmp_path: Path
) -> None:
    probe = DatabaseProbe(tmp_path / "starts")
    name = job(probe, every="2s", on_demand=None)

    def whole() -> bool:
        runs = [one for one in client.runs.list(job=name) if one.state == "SUCCEEDED"]
        return len(runs) >= 3

    wait_until(whole, WAIT_TIMEOUT, "three instants")
    client.jobs.pause(name)
    runs = [one for one in client.runs.list(job=name) if one.reason != "PAUSED"]

    assert not any(one.parent_run_id for one in runs), "children aren't among them"
    for run in runs:
        last = ended(client, run)
        assert (last.state, last.children, last.worker) == ("SUCCEEDED", 2, None)
        mine = children(client, run)
        assert sorted(mine) == SSD
        for worker, child in mine.items():
            assert (child.state, child.worker) == ("SUCCEEDED", worker)
            assert child.scheduled_at == run.scheduled_at
    started = Counter((start.scheduled_at, start.worker) for start in probe.starts())
    assert set(started.values()) == {1}, "each has each instant once"
    assert {worker for _, worker in started} == set(SSD)


def test_a_failed_child_is_named_and_redriven_alone(
    cluster: DevCluster, client: SyncClient, job: Callable[..., str], tmp_path: Path
) -> None:
    probe, fixed = DatabaseProbe(tmp_path / "starts"), tmp_path / "fixed"
    name = job(probe, f'[ "$SCHEDD_WORKER" = w1 ] || [ -e {fixed} ] || exit 3')

    run = ended(client, client.jobs.trigger(name))

    assert (run.state, run.reason) == ("FAILED", "CHILDREN_FAILED")
    assert run.error == "1 of 2 didn't succeed: w2 (EXIT_CODE)"
    shown = cluster.schedctl("run", "get", run.run_id).stdout
    assert "FOR WORKER" in shown
    assert all(worker in shown for worker in SSD)
    with pytest.raises(FailedPrecondition, match="w1, SUCCEEDED") as refused:
        list(client.runs.logs(run.run_id))
    assert refused.value.reason == "IS_BROADCAST"
    failed = children(client, run)["w2"]
    with pytest.raises(FailedPrecondition, match="for worker w2 only"):
        client.runs.retry(failed.run_id)
    letters = [one.run.run_id for one in client.dead_letters.list(job=name)]
    assert letters == [run.run_id], "the whole is one dead letter"

    fixed.touch()
    again = ended(client, client.runs.retry(run.run_id))
    assert (again.state, again.redrive_of) == ("SUCCEEDED", run.run_id)
    assert [*children(client, again)] == ["w2"]


def test_a_cancelled_broadcast_ends_with_its_children(
    client: SyncClient, job: Callable[..., str], tmp_path: Path
) -> None:
    probe = DatabaseProbe(tmp_path / "starts")
    run = client.jobs.trigger(job(probe, "sleep 600"))
    wait_until(lambda: len(probe.starts()) == 2, WAIT_TIMEOUT, "both to start")
    assert "2 RUNNING" in client.runs.why(run.run_id).answer

    client.runs.cancel(run.run_id)

    last = ended(client, run)
    assert (last.state, last.reason) == ("CANCELLED", "BY_USER")
    assert {one.state for one in children(client, run).values()} == {"CANCELLED"}


def test_a_broadcast_without_a_matching_worker_waits_and_says_so(
    client: SyncClient, job: Callable[..., str], tmp_path: Path
) -> None:
    name = job(DatabaseProbe(tmp_path / "starts"), require={"disk": ["tape"]})
    run = client.jobs.trigger(name)
    wait_until(
        lambda: "no connected worker runs" in client.runs.why(run.run_id).answer,
        WAIT_TIMEOUT,
        "it to say why",
    )
    assert client.runs.get(run.run_id).state == "PENDING"
    client.runs.cancel(run.run_id)


def test_a_child_waits_for_its_own_worker_and_is_dispatched_to_no_other(
    cluster: DevCluster, client: SyncClient, job: Callable[..., str], tmp_path: Path
) -> None:
    probe, finish = DatabaseProbe(tmp_path / "starts"), tmp_path / "finish"
    run = client.jobs.trigger(job(probe, f"while [ ! -e {finish} ]; do sleep 0.1; done"))
    wait_until(lambda: len(probe.starts()) == 2, WAIT_TIMEOUT, "both to start")

    cluster.kill("w2")
    wait_until(
        lambda: children(client, run)["w2"].state == "RETRYING", WAIT_TIMEOUT, "its loss to be seen"
    )
    finish.touch()
    wait_until(
        lambda: children(client, run)["w1"].state == "SUCCEEDED", WAIT_TIMEOUT, "the other to end"
    )
    why = client.runs.why(children(client, run)["w2"].run_id).answer
    assert "w2" in why
    assert client.runs.get(run.run_id).state == "RUNNING"

    cluster.up()
    assert ended(client, run).state == "SUCCEEDED"
    starts = Counter(start.worker for start in probe.starts())
    assert starts == {"w1": 1, "w2": 2}


def test_no_child_is_lost_or_doubled_when_the_owner_is_killed_right_after_the_start(
    cluster: DevCluster, client: SyncClient, job: Callable[..., str], tmp_path: Path
) -> None:
    probe, busy, finish = (
        DatabaseProbe(tmp_path / "starts"),
        DatabaseProbe(tmp_path / "busy"),
        tmp_path / "finish",
    )
    for _ in SSD:  # so that no child starts before its broadcast's owner is dead
        wait = busy.shell(f"while [ ! -e {finish} ]; do sleep 0.1; done")
        client.submit(shell=wait, slots=SLOTS, require={"disk": ["ssd"]})
    wait_until(lambda: len(busy.starts()) == len(SSD), WAIT_TIMEOUT, "all slots to be taken")

    run = client.jobs.trigger(job(probe))
    wait_until(lambda: client.runs.get(run.run_id).children == 2, WAIT_TIMEOUT, "it to begin")
    assert {one.state for one in children(client, run).values()} == {"PENDING"}
    [(owner,)] = cluster.sql(OWNER, run.run_id)
    cluster.kill(owner)
    finish.touch()

    last = ended(client, run)
    assert (last.state, last.children) == ("SUCCEEDED", 2)
    assert sorted(children(client, run)) == SSD
    assert Counter(start.worker for start in probe.starts()) == {"w1": 1, "w2": 1}
