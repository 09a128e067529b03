"""S10: an attempt is issued only after the one before has ended or its worker's lease has gone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from faults.checker.assignments import Assignment
from faults.checker.instants import wrote
from faults.checker.rows import Run
from faults.checker.tables import clock
from faults.checker.verdict import Violation
from faults.checker.world import World


def s10(world: World) -> Iterator[Violation]:
    """Attempt k + 1 comes after attempt k has ended, or its worker's lease was seen gone."""
    for step in world.runs.steps:
        before, after = step.before, step.after
        if before and after and before.token == after.token and _given(before) != _given(after):
            what = f"run {after.run_id} changed hands under token {after.token}"
            yield Violation("S10", what, (step.where, f"{_given(before)} → {_given(after)}"))
    for held in world.assignments.values():
        for assignment in held:
            yield from _ended_wrongly(world, assignment)
        for earlier, later in pairwise(held):
            yield from _at_once(world, earlier, later)


def _given(run: Run) -> tuple[str | None, str | None, int]:
    """Return the worker, incarnation and definition of an assignment: fixed for each token."""
    return run.worker, run.incarnation, run.generation


def _ended_wrongly(world: World, assignment: Assignment) -> Iterator[Violation]:
    ended = assignment.ended
    if ended is None:
        return
    name = f"run {assignment.run_id} under token {assignment.token}"
    if assignment.how == "superseded":
        yield Violation("S10", f"{name} got another token while it ran", (ended.where,))
    elif assignment.how == "lost":
        lost = world.incarnations.after(ended.commit, assignment.incarnation or "")
        if lost is None or not lost.lost:
            yield Violation(
                "S10",
                f"{name} was given up as lost, though its worker's incarnation wasn't",
                (ended.where, f"incarnation {assignment.incarnation} of {assignment.worker}"),
            )
    elif assignment.how == "returned":
        for start in world.starts.get(assignment.run_id, ()):
            if start.token == assignment.token and not world.windows.slept(
                start.worker, assignment.begun.at, start.at
            ):
                what = f"{name} was given back as never started, though it started"
                yield Violation("S10", what, (ended.where, wrote(start)))


def _at_once(world: World, earlier: Assignment, later: Assignment) -> Iterator[Violation]:
    """Check the same for processes: the later attempt started before the earlier one's end."""
    end = world.ends.get((earlier.run_id, earlier.token))
    for start in world.starts.get(later.run_id, ()):
        if start.token != later.token or end is None or end.at <= start.at:
            continue
        if world.lost_by(earlier.incarnation, start.at) or world.windows.slept(
            earlier.worker, earlier.begun.at, start.at
        ):
            continue
        yield Violation(
            "S10",
            f"run {later.run_id} started under token {later.token} while it ran under"
            f" {earlier.token}, whose worker had lost nothing",
            (f"{earlier.worker}: ended {clock(end.at)}", wrote(start)),
        )
