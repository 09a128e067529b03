"""The demo's judgement: it must find fault with whatever is out of order, or it proves nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from support.repository import DEMO, module_of

verdict = module_of(DEMO, "showcase.verdict")

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
MS = timedelta(milliseconds=1)
SECOND = timedelta(seconds=1)
DUE = tuple(NOON + n * SECOND for n in range(3))


def seen(at: datetime, *, late: timedelta = 20 * MS, **changes: Any) -> Any:
    """A run that went well, but for `changes`."""
    tries = changes.pop("tries", (attempt(at + late),))
    dead = changes.pop("dead", False)
    well = {"state": "SUCCEEDED", "reason": None, "ended": True, "attempt": 1}
    run = SimpleNamespace(**{"scheduled_at": at, "due_at": at} | well | changes)
    return verdict.Seen(run, tries, dead)


def attempt(started: datetime) -> SimpleNamespace:
    return SimpleNamespace(started_at=started, finished_at=started + 5 * MS)


def failed_run(at: datetime, *waits: timedelta, **changes: Any) -> Any:
    """A run that failed for good, with these waits between its attempts."""
    tries, started = [], at + 20 * MS
    for wait in (*waits, timedelta(0)):
        tries.append(attempt(started))
        started = tries[-1].finished_at + wait
    dead = {"state": "FAILED", "reason": "EXIT_CODE", "dead": True}
    return seen(at, **(dead | {"attempt": len(tries), "tries": tuple(tries)} | changes))


def faults(runs: list[Any], **expected: Any) -> list[str]:
    """Return the findings about these runs of a job that was due at DUE."""
    promise = verdict.Expected(**({"job": "j", "due": DUE} | expected))
    return list(verdict.judge(promise, runs).faults)


def test_a_job_that_ran_each_due_instant_once_and_on_time_is_in_order() -> None:
    late = (20 * MS, 40 * MS, 90 * MS)
    runs = [seen(at, late=by) for at, by in zip(DUE, late, strict=True)]
    row = verdict.judge(verdict.Expected("j", DUE), runs)
    assert (row.due, row.fired, row.succeeded, row.retried, row.dead) == (3, 3, 3, 0, 0)
    assert (row.late_p50, row.late_max, row.faults) == (40, 90, ())


@pytest.mark.parametrize(
    ("runs", "fault"),
    [
        ([seen(DUE[0]), seen(DUE[2])], "12:00:01 was due, but has no run"),
        ([*map(seen, DUE), seen(DUE[1])], "12:00:01 has 2 runs"),
        ([*map(seen, DUE), seen(NOON + 7 * SECOND)], "12:00:07 ran, but wasn't due"),
        ([*map(seen, DUE[:2]), seen(DUE[2], late=-3 * MS)], "12:00:02 started 3 ms early"),
        ([*map(seen, DUE[:2]), seen(DUE[2], late=1001 * MS)], "12:00:02 started 1,001 ms late"),
        (
            [*map(seen, DUE[:2]), seen(DUE[2], state="RUNNING", ended=False)],
            "12:00:02 hasn't ended: RUNNING",
        ),
        (
            [*map(seen, DUE[:2]), seen(DUE[2], state="SKIPPED", reason="OVERLAP", tries=())],
            "12:00:02 never started: SKIPPED (OVERLAP)",
        ),
        (
            [*map(seen, DUE[:2]), failed_run(DUE[2])],
            "12:00:02 ended as FAILED (EXIT_CODE)",
        ),
    ],
)
def test_each_violation_is_named(runs: list[Any], fault: str) -> None:
    assert faults(runs) == [fault]


def test_a_job_that_must_fail_is_in_order_when_growing_waits_end_in_a_dead_letter() -> None:
    runs = [failed_run(at, SECOND, 2 * SECOND) for at in DUE]
    row = verdict.judge(verdict.Expected("j", DUE, dies=True, max_attempts=3), runs)
    assert (row.fired, row.succeeded, row.retried, row.dead, row.faults) == (3, 0, 6, 3, ())
    assert row.late_max == 20, "lateness is that of the first attempt"


@pytest.mark.parametrize(
    ("run", "fault"),
    [
        (seen(DUE[0]), "12:00:00 should have failed, but ended as SUCCEEDED"),
        (failed_run(DUE[0], SECOND), "12:00:00 had 2 attempts, expected 3"),
        (
            failed_run(DUE[0], SECOND, 2 * SECOND, dead=False),
            "12:00:00 failed, but isn't a dead letter",
        ),
        (
            failed_run(DUE[0], SECOND, SECOND),
            "12:00:00 was retried after 1,000 ms, 1,000 ms: the wait must grow",
        ),
    ],
)
def test_a_wrong_failure_is_named(run: Any, fault: str) -> None:
    assert faults([run], due=DUE[:1], dies=True, max_attempts=3) == [fault]
