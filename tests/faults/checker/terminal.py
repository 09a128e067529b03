"""S12: what has ended stays as it is."""

from __future__ import annotations

from collections.abc import Iterator

from faults.checker.results import accepted
from faults.checker.rows import (
    NEVER_RAN,
    SCHEDULED,
    SUBMITTED,
    TERMINAL,
    TRANSITIONS,
    Run,
)
from faults.checker.tables import Step
from faults.checker.verdict import Violation
from faults.checker.world import World

FIXED = (
    "state",
    "reason",
    "token",
    "attempt",
    "digest",
    "exit_code",
    "finished_at",
    "worker",
    "incarnation",
    "started_at",
)
"""Columns that may not change in the row of an ended run."""


def s12(world: World) -> Iterator[Violation]:
    """Terminal states never change; a refused report changes the audit alone."""
    refused: dict[tuple[int, str], int] = {}
    for entry in world.audit.steps:
        if entry.after is not None and entry.after.stale and entry.after.run_id is not None:
            refused[entry.commit, entry.after.run_id] = entry.after.token
    for step in world.runs.steps:
        before, after = step.before, step.after
        if after is None:
            yield Violation("S12", f"run {step.key[0]} was deleted", (step.where,))
        elif before is None:
            yield from _born(step, after) if step.commit >= 0 else ()  # it stood there before all
        elif before.state in TERMINAL:
            yield from _changed(step, before, after)
        elif after.state != before.state and after.state not in TRANSITIONS[before.state]:
            what = f"run {after.run_id} went {before.state} → {after.state}"
            yield Violation("S12", what, (step.where,))
        elif after.state == "RUNNING" != before.state and after.token == before.token:
            what = f"run {after.run_id} went {before.state} → RUNNING without a new token"
            yield Violation("S12", what, (step.where,))
        token = refused.get((step.commit, step.key[0]))
        if after is not None and token == after.token and not accepted(step):
            what = f"a report of run {after.run_id} was refused, and changed its row"
            yield Violation("S12", what, (step.where, f"now {after.state}"))


def _born(step: Step[Run], run: Run) -> Iterator[Violation]:
    """A run begins PENDING, RUNNING with a token, or as the account of times that don't run."""
    begins = run.trigger in {SCHEDULED, SUBMITTED} and run.token > 0
    running = run.state == "RUNNING" and begins
    if step.op == "insert" and not running and run.state not in ("PENDING", *NEVER_RAN):
        yield Violation("S12", f"run {run.run_id} began {run.state}", (step.where,))


def _changed(step: Step[Run], before: Run, after: Run) -> Iterator[Violation]:
    changed = [name for name in FIXED if getattr(before, name) != getattr(after, name)]
    if changed:
        yield Violation(
            "S12",
            f"run {after.run_id} had ended {before.state} and was changed",
            (
                step.where,
                *(f"{name}: {getattr(before, name)} → {getattr(after, name)}" for name in changed),
            ),
        )
