"""S9: how many runs of a job are in progress at once, on committed rows and in processes.

On rows the rule has no exception. As processes, two runs of a job that excludes them may overlap
where the worker of the one that was dispatched first had lost its lease before the other started,
or a fault had stopped it between its last look at the lease and its end; those are counted, not
forbidden. Their tokens tell which was dispatched first: a worker that stood still just before its
start writes that line when it wakes, after the other's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from faults.checker.instants import wrote
from faults.checker.lives import Life
from faults.checker.tables import clock
from faults.checker.verdict import Violation
from faults.checker.world import World
from faults.history import ProbeEvent


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two starts of one job, one before the end of the other. `earlier`: dispatched first."""

    earlier: ProbeEvent
    later: ProbeEvent
    ended: float
    """When the one ended that had started before the other."""
    explained: bool


def limit_of(overlap: str) -> int | None:
    """How many runs may be under way under a policy; None: any number."""
    policy, _, number = overlap.partition(":")
    if policy == "allow":
        return int(number) if number else None
    return 1


def s9(world: World) -> Iterator[Violation]:
    """Check overlap limits on committed intervals, and on processes unless a lease was lost."""
    yield from _admitted(world)
    for overlap in overlaps(world):
        if not overlap.explained:
            yield Violation(
                "S9",
                f"{overlap.later.job} ran twice at once, and no lease was lost before",
                (wrote(overlap.earlier), f"it ended {clock(overlap.ended)}", wrote(overlap.later)),
            )


def overlaps(world: World) -> Iterator[Overlap]:
    """Physical overlaps of different runs of a job that excludes them."""
    for job_id, unordered in world.starts_by_job.items():
        life = world.lives.by_job.get(job_id)
        if life is None or not _always_alone(life):
            continue
        starts = sorted(unordered, key=lambda start: start.at)
        open_until: list[tuple[float, ProbeEvent]] = []
        for start in starts:
            open_until = [one for one in open_until if one[0] > start.at]
            for ended, other in open_until:
                if other.run != start.run:
                    earlier, later = sorted((other, start), key=lambda one: one.token)
                    explained = _explained(world, earlier, later)
                    yield Overlap(earlier, later, ended, explained)
            end = world.ends.get((start.run, start.token))
            if end is not None:
                open_until.append((end.at, start))


def _always_alone(life: Life) -> bool:
    return all(limit_of(phase.definition.overlap) == 1 for phase in life.phases)


def _explained(world: World, earlier: ProbeEvent, later: ProbeEvent) -> bool:
    assignment = world.assignment(earlier.run, earlier.token)
    if assignment is None:
        return False
    return world.lost_by(assignment.incarnation, later.at) or world.windows.slept(
        earlier.worker, assignment.begun.at, later.at
    )


def _admitted(world: World) -> Iterator[Violation]:
    under_way: dict[str, set[str]] = defaultdict(set)
    for step in world.runs.steps:
        before, run = step.before, step.after
        if run is None:
            continue
        held = under_way[run.job_id]
        if not run.admitted:
            held.discard(run.run_id)
            continue
        fresh = run.run_id not in held
        held.add(run.run_id)
        life = world.lives.by_job.get(run.job_id)
        phase = life.at_generation(run.generation) if life else None
        if phase is None or not fresh or (before is not None and not before.as_fresh):
            continue
        limit = limit_of(phase.definition.overlap)
        if limit is not None and len(held) > limit:
            others = ", ".join(sorted(held - {run.run_id}))
            yield Violation(
                "S9",
                f"{len(held)} runs of {phase.definition.name} were admitted, {limit} may be",
                (f"{step.where}: run {run.run_id} ({clock(run.scheduled_at)})", f"with {others}"),
            )
