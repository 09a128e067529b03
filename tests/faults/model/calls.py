"""User calls on jobs, served by any member: lock the shard rows, then timer and runs, then write;
and say `ok` when nothing of the old definition can start any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from faults.model import chains, dispatch
from faults.model.rows import (
    LIVE,
    WAITING,
    Attempt,
    JobId,
    Run,
    RunId,
    Steps,
    Timer,
    Transaction,
)
from faults.model.rules import Rule
from faults.model.timing import TRIGGERED, instant
from faults.model.world import KINDS

if TYPE_CHECKING:
    from faults.model.world import World

CALLS = ("pause", "resume", "edit", "reschedule", "move", "delete")


def change(world: World, job: JobId, what: str) -> Steps[None]:
    """Make one of `CALLS`; a call that changes nothing is answered too."""
    rows = world.database
    seen = rows.timers.get(job)
    if seen is None or (what == "delete" and world.chained and job in chains.PARENTS):
        return
    waiting = [key for key, run in rows.runs_of(job) if run.state in WAITING]
    server = rows.server
    transaction = Transaction(rows)
    target = (seen.shard + 1) % len(rows.shards.rows) if what == "move" else seen.shard
    yield from _lock_shards(world, transaction, seen.shard, target)
    timer = yield from transaction.lock(rows.timers, job)
    if timer is None or timer.shard != seen.shard:
        transaction.rollback()  # deleted or moved meanwhile: the caller starts over
        return
    at = world.now  # the one time of this change: what is due by then is, whatever comes later
    if what == "delete":
        yield from _cancel_waiting(world, transaction, job, waiting)
        transaction.put(rows.timers, job, None)
    else:
        if timer.thin and world.on(Rule.EDIT_ENDS_WHAT_WAS_DUE):
            yield from _end(world, transaction, job, "EDITED", partial(_was_due, world, timer, at))
        if what == "resume" or (what == "pause" and not world.on(Rule.EARLY_ROWS_KEPT)):
            yield from _skip_paused(world, transaction, job, timer, at)
        timer = transaction.get(rows.timers, job) or timer
        transaction.put(rows.timers, job, _changed(world, timer, what, target, at))
    yield from transaction.commit()
    if what in ("pause", "edit", "reschedule", "delete"):
        yield from _quiesce(world, job, timer.generation)
        if rows.server == server or not world.on(Rule.OK_ONE_TIMELINE):
            world.judge.ok(job, timer.generation)


def trigger(world: World, job: JobId) -> Steps[None]:
    """Insert a run now."""
    rows = world.database
    transaction = Transaction(rows)
    if world.on(Rule.INSERT_LOCKS_TIMER):
        timer = yield from transaction.lock(rows.timers, job, shared=True)
    else:
        timer = rows.timers.get(job)
        yield
    if timer is None:
        transaction.rollback()
        return
    run = Run("PENDING", timer.generation, timer.shard)
    transaction.insert(rows.runs, (job, TRIGGERED + world.name()), run)
    yield from transaction.commit()


def create(world: World) -> Steps[None]:
    """Another job."""
    job = len(world.jobs)
    world.jobs[job] = KINDS[job % len(KINDS)]
    transaction = Transaction(world.database)
    yield from transaction.lock(world.database.timers, job)
    timer = Timer(1, world.next_instant(), job % len(world.database.shards.rows))
    transaction.put(world.database.timers, job, timer)
    yield from transaction.commit()


def _lock_shards(world: World, transaction: Transaction, here: int, target: int) -> Steps[None]:
    shards = world.database.shards
    raises = target != here and world.on(Rule.MOVE_RAISES_EPOCH)
    if world.on(Rule.CALLS_LOCK_SHARD) or raises:
        for shard in sorted({here, target}):
            yield from transaction.lock(shards, shard)
    if raises:
        epoch = max(shards[here].epoch, shards[target].epoch) + 1
        if world.on(Rule.MOVE_CLOCK_FLOOR):
            epoch = max(epoch, world.now)
        transaction.put(shards, target, replace(shards[target], epoch=epoch))


def _changed(world: World, timer: Timer, what: str, target: int, at: int) -> Timer:
    new = replace(timer, generation=timer.generation + 1, shard=target, changed_at=at)
    if what == "pause" and not timer.paused:
        new = replace(new, paused=True, paused_at=at)
    if what == "resume" and timer.paused:
        new = replace(
            new, paused=False, due=max(timer.due, world.next_instant(thin=timer.thin, after=at))
        )
    if what == "reschedule":  # due again, from now on; it may meet rows that were inserted early
        thins = world.weather.ahead and not world.chained  # a chain's cycles are all instants
        thin = timer.thin ^ bool(thins and world.rng.random() < 0.7)
        new = replace(new, due=world.next_instant(thin=thin, after=at), thin=thin)
    return new


def _cancel_waiting(
    world: World, transaction: Transaction, job: JobId, seen: list[RunId]
) -> Steps[None]:
    rows = world.database
    if world.on(Rule.DELETE_LOCKS_RUNS):
        seen = [key for key, run in rows.runs_of(job) if run.state in LIVE]
    for key in sorted(seen):
        yield from transaction.lock(rows.runs, key)
    for key in seen:
        run = rows.runs[key]
        if run.state in WAITING:
            transaction.put(rows.runs, key, replace(run, state="CANCELLED"))


def _skip_paused(
    world: World, transaction: Transaction, job: JobId, timer: Timer, at: int
) -> Steps[None]:
    """Account for rows that were inserted early and fell due in the pause."""

    def fell_due(key: RunId, run: Run) -> bool:
        inside = timer.paused and timer.paused_at < instant(key[1]) <= at
        fresh = run.token == 0 or run.state == "RUNNING"
        return fresh and (inside or not world.on(Rule.EARLY_ROWS_KEPT))

    return _end(world, transaction, job, "PAUSED", fell_due)


def _was_due(world: World, timer: Timer, at: int, key: RunId, run: Run) -> bool:
    """Whether the schedule that is about to be replaced lacked it when it was due."""
    waits = replace(run, state="PENDING")
    return instant(key[1]) <= at and dispatch.edited_away(world, key, waits, timer)


def _end(
    world: World, transaction: Transaction, job: JobId, why: str, ends: Callable[[RunId, Run], bool]
) -> Steps[None]:
    """Skip those of the schedule's runs that end; one that a worker has, if it comes back
    unstarted.
    """
    rows = world.database
    out = [key for key, run in rows.runs_of(job) if run.state in ("PENDING", "RUNNING")]
    out = [key for key in out if key[1] < TRIGGERED]
    for key in sorted(out):
        yield from transaction.lock(rows.runs, key)
    for key in out:
        run = transaction.get(rows.runs, key)
        if run is None or not ends(key, run):
            continue
        if run.state == "PENDING":
            dispatch.skip(world, transaction, key, why)
        elif run.state == "RUNNING" and world.on(Rule.PAUSED_WHEN_BACK):
            transaction.put(rows.runs, key, replace(run, back=why))


def _quiesce(world: World, job: JobId, generation: int) -> Steps[None]:
    """Wait until each attempt up to this generation has started, was revoked, or has expired."""
    if not world.on(Rule.OK_WAITS):
        return
    out: list[tuple[RunId, Attempt]] = []
    for key, run in world.database.runs_of(job):
        sent = run.sent
        if not world.on(Rule.OK_ASKS_ENDED):
            sent = run.sent[-1:] if run.state == "RUNNING" else ()
        out += [
            (key, attempt)
            for attempt in sent
            if attempt.start_by >= world.now and attempt.generation <= generation
        ]
    answered: set[int] = set()
    for key, attempt in out:
        while world.now <= attempt.start_by and attempt.token not in answered:
            if world.rng.random() < 0.1:
                world.send(_question(world, key, attempt, answered))
            yield


def _question(world: World, key: RunId, attempt: Attempt, answered: set[int]) -> Callable[[], None]:
    """Ask its worker, by whichever member has it, to give an assignment up."""
    worker = world.workers[attempt.incarnation[0]]

    def ask() -> None:
        if worker.incarnation == attempt.incarnation:
            worker.revoke((key, attempt.token))  # it was given up, or has started
            world.send(lambda: answered.add(attempt.token))

    return ask
