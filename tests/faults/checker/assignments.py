"""Assignments of runs, each from the commit of its token to the commit that ended it.

PENDING, RETRYING ─token→ RUNNING ─┬─ result      a digest came with it
├─ lost        with the worker's incarnation
├─ returned    said to have never started
└─ superseded  another token while it still ran: never right
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from faults.checker.rows import Run
from faults.checker.tables import Step, Table

How = Literal["result", "lost", "returned", "superseded"]


@dataclass(frozen=True, slots=True)
class Assignment:
    """Assignment of a run under one token. `ended` and `how` are None while it runs."""

    run_id: str
    job_id: str
    token: int
    generation: int
    worker: str
    incarnation: str | None
    begun: Step[Run]
    ended: Step[Run] | None = None
    how: How | None = None
    started: float | None = None
    """When its worker started the handler, by the worker's own report."""

    @property
    def until(self) -> float:
        """When it ended, in seconds of the epoch."""
        return float("inf") if self.ended is None else self.ended.at


def assignments_of(runs: Table[Run]) -> Mapping[str, tuple[Assignment, ...]]:
    """The assignments of each run, in commit order."""
    found: dict[str, list[Assignment]] = defaultdict(list)
    for step in runs.steps:
        before, after = step.before, step.after
        if after is None:
            continue
        held = found[step.key[0]]
        running = held[-1] if held and held[-1].ended is None else None
        fresh = after.token != (before.token if before else 0)
        if running is not None:
            held[-1] = running = replace(running, started=after.started_at or running.started)
        if running is not None and (fresh or after.state != "RUNNING"):
            held[-1] = replace(running, ended=step, how=_how(running, after, fresh))
        if fresh:
            held.append(_begun(step, after))
    return {run: tuple(held) for run, held in found.items() if held}


def _begun(step: Step[Run], run: Run) -> Assignment:
    return Assignment(
        run_id=run.run_id,
        job_id=run.job_id,
        token=run.token,
        generation=run.generation,
        worker=run.worker or "",
        incarnation=run.incarnation,
        begun=step,
    )


def _how(running: Assignment, after: Run, fresh: bool) -> How:
    if fresh:
        return "superseded"
    if after.digest is not None:
        return "result"
    before = running.begun.after
    lost = before is not None and after.losses > before.losses
    return "lost" if lost else "returned"
