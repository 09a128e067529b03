"""Handling of a worker's messages by any member, with or without a tenure.

The token alone protects the row; the acknowledgement comes after the COMMIT.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from faults.model import dispatch, recovery
from faults.model.rows import WAITING, Abort, Incarnation, IncarnationId, Run, RunId, Steps
from faults.model.rows import Transaction as Transact
from faults.model.rules import Rule
from faults.model.timing import SPOOL_WITHIN

if TYPE_CHECKING:
    from faults.model.worker import Key, Worker
    from faults.model.world import World

MAX_ATTEMPTS = 3


def collect(world: World, worker: Worker, key: Key, outcome: str) -> Steps[None]:
    """Store a result, then acknowledge it."""
    (run, token), result = key, (key[1], outcome)
    if not world.on(Rule.ACKNOWLEDGE_AFTER_COMMIT):
        _acknowledge(world, worker, key, outcome, stale=False)
    transaction = Transact(world.database)
    row = yield from transaction.lock(world.database.runs, run)
    if row is not None and _fits(world, row, token):
        after = replace(_after(world, run, row, outcome), results=(*row.results, result))
        transaction.put(world.database.runs, run, after)
        yield from transaction.commit()
        stale = False
    else:
        transaction.rollback()
        stale = row is None or result not in row.results or not world.on(Rule.DIGEST_KNOWN)
    if world.on(Rule.ACKNOWLEDGE_AFTER_COMMIT):
        _acknowledge(world, worker, key, outcome, stale=stale)


def same_attempt(world: World, row: Run, token: int) -> bool:
    """Whether a row is still RUNNING under this token."""
    return row.state == "RUNNING" and (row.token == token or not world.on(Rule.BACK_COMPARES_TOKEN))


def put_back(
    world: World, transaction: Transact, key: RunId, token: int, *, owner: bool = False
) -> Steps[None]:
    """An assignment that never started returns to its queue, no attempt spent. Not one of a worker
    that is written off: what it doesn't have may have run in what was lost, and what it refuses may
    have been refused there.
    """
    rows = world.database
    row = yield from transaction.lock(rows.runs, key)
    if row is None or not same_attempt(world, row, token):
        transaction.rollback()
        return
    gone = rows.incarnations.get(row.incarnation) if row.incarnation else None
    if owner:
        kept = gone is not None and gone.lost and world.on(Rule.BACK_NOT_OF_LOST)
    else:
        kept = recovery.doubted(world, row, row.incarnation) and world.on(Rule.REFUSAL_DOUBTED)
    if kept:
        transaction.rollback()
        return
    row = _back(world, key, row)
    pre_dispatched = row.sent[-1].pre_dispatched and row.attempt == 0
    if pre_dispatched and world.on(Rule.BACK_AS_FRESH):
        row = replace(row, token=0)
    transaction.put(rows.runs, key, row)
    if row.back and row.state == "PENDING":
        # Its turn is given back too, while the job may be changed.
        yield from transaction.lock(rows.timers, key[0])
        dispatch.skip(world, transaction, key, row.back)
    yield from transaction.commit()


def refused(world: World, key: Key, sender: IncarnationId) -> Steps[None]:
    """A worker didn't take an assignment, or gave it up before its start. Another incarnation than
    the one it was given to can't know whether it was started.
    """
    yield
    row = world.database.runs.get(key[0])
    own = row is not None and row.incarnation == sender
    if own or not world.on(Rule.REFUSAL_OF_ITS_OWN):
        yield from put_back(world, Transact(world.database), *key)


def refresh(world: World, worker: Worker, incarnation: IncarnationId) -> Steps[None]:
    """Handle a heartbeat: keep the lease, or make the key again unless the loss is written."""
    yield
    row = world.database.incarnations.get(incarnation)
    if row is None or row.lost:  # without a row: it went with what was lost
        world.send(lambda: worker.written_off(incarnation))
    elif not world.etcd.refresh(incarnation, world.now):
        yield
        if worker.incarnation == incarnation:
            world.etcd.create(incarnation, world.now)


def greet(world: World, worker: Worker, new: IncarnationId, spooled: frozenset[Key]) -> Steps[None]:
    """A hello: the incarnation is registered, and the earlier ones of its spool are ended, once the
    results in it are stored or refused.
    """
    yield from _register(world, new)
    if worker.incarnation != new:
        return
    worker.attached = new
    world.etcd.create(new, world.now)
    until = world.now + SPOOL_WITHIN
    while world.now < until and any(_runs(world, key) for key in spooled):
        yield
    for number in range(new[1]):
        earlier = (new[0], number)
        if not getattr(world.database.incarnations.get(earlier), "lost", True):
            yield from _write_off(world, earlier)
        world.etcd.delete(earlier)


def _fits(world: World, row: Run, token: int) -> bool:
    if not world.on(Rule.RESULT_COMPARES_STATE):
        return row.token == token
    return row.state == "RUNNING" and (
        row.token == token or not world.on(Rule.RESULT_COMPARES_TOKEN)
    )


def _after(world: World, key: RunId, row: Run, outcome: str) -> Run:
    """Return the run after the end of its attempt."""
    if outcome == "SUCCEEDED":
        return replace(row, state="SUCCEEDED")
    if outcome == "RETURNED":
        once = world.jobs[key[0]].at_most_once and world.on(Rule.AT_MOST_ONCE_RETURNED)
        once = once or _may_have_reported(world, key, row)
        return replace(row, state="FAILED") if once else _back(world, key, row)
    if row.attempt >= MAX_ATTEMPTS or _may_have_reported(world, key, row):
        return replace(row, state="FAILED")
    return _waits(world, key, replace(row, state="RETRYING"))


def _may_have_reported(world: World, key: RunId, row: Run) -> bool:
    """Whether it may have been reported in what was lost already, and the run begun again there."""
    once = world.jobs[key[0]].at_most_once and world.on(Rule.REPORT_DOUBTED)
    return once and row.sent[-1].at <= world.database.present.doubtful_until


def _back(world: World, key: RunId, row: Run) -> Run:
    state = "RETRYING" if row.attempt > 1 else "PENDING"
    return _waits(world, key, replace(row, state=state, attempt=row.attempt - 1))


def _waits(world: World, key: RunId, run: Run) -> Run:
    """Nothing waits of a job that is deleted; read after the run's lock."""
    assert run.state in WAITING
    there = world.database.timers.get(key[0]) is not None
    return run if there else replace(run, state="CANCELLED")


def _runs(world: World, key: Key) -> bool:
    row = world.database.runs.get(key[0])
    return row is not None and (row.state, row.token) == ("RUNNING", key[1])


def _acknowledge(world: World, worker: Worker, key: Key, outcome: str, *, stale: bool) -> None:
    world.judge.acknowledges(key[0], (key[1], outcome), stale=stale)
    world.send(lambda: worker.acknowledged(key))


def _register(world: World, incarnation: IncarnationId) -> Steps[None]:
    """Until it is known to stand there."""
    while world.database.incarnations.get(incarnation) is None:
        try:
            transaction = Transact(world.database)
            rows = world.database.incarnations
            if (yield from transaction.lock(rows, incarnation)) is None:
                transaction.put(rows, incarnation, Incarnation())
            yield from transaction.commit()
        except Abort:
            yield


def _write_off(world: World, incarnation: IncarnationId) -> Steps[None]:
    while not getattr(world.database.incarnations.get(incarnation), "lost", True):
        try:
            transaction = Transact(world.database)
            rows = world.database.incarnations
            if (yield from transaction.lock(rows, incarnation)) is not None:
                transaction.put(rows, incarnation, Incarnation(lost=True))
            yield from transaction.commit()
        except Abort:
            yield
