"""Catch-up limits: the release rate of late runs, and the slots they leave free."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedd.core.timers.catch_up_limits import BURST, CatchUpLimits, CatchUpPace, CatchUpRoom

steps = st.lists(
    st.tuples(
        st.floats(0, 3),  # seconds that pass
        st.integers(0, 500),  # how many would like to go
        st.floats(0, 1),  # the part of the shards that is owned from here on
    ),
    min_size=1,
    max_size=60,
)


@dataclass
class Owner:
    """An owner that releases as many runs as allowed."""

    pace: CatchUpPace
    rate: float
    went: list[tuple[float, int]] = field(default_factory=list)

    def look(self, at: float, wanted: int, part: float = 1.0) -> int:
        count = min(wanted, max(0, self.pace.releases(self.rate * part, at)))
        self.pace.released(count)
        self.went.append((at, count))
        return count


def most_in(went: list[tuple[float, int]], seconds: float) -> int:
    """Return the most releases within so many seconds."""
    return max(
        sum(count for at, count in went if begin <= at <= begin + seconds) for begin, _ in went
    )


@pytest.mark.slow
@given(st.sampled_from([0.5, 1.0, 7.0, 100.0, 1_000.0]), steps, st.floats(0, 20))
def test_any_interval_releases_at_most_its_rate_and_one_burst(
    rate: float, looks: list[tuple[float, int, float]], seconds: float
) -> None:
    owner = Owner(CatchUpPace(0.0), rate)
    at = 0.0
    for passed, wanted, part in looks:
        at += passed
        owner.look(at, wanted, part)

    assert most_in(owner.went, seconds) <= rate * seconds + max(1.0, rate * BURST) + 1e-6


@pytest.mark.slow
@given(
    st.sampled_from([7.0, 100.0]),
    st.lists(st.tuples(st.floats(0.01, 1), st.integers(0, 2)), min_size=2, max_size=80),
    st.integers(1, 3),
)
def test_the_cluster_keeps_to_one_rate_for_any_owners_of_shards(
    rate: float, looks: list[tuple[float, int]], members: int
) -> None:
    """New owners begin with no credit: a change of owners releases no run twice."""
    owners = [Owner(CatchUpPace(0.0), rate) for _ in range(members)]
    went: list[tuple[float, int]] = []
    times = list(accumulate(passed for passed, _ in looks))
    for at, (_, change) in zip(times, looks, strict=True):
        if change == 0:  # an owner is lost, and another takes over
            owners[int(at * 1e6) % members] = Owner(CatchUpPace(at), rate)
        went += [(at, owner.look(at, 1_000, 1 / members)) for owner in owners]

    for seconds in (0.5, 2.0, times[-1]):
        bursts = members * max(1.0, rate / members * BURST)
        assert most_in(went, seconds) <= rate * seconds + bursts + 1e-6


def test_all_waiting_runs_are_released_at_the_rate() -> None:
    owner = Owner(CatchUpPace(0.0), 100.0)
    left, at = 1_000, 0.0
    while left:
        at += 0.05
        left -= owner.look(at, left)

    assert at == pytest.approx(10.0, abs=0.2)


def test_a_pace_begins_empty_and_returns_the_wait_for_the_next_release() -> None:
    pace = CatchUpPace(10.0)
    assert pace.releases(4.0, 10.0) == 0
    assert pace.wait() == pytest.approx(0.25)
    assert pace.releases(4.0, 10.25) == 1
    assert pace.wait() == 0.0
    pace.released(1)
    assert pace.wait() == pytest.approx(0.25)


@pytest.mark.parametrize("parts", [(1.0,), (0.5, 0.5), (0.34, 0.33, 0.33), (0.9, 0.1)])
@pytest.mark.parametrize("slots", [1, 8, 10, 64, 1_000])
def test_all_owners_together_leave_the_reserved_slots_free(
    parts: tuple[float, ...], slots: int
) -> None:
    limits = CatchUpLimits(reserved=0.2)
    assert sum(limits.slots(slots, part) for part in parts) <= slots * 0.8


def test_eighty_percent_of_ten_are_eight() -> None:
    assert CatchUpLimits(reserved=0.2).slots(10, 1.0) == 8


def test_without_paced_runs_in_progress_one_of_any_width_may_start() -> None:
    room = CatchUpRoom(slots=0, releases=5, lookups=5, idle=True)
    assert room.fits(4, paced=True)
    assert room.most(9, 4, paced=True) == 1
    room.use_room(4, paced=True)
    assert not room.fits(1, paced=True)


def test_a_run_that_isnt_paced_may_use_any_slot() -> None:
    """Runs that fired slowly, one for each job: they only queue behind runs due now."""
    room = CatchUpRoom(slots=0, releases=0, lookups=5)
    assert room.fits(4, paced=False)
    assert room.most(9, 4, paced=False) == 9
    room.take_all(9, 4, paced=False)
    assert (room.slots, room.releases) == (0, 0)


def test_a_paced_run_needs_a_release_and_an_unknown_one_a_lookup() -> None:
    room = CatchUpRoom(slots=9, releases=0, lookups=1)
    assert not room.fits(1, paced=True)
    assert room.fits(1, paced=False, known=False)
    room.use_room(1, paced=False, known=False)
    assert not room.fits(1, paced=False, known=False)
    assert room.fits(1, paced=False)
    assert room.most(100, 1, paced=True) == 0
    room.releases = 50
    assert room.most(100, 4, paced=True) == 2
