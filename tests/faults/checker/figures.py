"""The figures of a row in docs/evidence/fault-tests.md."""

from __future__ import annotations

from bisect import bisect_left

from faults.checker.coverage import owes_start, started
from faults.checker.extras import extras
from faults.checker.ledger import Due
from faults.checker.overlap import overlaps
from faults.checker.verdict import Figures
from faults.checker.windows import ON_TIME, QUIET_BOUND
from faults.checker.world import World

BY_POLICY = ("OVERLAP", "PAUSED", "EDITED", "CALENDAR", "BUFFER_FULL")
"""Reasons by which an instant doesn't run because its owner wanted it so: no gap."""


def figures_of(world: World) -> Figures:
    """Count the judged instants; each is one of on time, late, missed with a reason, lost."""
    on_time = late = missed = lost = 0
    max_lateness = 0.0
    for due in world.dues:
        first = started(world, due)
        if first is not None:
            lateness = first - due.at
            max_lateness = max(max_lateness, lateness)
            on_time += lateness <= ON_TIME
            late += lateness > ON_TIME
        elif not due.rows or owes_start(world, due) is not None:
            lost += 1
        else:
            missed += 1
    gone = sum(1 for due in world.dues_at_deletion if not due.rows)
    extra = list(extras(world))
    twice = sum(
        1
        for due in world.dues
        if sum(1 for each in due.rows if world.starts.get(each.row.run_id)) > 1
    )
    return Figures(
        judged=len(world.dues) + gone,
        on_time=on_time,
        late=late,
        missed=missed,
        lost=lost + gone,
        doubled=twice + sum(1 for each in extra if each.cause is None),
        explained=sum(1 for each in extra if each.cause is not None),
        longest_gap=_longest_gap(world),
        max_lateness=max_lateness,
        stale=sum(1 for step in world.audit.steps if step.after and step.after.stale),
        overlaps=sum(1 for overlap in overlaps(world) if overlap.explained),
    )


def _longest_gap(world: World) -> float:
    """The longest time from an instant that wanted a run to the job's next start.

    It ends where the job was paused or deleted, for then nothing was waited for any more.
    """
    starts = {
        job_id: sorted(start.at for start in events)
        for job_id, events in world.starts_by_job.items()
    }
    gaps = (_gap(due, starts.get(due.life.job_id, []), world.meta.ended) for due in world.dues)
    return max(gaps, default=0.0)


def _gap(due: Due, starts: list[float], ended: float) -> float:
    if due.rows and due.rows[0].row.reason in BY_POLICY:
        return 0.0
    place = bisect_left(starts, due.at - QUIET_BOUND)
    following = starts[place] if place < len(starts) else ended
    wanted_until = [p.committed for p in due.life.pauses if p.committed >= due.at]
    return max(0.0, min(following, due.life.stopped, *wanted_until) - due.at)
