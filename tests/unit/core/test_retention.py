"""Retention of ended runs and their logs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from schedd.core.ids import Id, JobId, RunId, ShardId
from schedd.core.runs.model import RunKey
from schedd.core.runs.retention import FLOOR, EndedRun, Retention, is_over, log_is_over

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def ended(ago: timedelta) -> EndedRun:
    """Return a run that was due, and ended, so long ago."""
    at = NOW - ago
    return EndedRun(RunKey(at, RunId(Id.from_int(1))), ShardId(0), JobId(Id.from_int(2)), at, at)


@pytest.mark.parametrize(
    ("changes", "goes_after"),
    [
        ({}, 30 * DAY),
        ({"own": DAY}, DAY),
        ({"own": 90 * DAY}, 90 * DAY),
        ({"waits": True}, None),
        ({"waits": True, "own": DAY}, None),
    ],
)
def test_a_run_is_deleted_after_the_retention_of_its_job_or_cluster(
    changes: dict[str, object], goes_after: timedelta | None
) -> None:
    for days in (1, 2, 29, 30, 31, 89, 90, 91, 9_000):
        run = replace(ended(days * DAY), **changes)
        assert is_over(run, Retention(), NOW) is (
            goes_after is not None and days * DAY >= goes_after
        )


def test_a_waiting_dead_letter_is_deleted_only_by_a_setting_of_the_cluster() -> None:
    year = Retention(dead_letters=365 * DAY)
    waits = replace(ended(364 * DAY), waits=True)
    assert not is_over(waits, year, NOW)
    assert is_over(replace(waits, ended_at=NOW - 365 * DAY), year, NOW)
    assert not is_over(replace(ended(9_000 * DAY), waits=True, queued=True), year, NOW)


def test_a_recently_due_run_is_kept_with_any_retention() -> None:
    """A timer that is set back by a minute must find the row of the run it fired."""
    second = timedelta(seconds=1)
    assert not is_over(replace(ended(FLOOR - second), own=second), Retention(), NOW)
    assert is_over(replace(ended(FLOOR), own=second), Retention(), NOW)
    merged = replace(ended(DAY), own=second, until=NOW - second)
    assert not is_over(merged, Retention(), NOW)


def test_a_log_is_deleted_before_its_run_unless_the_job_sets_one_retention() -> None:
    assert not log_is_over(ended(6 * DAY), Retention(), NOW)
    assert log_is_over(ended(7 * DAY), Retention(), NOW)
    assert not log_is_over(replace(ended(8 * DAY), own=30 * DAY), Retention(), NOW)
    assert not log_is_over(replace(ended(8 * DAY), waits=True), Retention(), NOW)
