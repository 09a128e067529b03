"""Cluster time: near the database's clock, never ahead of it, and never backwards."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedd.core.cluster.cluster_time import FAR, KEPT, ClusterTime, begin

START = datetime(2026, 11, 21, 12, tzinfo=UTC)
MS = 0.001
MICROSECOND = timedelta(microseconds=1)


def server_time(at: float, ahead: float = 0.0) -> datetime:
    """Return the time of a database that started at START when the local clock was 0."""
    return START + timedelta(seconds=at + ahead)


def error(time: ClusterTime, at: float, ahead: float = 0.0) -> float:
    """Return the seconds by which cluster time is ahead of the database."""
    return (time.now(at) - server_time(at, ahead)).total_seconds()


def steady(ahead: float = 0.0, until: int = 20) -> ClusterTime:
    time = begin(0.0, 2 * MS, server_time(MS, ahead))
    for at in range(1, until):
        time = time.observe(at, at + 2 * MS, server_time(at + MS, ahead))
    return time


@pytest.mark.parametrize("answered", [0.0, 0.005, 0.010])
def test_the_first_probe_is_used_for_any_time_of_its_answer(answered: float) -> None:
    time = begin(0.0, 0.010, server_time(answered))
    assert error(time, 3.0) == pytest.approx(answered - 0.010, abs=1e-5)


def test_a_slow_probe_answered_at_its_end_does_not_make_time_early() -> None:
    time = begin(0.0, 0.060, server_time(0.059))
    assert error(time, 0.060) == pytest.approx(-0.001, abs=1e-5)


def test_a_slow_answer_changes_nothing_while_quick_ones_are_remembered() -> None:
    time = steady()
    slow = time.observe(20.0, 22.0, server_time(20.1))
    assert slow.best == time.best
    assert error(slow, 22.5) == pytest.approx(-MS, abs=1e-4)


def test_uncertainty_is_the_best_round_trip() -> None:
    assert steady().best.trip == pytest.approx(2 * MS)


def test_only_the_last_probes_are_kept() -> None:
    assert len(steady(until=50).samples) == KEPT


def test_a_slow_first_probe_is_corrected_by_a_quick_one() -> None:
    slow = begin(0.0, 0.800, server_time(0.010))
    assert error(slow, 0.900) == pytest.approx(-0.790, abs=1e-5)
    quick = slow.observe(1.0, 1.002, server_time(1.001))
    assert error(quick, 1.002) == pytest.approx(-MS, abs=1e-5)


def test_a_clock_that_was_set_back_a_little_is_slewed() -> None:
    time = steady().observe(20.0, 20.002, server_time(20.001, ahead=-0.2))
    assert error(time, 20.002) == pytest.approx(0, abs=2 * MS)
    assert error(time, 21.002) == pytest.approx(-0.1, abs=2 * MS)
    assert error(time, 25.0, ahead=-0.2) == pytest.approx(0, abs=2 * MS)


@pytest.mark.parametrize("ahead", [0.2, 3600])
def test_a_clock_that_was_set_ahead_is_followed_at_once(ahead: float) -> None:
    time = steady().observe(20.0, 20.002, server_time(20.001, ahead))
    assert error(time, 20.003, ahead) == pytest.approx(0, abs=2 * MS)


def test_a_clock_that_was_set_back_is_approached_at_half_speed() -> None:
    time = steady().observe(20.0, 20.002, server_time(20.001, ahead=-10))
    assert (time.now(22.002) - time.now(20.002)).total_seconds() == pytest.approx(1.0)
    assert error(time, 50.0, ahead=-10) == pytest.approx(0, abs=2 * MS)


def test_probes_from_before_a_clock_change_are_forgotten() -> None:
    time = steady().observe(20.0, 20.5, server_time(20.25, ahead=5))
    assert len(time.samples) == 1


probes = st.lists(
    st.tuples(
        st.floats(0.001, 3.0),  # pause before
        st.floats(0.0, 2.0),  # round trip
        st.floats(-3 * FAR, 3 * FAR),  # how far ahead the database says it is
    ),
    min_size=2,
    max_size=20,
)


@pytest.mark.slow
@given(probes)
def test_cluster_time_never_goes_backwards(steps: list[tuple[float, float, float]]) -> None:
    time, at = begin(0.0, 0.1, server_time(0.05)), 0.1
    shown = [time.now(at)]
    for pause, trip, ahead in steps:
        sent = at + pause
        shown += [time.now(at + pause / 3), time.now(sent), time.now(sent + trip)]
        at = sent + trip
        time = time.observe(sent, at, server_time(sent + trip / 2, ahead))
        shown.append(time.now(at))
    # Rounding to microseconds may take one back; the clock that is shown to others never does.
    assert all(later - sooner >= -MICROSECOND for sooner, later in pairwise(shown))


@pytest.mark.slow
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30), st.randoms())
def test_cluster_time_is_exact_to_the_best_round_trip_and_never_ahead(
    trips: list[float], random: Random
) -> None:
    # The database answers anywhere within the round trip.
    time, at = None, 0.0
    for trip in trips:
        answered = at + trip * random.random()
        observe = begin if time is None else time.observe
        time = observe(at, at + trip, server_time(answered))
        assert error(time, at + trip) <= 1e-5
        assert error(time, at + trip + 0.5) <= 1e-5
        at += trip + 1
    assert time is not None
    assert -time.best.trip - 1e-4 <= error(time, at + 60) <= 1e-5
