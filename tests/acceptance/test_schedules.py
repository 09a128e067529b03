"""Schedules on a quiet cluster, as the rows tell them and as the jobs themselves wrote it down.

Everything starts at once when the module does; each test waits for what it is about. The first is
the one that has to see it on its way.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from statistics import median

import pytest

from schedclient import Run, SyncClient
from support.ledger import SECOND, every_instant
from support.probe import DatabaseProbe
from support.wait import WAIT_TIMEOUT, wait_until

SECONDS = int(os.environ.get("EACH_SECOND_FOR", "15"))
LATE = 1.0
"""Seconds past its instant that a quiet cluster may take to have a job started."""
STARTED = 2.0
"""Seconds that the jobs of this module take to be made, at most."""
LONG = 15
"""Seconds; more than every lease lives."""


@dataclass(frozen=True, slots=True)
class Timetable:
    """The requested times, and the files in which the jobs write."""

    first: datetime
    """The whole second in which `each-second` begins."""
    at: datetime
    each_second: DatabaseProbe
    once: DatabaseProbe
    every_two: DatabaseProbe
    failing: DatabaseProbe
    long: DatabaseProbe
    long_run: Run

    @property
    def last(self) -> datetime:
        return self.first + SECOND * (SECONDS - 1)


@pytest.fixture(scope="module")
def timetable(quiet_client: SyncClient, tmp_path_factory: pytest.TempPathFactory) -> Timetable:
    folder = tmp_path_factory.mktemp("timetable")

    def probe(name: str) -> DatabaseProbe:
        return DatabaseProbe(folder / name)

    now = datetime.now(UTC)
    first = now.replace(microsecond=0) + timedelta(seconds=STARTED + 1)
    table = Timetable(
        first,
        now + timedelta(seconds=3),
        probe("each-second"),
        probe("once"),
        probe("every-two"),
        probe("failing"),
        probe("long"),
        quiet_client.submit(name="long", shell=probe("long").shell(f"sleep {LONG}")),
    )
    create = quiet_client.jobs.create
    create("once", at=table.at, shell=table.once.shell())
    create(
        "each-second",
        cron="* * * * * *",
        start=first,
        end=table.last,
        shell=table.each_second.shell(),
    )
    create("every-two", every="2s", end=table.last, shell=table.every_two.shell())
    create(
        "failing",
        at=now,
        shell=table.failing.shell("exit 1"),
        retry={"max_attempts": 4, "backoff": "1s", "factor": 2.0, "jitter": 0.1},
    )
    assert datetime.now(UTC) < first, "the jobs were made too late to be judged from their start"
    return table


def ended_runs(client: SyncClient, job: str, count: int, timeout: float) -> list[Run]:
    """The job's runs, oldest first, once `count` have ended."""

    def look() -> list[Run]:
        runs = list(client.runs.list(job=job))
        return runs if sum(run.ended for run in runs) >= count else []

    runs = wait_until(look, timeout, f"{count} ended runs of {job}", every=0.25)
    return sorted(runs, key=lambda run: instant(run))


def instant(run: Run) -> datetime:
    assert run.scheduled_at is not None
    return run.scheduled_at


def assert_on_time(runs: list[Run], probe: DatabaseProbe) -> None:
    for start in probe.starts():
        assert 0 <= start.lateness <= LATE, start
    for run in runs:
        assert run.lateness_ms is not None
        assert 0 <= run.lateness_ms <= LATE * 1000, run


def test_a_job_that_fails_is_retried_after_growing_waits_and_ends_among_the_dead_letters(
    quiet_client: SyncClient, timetable: Timetable
) -> None:
    (waiting,) = wait_until(
        lambda: list(quiet_client.runs.list(job="failing")), WAIT_TIMEOUT, "its first try"
    )
    seen = {run.state for run in quiet_client.runs.watch(waiting.run_id)}
    assert seen >= {"RETRYING", "FAILED"}
    run = quiet_client.runs.get(waiting.run_id)
    assert (run.state, run.reason, run.exit_code, run.attempt) == ("FAILED", "EXIT_CODE", 1, 4)

    starts = timetable.failing.starts()
    assert [start.attempt for start in starts] == [1, 2, 3, 4]
    assert {start.run_id for start in starts} == {run.run_id}
    tokens = [start.token for start in starts]
    assert tokens == sorted(set(tokens)), "each try has a greater token"
    attempts = quiet_client.runs.attempts(run.run_id)
    assert [one.fencing_token for one in attempts] == tokens
    for wait, (before, after) in zip((1.0, 2.0, 4.0), pairwise(attempts), strict=True):
        assert before.finished_at is not None
        assert after.started_at is not None
        waited = (after.started_at - before.finished_at).total_seconds()
        assert 0.9 * wait <= waited <= 1.1 * wait + LATE
    (letter,) = quiet_client.dead_letters.list(job="failing")
    assert letter.run.run_id == run.run_id


def test_a_job_with_at_fires_once_and_on_time(
    quiet_client: SyncClient, timetable: Timetable
) -> None:
    (run,) = ended_runs(quiet_client, "once", 1, 10)
    assert run.succeeded
    due = timetable.at.replace(microsecond=timetable.at.microsecond // 1000 * 1000)
    assert run.scheduled_at == due, "in milliseconds, as in all responses"
    assert "The job ran on time" in quiet_client.jobs.explain("once", run.scheduled_at).answer
    assert_on_time([run], timetable.once)
    assert [start.run_id for start in timetable.once.starts()] == [run.run_id]
    assert quiet_client.jobs.get("once").next_run_at is None


def test_an_interval_keeps_its_phase(quiet_client: SyncClient, timetable: Timetable) -> None:
    runs = ended_runs(quiet_client, "every-two", 8, 30)
    instants = [instant(run) for run in runs]
    assert all(one.timestamp() % 2 == 0 for one in instants), "aligned to the epoch"
    assert {after - before for before, after in pairwise(instants)} == {timedelta(seconds=2)}
    assert_on_time([run for run in runs if run.ended], timetable.every_two)


def test_each_second_has_exactly_one_run_none_early_none_late(
    quiet_client: SyncClient, timetable: Timetable, figure: Callable[[str], None]
) -> None:
    due = every_instant(timetable.first, timetable.last)
    runs = ended_runs(quiet_client, "each-second", SECONDS, SECONDS + 15)
    assert Counter(map(instant, runs)) == due
    assert {run.state for run in runs} == {"SUCCEEDED"}
    assert_on_time(runs, timetable.each_second)

    starts = timetable.each_second.starts()
    assert Counter(start.scheduled_at for start in starts) == due
    assert {start.run_id for start in starts} == {run.run_id for run in runs}
    assert {start.run_id: start.token for start in starts} == {
        run.run_id: run.fencing_token for run in runs
    }
    latenesses = sorted(start.lateness * 1000 for start in starts)
    figure(
        f"each second for {SECONDS} s: the job's own first line is written"
        f" {median(latenesses):.0f} ms (median), {latenesses[-1]:.0f} ms (max) after its instant"
    )
    assert quiet_client.jobs.get("each-second").next_run_at is None


def test_a_job_longer_than_every_lease_runs_once_with_one_token(
    quiet_client: SyncClient, timetable: Timetable
) -> None:
    run = quiet_client.runs.wait(timetable.long_run, timeout=LONG + 15)
    assert run.succeeded
    assert (run.attempt, run.assignments) == (1, 1)
    assert run.started_at is not None
    assert run.finished_at is not None
    assert run.finished_at - run.started_at >= timedelta(seconds=LONG)
    (start,) = timetable.long.starts()
    assert (start.run_id, start.token) == (run.run_id, run.fencing_token)
    (attempt,) = quiet_client.runs.attempts(run.run_id)
    assert attempt.fencing_token == run.fencing_token
