"""Days on which clocks change, lived through at high speed by a whole cluster."""

from __future__ import annotations

import pytest

from faults.conftest import DayRun
from faults.day import DAYS, HOUR, MISSED, Day, leap_over, live_through


@pytest.mark.full
@pytest.mark.parametrize("day", DAYS.values(), ids=DAYS.keys())
def test_days_on_which_clocks_change(day_run: DayRun, day: Day) -> None:
    """Each instant of the oracle runs, on time and once, and no other does."""
    with day_run(day) as run:
        live_through(run, run.world, *day.bounds())


@pytest.mark.full
@pytest.mark.parametrize("day", MISSED.values(), ids=MISSED.keys())
def test_hours_missed_in_which_clocks_change(day_run: DayRun, day: Day) -> None:
    """A leap over the change: each instant runs late or is accounted for, by its job's policy."""
    since, until = day.bounds()
    with day_run(day) as run:
        live_through(run, run.world, since, since + HOUR / 2)
        leap_over(run, run.world, until - HOUR)
        live_through(run, run.world, until - HOUR, until)
