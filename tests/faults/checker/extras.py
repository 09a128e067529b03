"""L5: every start beyond a run's first has a cause: a retry, a death, a lost lease."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from faults.checker.assignments import Assignment
from faults.checker.instants import wrote
from faults.checker.results import DONT_RETRY_CODE
from faults.checker.verdict import Violation
from faults.checker.world import World
from faults.history import ProbeEvent


@dataclass(frozen=True, slots=True)
class Extra:
    """A start that isn't the first of its run. `cause`: what explains it; None: nothing does."""

    start: ProbeEvent
    first: ProbeEvent
    cause: str | None


def l5(world: World) -> Iterator[Violation]:
    """Extra physical starts are explained by lease losses, deaths and retries."""
    for run_id, starts in world.starts.items():
        if world.run(run_id) is None:
            what = f"{starts[0].job} started a run that no commit has made"
            yield Violation("L5", what, tuple(wrote(start) for start in starts))
            continue
        for start in starts:
            assignment = world.assignment(run_id, start.token)
            if assignment is None:
                what = f"{start.job} started under token {start.token}, which no commit has issued"
                yield Violation("L5", what, (wrote(start),))
            elif assignment.worker != start.worker:
                what = f"{start.job} started on another worker than the one it was given to"
                yield Violation("L5", what, (wrote(start), assignment.begun.where))
            elif assignment.begun.after is not None:
                counted = assignment.begun.after.attempt
                if start.attempt != counted:
                    what = f"{start.job} was given attempt {start.attempt}, not {counted}"
                    yield Violation("L5", what, (wrote(start), assignment.begun.where))
    yield from _tries(world)
    for extra in extras(world):
        if extra.cause is None:
            yield Violation(
                "L5",
                f"{extra.start.job} started a run again, and nothing explains it",
                (wrote(extra.first), wrote(extra.start), *_fates(world, extra.start.run)),
            )


def _tries(world: World) -> Iterator[Violation]:
    """No more tries than the definition allows, and no fewer where each ended by its exit code."""
    for run in world.runs.final():
        life = world.lives.by_job.get(run.job_id)
        phase = life.at_generation(run.generation) if life else None
        if phase is None:
            continue
        most = phase.definition.attempts
        final = run.exit_code == DONT_RETRY_CODE
        early = (run.state, run.reason) == ("FAILED", "EXIT_CODE") and not final
        if run.attempt > most or (early and run.attempt < most):
            what = f"run {run.run_id} is {run.state} after {run.attempt} tries of {most}"
            yield Violation("L5", what, (world.runs.of(run.run_id)[-1].where,))


def extras(world: World) -> Iterator[Extra]:
    """All starts beyond the first of each run."""
    for run_id, starts in world.starts.items():
        first = starts[0]
        tokens = {first.token: first}
        for start in starts[1:]:
            if start.token in tokens:
                yield Extra(start, tokens[start.token], None)
                continue
            earlier = [token for token in tokens if token < start.token]
            known = world.assignment(run_id, max(earlier)) if earlier else None
            late = None if earlier else _late(world, start, min(tokens))
            yield Extra(start, first, _cause(world, known, start) if known else late)
            tokens[start.token] = start


def _cause(world: World, before: Assignment, start: ProbeEvent) -> str | None:
    """Return why the end of the earlier assignment justifies another start; None: it doesn't."""
    ended = before.ended
    if ended is None or ended.after is None or ended.before is None:
        return None
    at_most_once = _at_most_once(world, before)
    if before.how == "result":
        counted = ended.after.attempt == ended.before.attempt
        return "retry" if counted or not at_most_once else None
    if before.how == "lost":
        return None if at_most_once else "lease lost"
    slept = world.windows.slept(before.worker, before.begun.at, start.at)
    return "worker stood still" if slept and not at_most_once else None


def _late(world: World, start: ProbeEvent, running: int) -> str | None:
    """A start under an older token than one that ran: its worker had lost its lease, or slept."""
    older = world.assignment(start.run, start.token)
    if older is None or start.token > running or _at_most_once(world, older):
        return None
    lost = world.lost_by(older.incarnation, start.at)
    slept = world.windows.slept(older.worker, older.begun.at, start.at)
    return "lease lost" if lost or slept else None


def _at_most_once(world: World, assignment: Assignment) -> bool:
    life = world.lives.by_job.get(assignment.job_id)
    phase = life.at_generation(assignment.generation) if life else None
    return phase is not None and phase.definition.delivery == "at_most_once"


def _fates(world: World, run_id: str) -> Iterator[str]:
    for held in world.assignments.get(run_id, ()):
        fate = f"{held.how} in {held.ended.where}" if held.ended else "open"
        yield f"token {held.token} for {held.worker} ({held.incarnation}): {fate}"
