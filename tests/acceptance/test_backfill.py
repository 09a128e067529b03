"""A backfill on a real cluster, its owner killed in the middle: each scheduled time runs once, the
concurrency limit holds, progress is reported, and a caller can cancel it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from schedclient import Run, SyncClient
from support.cluster import DevCluster
from support.owners import owner_of
from support.probe import DatabaseProbe
from support.wait import WAIT_TIMEOUT, wait_until

INSTANTS = 24
AT_ONCE = 3
END_TIMEOUT = 60.0
"""Seconds until all have run, with a fail-over in between, on a busy machine."""
CLOCKS = timedelta(seconds=0.1)
"""By which a worker's reading of cluster time may be wrong."""

LAST = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(days=2)
FIRST = LAST - timedelta(hours=INSTANTS - 1)
HOURS = [FIRST + timedelta(hours=n) for n in range(INSTANTS)]


@pytest.fixture
def hourly(
    fault_cluster: DevCluster, client: SyncClient, tmp_path: Path
) -> tuple[str, DatabaseProbe]:
    """A job that runs each hour, and says when it did."""
    del fault_cluster
    name, probe = f"hourly-{uuid4().hex[:6]}", DatabaseProbe(tmp_path / "starts")
    client.jobs.create(name, cron="0 * * * *", shell=probe.shell("sleep 0.7"))
    return name, probe


def most_at_once(runs: list[Run]) -> int:
    """How many ran at one moment, by their own starts and ends."""
    spans = [(run.started_at, run.finished_at) for run in runs]
    return max(
        sum(
            start is not None and end is not None and start <= at + CLOCKS and at < end - CLOCKS
            for start, end in spans
        )
        for at, _ in spans
        if at is not None
    )


def test_each_instant_runs_once_within_the_limit_although_its_owner_is_killed(
    fault_cluster: DevCluster,
    client: SyncClient,
    hourly: tuple[str, DatabaseProbe],
    figure: Callable[[str], None],
) -> None:
    name, probe = hourly
    dry = client.jobs.backfill(name, FIRST, LAST, dry_run=True)
    assert list(dry.instants) == HOURS
    began = datetime.now(UTC)
    asked = client.jobs.backfill(
        name, FIRST, LAST, overlap="allow", max_parallel=AT_ONCE, idempotency_key=name
    ).backfill
    assert asked is not None
    wait_until(lambda: len(probe.starts()) >= AT_ONCE, WAIT_TIMEOUT, "the first runs")

    ((shard,),) = fault_cluster.sql("SELECT shard FROM jobs WHERE name = %s", name)
    fault_cluster.kill(owner_of(client, shard))
    again = client.jobs.backfill(
        name, FIRST, LAST, overlap="allow", max_parallel=AT_ONCE, idempotency_key=name
    ).backfill
    assert again is not None
    assert again.backfill_id == asked.backfill_id

    def ended() -> bool:
        return client.jobs.get_backfill(asked.backfill_id).ended

    wait_until(ended, END_TIMEOUT, "the end of the backfill")
    figure(
        f"backfill: {INSTANTS} runs of 0.7 s, {AT_ONCE} at once, over a killed owner, took "
        f"{(datetime.now(UTC) - began).total_seconds():.1f} s"
    )
    done = client.jobs.get_backfill(asked.backfill_id)
    assert (done.state, done.succeeded, done.not_created) == ("DONE", INSTANTS, 0)
    runs = list(client.runs.list(backfill=asked.backfill_id))
    assert [run.scheduled_at for run in reversed(runs)] == HOURS
    assert {run.trigger for run in runs} == {"BACKFILL"}
    assert {run.priority for run in runs} == {"LOW"}
    assert probe.repeated() == []
    assert sorted(start.scheduled_at for start in probe.starts()) == HOURS
    assert most_at_once(runs) <= AT_ONCE
    explained = fault_cluster.schedctl("job", "explain", name, "--at", HOURS[0].isoformat()).stdout
    assert f"Backfill {asked.backfill_id} created run {runs[-1].run_id} for it" in explained


def test_a_backfill_skips_times_that_ran_and_ends_when_it_is_cancelled(
    fault_cluster: DevCluster, client: SyncClient, hourly: tuple[str, DatabaseProbe]
) -> None:
    name, probe = hourly
    span = ("--from", FIRST.isoformat(), "--to", HOURS[1].isoformat())
    waited = fault_cluster.schedctl("job", "backfill", name, *span, "--wait")
    assert waited.returncode == 0, waited.stderr
    assert "2 of 2 ended (2 succeeded)" in waited.stderr
    assert [start.scheduled_at for start in probe.starts()] == HOURS[:2], "one after the other"

    dry = fault_cluster.schedctl("job", "backfill", name, *span, "--dry-run", "-o", "json")
    plan = json.loads(dry.stdout)
    assert plan["instants"] == []
    assert [one["state"] for one in plan["omitted"]] == ["SUCCEEDED", "SUCCEEDED"]

    asked = client.jobs.backfill(name, FIRST, LAST).backfill
    assert asked is not None
    assert asked.total == INSTANTS - 2
    wait_until(
        lambda: len(probe.starts()) > 2, WAIT_TIMEOUT, "the first run of the second backfill"
    )
    cancelled = fault_cluster.schedctl("job", "cancel-backfill", asked.backfill_id)
    assert cancelled.returncode == 0, cancelled.stderr

    def ended() -> bool:
        return client.jobs.get_backfill(asked.backfill_id).ended

    wait_until(ended, END_TIMEOUT, "the end of what ran")
    so_far = len(probe.starts())
    listed = fault_cluster.json("job", "backfills", name)
    assert [one["state"] for one in listed] == ["CANCELLED", "DONE"]
    wait_until(
        lambda: len(list(client.runs.list(backfill=asked.backfill_id))) == so_far - 2,
        WAIT_TIMEOUT,
        "no run but those that started",
    )
    client.jobs.delete(name)
