"""Schedules that end: `max_runs`, counted by the timer (P3.15).

    fire: one more ─→ as many as it may: ended ─→ a run skipped that never had a token: one less

The judge counts the rows that are there: a timer that counts otherwise ends too early, or too late.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from faults.model.rows import Database, JobId, Run, RunId, Timer, Transaction
from faults.model.rules import Rule
from faults.model.timing import TRIGGERED

if TYPE_CHECKING:
    from faults.model.world import World

MAX_RUNS = 4
TURNS = frozenset({Rule.TURN_COMPARED, Rule.TURN_GIVEN_BACK, Rule.TURN_OF_NEW_ROWS})


def limited(seed: int, without: frozenset[Rule]) -> bool:
    """Whether the jobs of this seed's world have a limit: else too little would happen in it."""
    return bool(without & TURNS) or seed % 8 == 5


def fired(world: World, job: JobId, row: Timer, seen: Timer, *, made: bool, due: bool) -> Timer:
    """The timer's row after a step that was reckoned from `seen`: whether a run was made, and
    whether one was due, be it there already.
    """
    most = world.jobs[job].max_runs
    if not most:
        return row
    counts = made if world.on(Rule.TURN_OF_NEW_ROWS) else due
    return replace(row, fired=row.fired + counts, ended=seen.fired + counts >= most)


def give_back(world: World, transaction: Transaction, key: RunId, run: Run) -> None:
    """The run was skipped."""
    job = key[0]
    timer = transaction.get(world.database.timers, job)
    counted = world.jobs[job].max_runs and key[1] < TRIGGERED and not run.token
    if timer is not None and counted and world.on(Rule.TURN_GIVEN_BACK):
        after = replace(timer, fired=timer.fired - 1, ended=False)
        transaction.put(world.database.timers, job, after)


def wrong(rows: Database, transaction: Transaction, job: JobId, most: int) -> str:
    """Return what is wrong with a timer's count once this has been committed; empty: nothing."""
    timer = transaction.get(rows.timers, job)
    if timer is None:
        return ""
    written = {key for name, key in transaction.writes if name == rows.runs.name}
    keys = written | {key for key, _ in rows.runs_of(job)}
    made = 0
    for key in keys:
        run = transaction.get(rows.runs, key)
        mine = key[0] == job and key[1] < TRIGGERED
        made += mine and run is not None and (run.state != "SKIPPED" or run.token > 0)
    if made > most:
        return f"{made} runs were created, more than max_runs {most}"
    if timer.ended and made < most:
        return f"the timer ended with {made} of {most} runs"
    return ""
