"""Very many jobs due at one instant: all leases and shards are kept, each job runs once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from faults.conftest import FaultRun, Shared, frame
from faults.herd import Herd
from faults.probes import MIX, DatabaseProbe
from faults.witness import everyone_stays
from faults.world.world import World

JOBS = int(os.environ.get("HERD", "100000"))
"""How many; fewer to try something out."""
URGENT = [DatabaseProbe(f"urgent-{n}", more={"priority": "high"}) for n in range(1, 4)]
AGEING = 60.0
"""Seconds of waiting that lift a run by one class: what of the herd waits for longer is as urgent
as these, and older (docs/semantics/priorities-and-placement.md).
"""
MEMBER_MIB, WORKER_MIB = 320, 128
"""More memory than this no member and no worker may ever have had."""
MORE, MORE_MIB = 1.1, 8
"""Growth of a process's resources from one herd to the next: at most so much."""
SMALLEST_SHARE = 0.15
"""Of four workers."""
URGENT_LATE, URGENT_MERGED = 1.0, 1
"""Seconds that an urgent run may be late in the first minute, and how many instants of each urgent
job may be merged into the next.
"""
LONGEST_IDLE = 5.0
"""Seconds that a worker may have begun nothing while much waits."""


@pytest.fixture
def herding_world(shared_world: Shared) -> Iterator[World]:
    """Build a world for this test alone, with room for what so many runs leave."""
    yield shared_world.herding()
    shared_world.down()


@pytest.fixture
def herd_run(
    herding_world: World, request: pytest.FixtureRequest, figure: Callable[[str], None]
) -> FaultRun:
    return frame(herding_world, request, figure)


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_herd_due_at_one_instant(herd_run: FaultRun, herding_world: World) -> None:
    """Leases, shards and workers are kept, memory is bounded, each of them runs once and every
    worker has its share; what is urgent is on time meanwhile, and all is when it is over.

    It is the second of its kind: what the first has left of arenas that the interpreter doesn't
    give back is there when the record begins, and this one adds nothing to it.
    """
    world, herd = herding_world, Herd(herding_world, JOBS)
    before = herd.memory()
    Herd(world, JOBS).pass_by()
    with herd_run(mix=(*MIX, *URGENT), prepare=herd.make) as run:
        left = herd.memory()
        with run.quiet_throughout():
            herd.await_eve()
        with everyone_stays(world):
            herd.come(run)
            usual = [probe.name for probe in MIX if probe.cron == "* * * * * *"]
            urgent = [probe.name for probe in URGENT]
            minute = min(herd.drained, herd.due + AGEING)
            found = run.figures["herd"] = herd.figures | {
                "ordinary": herd.lateness(run, usual, herd.drained),
                "urgent": herd.lateness(run, urgent, minute),
                "urgent_later": herd.lateness(run, urgent, herd.drained),
            }
        found["kept_mib"] = {
            name: [before[name], left[name], kept] for name, kept in herd.memory_left(left).items()
        }
        print(found)

        starts = Counter(line["run"] for line in herd.starts(run))
        assert (len(starts), set(starts.values())) == (JOBS, {1})
        assert herd.rows() == {"SUCCEEDED": (JOBS, JOBS, 1, 1, 0)}
        assert found["smallest_share"] >= SMALLEST_SHARE, found
        assert max(found["longest_idle_s"].values()) <= LONGEST_IDLE, found
        assert max(found["longest_block_s"].values()) <= world.ttl / 3, found
        for name, (_, first, second) in found["kept_mib"].items():
            assert second <= MORE * first + MORE_MIB, (name, found)
        for name, (_, peak) in found["rss_mib"].items():
            assert peak <= (MEMBER_MIB if name in world.members else WORKER_MIB), (name, found)
        least = found["urgent"]["due"] - URGENT_MERGED * len(URGENT)
        assert found["urgent"]["started"] >= least, found
        assert found["urgent"]["max_s"] <= URGENT_LATE, found
