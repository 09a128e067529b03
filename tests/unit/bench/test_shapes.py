"""The pure parts of shapes: when submits arrive, which half they are of, which cells there are;
what is expected of a soak, and what of it drifts.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from bench.openloop import arrivals, halves
from bench.scale import cells, together
from bench.soak import Counted, cut, drift, instants

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)


def test_arrivals_have_the_average_rate_are_ordered_and_within_the_time() -> None:
    moments = [*arrivals(100, 60, seed=1)]
    assert len(moments) == pytest.approx(6_000, rel=0.05)
    assert all(earlier < later for earlier, later in pairwise(moments))
    assert 0 < moments[0] < moments[-1] < 60


def test_the_same_seed_gives_the_same_arrivals() -> None:
    assert [*arrivals(10, 5, seed=7)] == [*arrivals(10, 5, seed=7)]
    assert [*arrivals(10, 5, seed=7)] != [*arrivals(10, 5, seed=8)]


def test_waits_are_of_the_half_that_they_were_meant_for() -> None:
    assert halves([(0.0, 3.0), (9.9, 1.0), (10.0, 2.0)], 10.0) == ([3.0, 1.0], [2.0])


def test_workers_never_have_more_slots_than_all_may_have_together() -> None:
    assert [*cells([1, 2, 3], 1_000)] == [(1, 1_000), (2, 500), (3, 333)]


def test_spent_time_is_summed_by_kind() -> None:
    spent = {"m1": 1, "m2": 2, "w1": 4, "w10": 8, "etcd": 16, "postgres": 32}
    assert together(spent) == {"members": 3, "workers": 12, "stores": 48, "all": 63}


def test_each_job_has_one_instant_in_any_minute() -> None:
    for began in (0, 17, 59):
        start = MIDNIGHT + timedelta(seconds=began)
        assert instants(start, start + timedelta(minutes=1), hot=100) == 100 + 60


def test_remaining_copies_are_due_in_the_first_seconds_of_a_minute() -> None:
    half = timedelta(seconds=30)
    assert instants(MIDNIGHT, MIDNIGHT + half, hot=70) == 30 * 2 + 10
    assert instants(MIDNIGHT + half, MIDNIGHT + 2 * half, hot=70) == 30 * 2
    assert instants(MIDNIGHT + timedelta(seconds=59), MIDNIGHT + timedelta(seconds=61), 70) == 2 + 3


def test_windows_have_the_requested_length_and_the_last_the_remainder() -> None:
    windows = [*cut(MIDNIGHT, seconds=130, window=60)]
    assert [(end - start).total_seconds() for start, end in windows] == [60, 60, 10]
    assert windows[0][0] == MIDNIGHT
    assert all(before[1] == after[0] for before, after in pairwise(windows))


def test_runs_without_a_row_or_success_are_lost_and_second_rows_are_duplicates() -> None:
    assert Counted(10, 10, 10, 10, 0, 0, {}).lost == 0
    assert Counted(10, 8, 8, 8, 0, 0, {}).lost == 2
    assert Counted(10, 10, 10, 7, 0, 0, {}).lost == 3
    both = Counted(10, 10, 9, 10, 0, 0, {})
    assert (both.lost, both.doubled) == (1, 1)


def test_drift_compares_the_first_third_with_the_last() -> None:
    lines = [{"late_ms": {"p50": float(late)}, "at": "12:00:00"} for late in (2, 99, 0, 7, 4, 8)]
    assert drift(lines) == {"late_ms.p50": {"first": 50.5, "last": 6.0, "ratio": 0.119}}
    assert drift([{"dead": 0}, {"dead": 1}, {"dead": 5}]) == {
        "dead": {"first": 0.0, "last": 5.0, "ratio": None}
    }
    assert drift(lines[:2]) == {}
