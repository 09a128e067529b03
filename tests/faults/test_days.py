"""Days on which clocks change, lived through at high speed by a whole cluster."""

from __future__ import annotations

import pytest

from faults.conftest import DayRun
from faults.day import DAYS, Day, live_through


@pytest.mark.full
@pytest.mark.parametrize("day", DAYS.values(), ids=DAYS.keys())
def test_days_on_which_clocks_change(day_run: DayRun, day: Day) -> None:
    """Each instant of the oracle runs, on time and once, and no other does."""
    with day_run(day) as run:
        live_through(run, run.world, day)
