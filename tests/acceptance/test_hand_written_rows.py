"""Rows written by hand with SQL: each is set aside, and the others are handled."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from acceptance.conftest import pids
from schedclient import SyncClient
from support.cluster import DevCluster
from support.wait import PROCESS_POLL, WAIT_TIMEOUT, wait_until

INCARNATION = """
INSERT INTO incarnations (id, worker, spool_id, host, version, slots, labels, handlers, actions,
    started_at, unplanned)
VALUES (%s, 'by-hand', 's', 'h', 'v', 1, %s, %s, '{}', clock_timestamp(), false)
"""
NOTIFICATION = """
INSERT INTO notifications (notification_id, way, shard, job_id, kind, run_id, scheduled_at,
    failures, held_back, occurred_at, ready_at, next_at, tries, error)
SELECT %s, %s, shard, job_id, %s, job_id, clock_timestamp(), 1, 0, clock_timestamp(),
    clock_timestamp(), clock_timestamp(), 0, '' FROM jobs WHERE name = %s
"""
ARRIVAL = """
INSERT INTO chain_arrivals (child, scheduled_at, root, parent, run_id, state)
SELECT job_id, clock_timestamp(), job_id, job_id, %s, 'LIMBO' FROM jobs WHERE name = %s
"""


@pytest.fixture(autouse=True)
def all_processes_survive(quiet_cluster: DevCluster, quiet_client: SyncClient) -> Iterator[None]:
    """Whatever a row holds, every member and worker runs on, takes work and answers lists."""
    before = pids(quiet_cluster)
    yield
    run = quiet_client.submit(shell={"argv": ["true"]})
    assert quiet_client.runs.wait(run, timeout=WAIT_TIMEOUT).succeeded
    for rows in (
        quiet_client.runs.list(),
        quiet_client.jobs.list(),
        quiet_client.workers.list(),
        quiet_client.dead_letters.list(),
        quiet_client.jobs.backfills(),
    ):
        list(rows)
    assert pids(quiet_cluster) == before
    for name in before:
        assert quiet_cluster.process(name).alive(), name


@pytest.fixture
def job(quiet_cluster: DevCluster) -> Iterator[str]:
    """A job whose runs wait for a worker that there isn't."""
    name = f"by-hand-{uuid4().hex[:8]}"
    needs = ["--require", "no=where", "--overlap", "allow"]
    done = quiet_cluster.schedctl("job", "create", name, "--on-demand", *needs, "--", "true")
    assert done.returncode == 0, done.stderr
    yield name
    for table in ("runs", "live", "notifications", "failing", "resumptions", "chain_arrivals"):
        column = "child" if table == "chain_arrivals" else "job_id"
        quiet_cluster.sql(
            f"DELETE FROM {table} WHERE {column} IN (SELECT job_id FROM jobs WHERE name = %s)", name
        )
    quiet_cluster.sql("UPDATE jobs SET spec = %s WHERE name = %s", b"", name)
    assert quiet_cluster.schedctl("job", "delete", name, "--yes").returncode == 0


def members(quiet_cluster: DevCluster) -> list[str]:
    return [each["name"] for each in quiet_cluster.record["members"]]


def set_aside(quiet_cluster: DevCluster, kind: str) -> float:
    """How many items of this kind all members have set aside."""
    found = 0.0
    for name in members(quiet_cluster):
        answer = quiet_cluster.get(name, "/metrics")
        assert answer is not None
        pattern = rf'^schedd_items_set_aside_total{{.*kind="{kind}".*}} (\S+)$'
        found += sum(
            float(number) for number in re.findall(pattern, answer.body.decode(), re.MULTILINE)
        )
    return found


def named_once(
    quiet_cluster: DevCluster,
    kind: str,
    item: str,
    damage: Callable[[], object],
    read: Callable[[], object] = lambda: None,
) -> None:
    """The item is met again and again, and each member's log names it once at most. `read`: lets
    the owner read it.
    """

    def said() -> int:
        names = members(quiet_cluster)
        return max(quiet_cluster.log(name).count(f"item={item} ") for name in names)

    def met(times: float) -> bool:
        read()
        return set_aside(quiet_cluster, kind) >= times

    damage()
    read()
    wait_until(said, WAIT_TIMEOUT, f"{item} to be set aside")
    once = set_aside(quiet_cluster, kind)  # with items of the test before
    wait_until(lambda: met(once + 2), WAIT_TIMEOUT, f"{kind} to be met again", every=PROCESS_POLL)
    assert said() == 1


@pytest.mark.parametrize(
    "change",
    ["priority = 99", "overlap = 'SOMETIMES'"],
)
def test_a_run_that_cant_be_read_leaves_the_others_of_its_job_as_they_are(
    quiet_cluster: DevCluster, quiet_client: SyncClient, job: str, change: str
) -> None:
    """All rows are read each minute only, but those of a resumed job at once."""
    bad, good = (quiet_client.jobs.trigger(job).run_id for _ in range(2))

    def read() -> None:
        quiet_client.jobs.pause(job)
        quiet_client.jobs.resume(job)

    named_once(
        quiet_cluster,
        "row of runs",
        bad,
        lambda: quiet_cluster.sql(f"UPDATE runs SET {change} WHERE run_id = %s", bad),
        read,
    )
    assert {run.run_id for run in quiet_client.runs.list(job=job)} == {good}
    assert quiet_client.runs.cancel(good).state == "CANCELLED"


@pytest.mark.parametrize(
    "change",
    ["state = 'LIMBO'", "reason = 'WHY'", "trigger = 'WHIM'", "parents = '[7]'", "parents = '{}'"],
)
def test_a_run_that_no_list_can_show_is_left_out(
    quiet_cluster: DevCluster, quiet_client: SyncClient, job: str, change: str
) -> None:
    runs = [quiet_client.jobs.trigger(job).run_id for _ in range(3)]
    quiet_cluster.sql(f"UPDATE runs SET {change} WHERE run_id = %s", runs[1])
    shown = {run.run_id for run in quiet_client.runs.list(job=job)}
    assert shown >= {runs[0], runs[2]}
    assert (runs[1] in shown) == (change == "parents = '{}'")


@pytest.mark.parametrize("at", ["0001-01-01 00:00:00+00", "-infinity", "infinity"])
def test_a_run_that_started_at_an_impossible_time_is_listed_and_shown(
    quiet_cluster: DevCluster, quiet_client: SyncClient, job: str, at: str
) -> None:
    run = quiet_client.jobs.trigger(job).run_id
    quiet_cluster.sql("UPDATE runs SET started_at = %s WHERE run_id = %s", at, run)
    assert run in {each.run_id for each in quiet_client.runs.list(job=job)}
    assert quiet_client.runs.get(run).started_at is not None
    for name in members(quiet_cluster):
        for page in ("/", "/runs", f"/runs/{run}"):
            answer = quiet_cluster.get(name, page)
            assert answer is not None
            assert answer.status == 200, page


@pytest.mark.parametrize(("labels", "handlers"), [("[]", []), ('{"a": [1]}', []), ("{}", [None])])
def test_an_incarnation_that_cant_be_read_leaves_the_other_workers_in_their_list(
    quiet_cluster: DevCluster, quiet_client: SyncClient, labels: str, handlers: list[None]
) -> None:
    number = str(uuid4())
    quiet_cluster.sql(INCARNATION, number, labels, handlers)
    try:
        names = {worker.name for worker in quiet_client.workers.list()}
        assert names >= {each["name"] for each in quiet_cluster.record["workers"]}
    finally:
        quiet_cluster.sql("DELETE FROM incarnations WHERE id = %s", number)


@pytest.mark.parametrize(("way", "kind"), [("PIGEON", "FAILURE"), ("WEBHOOK", "WHAT")])
def test_a_notification_of_an_unknown_kind_is_set_aside(
    quiet_cluster: DevCluster, job: str, way: str, kind: str
) -> None:
    number = str(uuid4())
    named_once(
        quiet_cluster,
        "row of notifications",
        number,
        lambda: quiet_cluster.sql(NOTIFICATION, number, way, kind, job),
    )


@pytest.mark.parametrize("table", ["resumptions", "failing"])
def test_a_job_whose_definition_cant_be_read_isnt_resumed_or_paused(
    quiet_cluster: DevCluster, job: str, table: str
) -> None:
    kind = {"resumptions": "paused job", "failing": "failing job"}[table]
    row = {"resumptions": "clock_timestamp()", "failing": "9, 3"}[table]

    def damage() -> None:
        quiet_cluster.sql("UPDATE jobs SET spec = %s WHERE name = %s", b"\xff\x00", job)
        if table == "resumptions":
            quiet_cluster.sql(
                "UPDATE timers SET paused = true"
                " WHERE job_id = (SELECT job_id FROM jobs WHERE name = %s)",
                job,
            )
        quiet_cluster.sql(
            f"INSERT INTO {table} SELECT job_id, shard, {row} FROM jobs WHERE name = %s", job
        )

    named_once(quiet_cluster, kind, f"job/default/{job}", damage)


def test_an_arrival_with_an_unknown_state_is_set_aside(quiet_cluster: DevCluster, job: str) -> None:
    run = str(uuid4())
    named_once(
        quiet_cluster, "row of chain_arrivals", run, lambda: quiet_cluster.sql(ARRIVAL, run, job)
    )
