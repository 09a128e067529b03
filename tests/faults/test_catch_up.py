"""The catch-up after an outage doesn't hold up what falls due when it ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from faults.conftest import FaultRun, Shared, frame
from faults.outage import DUE, ON_TIME, STRETCHES, Outage
from faults.world.world import World
from schedd.core.timers.catch_up_limits import DEFAULTS

JOBS = int(os.environ.get("OUTAGE_JOBS", "1000"))
"""Of each policy; 10,000 by `make acceptance-full`."""
LATE = 1.0
"""Seconds that what is due now may be late meanwhile."""
MOVED = DEFAULTS.reserved / 2
"""Part of the slots by which owners may together have more than their shares while shards move: of
what is under way a new owner takes over more or less than its part, by chance. Of 205 runs three
thirds are 8 over together, and 20 once in a thousand times.
"""


@pytest.fixture
def outage_world(shared_world: Shared) -> Iterator[World]:
    """Build a world for this test alone, whose clock is set before the outage."""
    yield shared_world.before_an_outage()
    shared_world.down()


@pytest.fixture
def outage_run(
    outage_world: World, request: pytest.FixtureRequest, figure: Callable[[str], None]
) -> FaultRun:
    return frame(outage_world, request, figure)


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_outage_of_ten_minutes(outage_run: FaultRun, outage_world: World) -> None:
    """`latest` runs once, `all` each time at the rate of releases, `none` never; each job's rows
    stand for each of its instants once; and what falls due meanwhile is on time.
    """
    world, outage = outage_world, Outage(outage_world, JOBS)
    with outage_run(mix=ON_TIME, load=False, prepare=outage.make) as run:
        with run.quiet_throughout():
            run.crew.submit()
            run.wait(1.5)
        outage.come(run)
        found = run.figures["outage"] = outage.figures
        print(found)

        assert outage.became() == {
            ("latest", "SUCCEEDED"): (JOBS, JOBS, JOBS, None),
            ("latest", "COALESCED"): (JOBS, JOBS, JOBS, None),
            ("all", "SUCCEEDED"): (DUE * JOBS, JOBS, DUE * JOBS, None),
            ("none", "MISSED"): (JOBS, JOBS, DUE * JOBS, "CATCH_UP_NONE"),
        }
        assert outage.uncovered() == 0
        for seconds in STRETCHES:
            most = outage.most_that_may(seconds, len(world.members))
            assert found["most_released"][f"{seconds:g}"] <= most, found
        share = found["slots"] * (1 - DEFAULTS.reserved) + len(world.members)
        assert share / 2 < found["most_at_once_later"] <= share, found
        assert found["most_at_once"] <= share + found["slots"] * MOVED, found
        assert found["on_time"]["started"] == found["on_time"]["due"], found
        assert found["on_time"]["max_s"] <= LATE, found
