"""Marks, and what is done with a database that went back by more than a fail-over's tail.

the leader:   PostgreSQL ← mark, committed ──then──→ etcd ← the same mark
a new term:   what etcd remembers − what the database has
                nothing, or a tail ─→ continue
                more               ─→ hold it from its mark on, write workers off,
                                      end what waits and runs at most once
a person:     resumes it, and chooses what is caught up
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from faults.model import dispatch
from faults.model.holds import Cluster, Hold
from faults.model.rows import (
    WAITING,
    Abort,
    Incarnation,
    IncarnationId,
    Run,
    Steps,
    TenureId,
    Transaction,
)
from faults.model.rules import Rule
from faults.model.timing import DOUBT, TOLERATED, TRIGGERED, instant

if TYPE_CHECKING:
    from faults.model.owner import Member
    from faults.model.world import World

Mandate = tuple[TenureId, int]
"""Elected tenure, and which life of the key that is."""


def look(member: Member, mandate: Mandate, term: int) -> Steps[None]:
    """Compare, and do what follows; then the first mark of the term."""
    world = member.world
    member.look()
    found = world.database.present.mark
    yield
    if world.etcd.leader != mandate:
        raise Abort
    remembered = world.etcd.mark
    if remembered > found:
        world.judge.alarms(remembered)
    yield
    if remembered - found > TOLERATED:
        yield from hold(world, member.transaction(), term, remembered + DOUBT)
        yield from _end_doubtful(member, term)
    elif world.database.present.paused:  # its leader died in it, and etcd forgot: seed 197028083
        yield from _end_doubtful(member, term)
    yield from mark(member, mandate, term)


def mark(member: Member, mandate: Mandate, term: int) -> Steps[None]:
    """Make the next mark."""
    world, rows = member.world, member.world.database
    made = max(world.now, rows.present.mark + 1)
    first = world.on(Rule.MARK_COMMITTED_FIRST)
    if not first:
        _remember(world, mandate, made)
        yield
    transaction = member.transaction()
    yield from under(transaction, term)
    row = yield from transaction.lock(rows.cluster, "cluster")
    assert row is not None
    made = max(made, row.mark + 1) if first else made
    transaction.put(rows.cluster, "cluster", replace(row, mark=made))
    yield from transaction.commit()
    if first:
        yield
        _remember(world, mandate, made)


def _remember(world: World, mandate: Mandate, made: int) -> None:
    if world.etcd.leader != mandate:
        raise Abort
    world.etcd.mark = made


def under(transaction: Transaction, term: int | None) -> Steps[None]:
    """Hold the term. None: an operator, while no member can lead. Raises Abort when it ends."""
    if term is None:
        return
    row = yield from transaction.lock(transaction.database.terms, "term", shared=True)
    if row is None or row.term != term:
        transaction.rollback()
        raise Abort


def hold(world: World, transaction: Transaction, term: int | None, until: int) -> Steps[None]:
    """Pause it from its mark on, and write every worker off."""
    rows = world.database
    yield from under(transaction, term)
    row = yield from _locked(world, transaction)
    began = row.mark if world.on(Rule.HOLD_FROM_MARK) else world.now
    held = Hold(began, until)
    if row.paused:
        [*before, present] = row.holds
        held = replace(
            present,
            began=min(present.began, began),
            lost_until=max(present.lost_until, until),
        )
        row = replace(row, holds=tuple(before))
    after = replace(row, switched=row.switched + 1, holds=(*row.holds, held))
    transaction.put(rows.cluster, "cluster", after)
    if world.on(Rule.WORKERS_WRITTEN_OFF):
        for incarnation in sorted(rows.incarnations.rows):
            yield from transaction.lock(rows.incarnations, incarnation)
            transaction.put(rows.incarnations, incarnation, Incarnation(lost=True))
    if world.on(Rule.REPORTS_WAITED_FOR):
        for key in sorted(rows.runs.rows):
            yield from transaction.lock(rows.runs, key)
    yield from transaction.commit()


def _end_doubtful(member: Member, term: int) -> Steps[None]:
    """End waiting runs that run at most once: they may have run."""
    world, rows = member.world, member.world.database
    if not world.on(Rule.DOUBTFUL_ENDED):
        return
    for key in sorted(rows.runs.rows):
        if not world.jobs[key[0]].at_most_once or rows.runs[key].state not in WAITING:
            continue
        transaction = member.transaction()
        yield from under(transaction, term)
        run = yield from transaction.lock(rows.runs, key)
        if run is not None and run.state in WAITING:
            transaction.put(rows.runs, key, replace(run, state="FAILED"))
        yield from transaction.commit()


def resume(world: World, since: int | None) -> Steps[None]:
    """Resume by a person. `since`: what is caught up; None: nothing."""
    rows = world.database
    transaction = Transaction(rows)
    row = yield from _locked(world, transaction)
    if not row.paused:
        transaction.rollback()
        return
    held = replace(row.holds[-1], ended=world.now, since=since)
    for key in sorted(rows.runs.rows):
        if key[1] < TRIGGERED and held.skips(instant(key[1])):
            run = yield from transaction.lock(rows.runs, key)
            if run is not None and run.state == "PENDING" and run.token == 0:
                dispatch.skip(world, transaction, key, "PAUSED")
            elif run is not None and run.state == "RUNNING" and world.on(Rule.PAUSED_WHEN_BACK):
                transaction.put(rows.runs, key, replace(run, back="PAUSED"))
    held = replace(held, ended=max(world.now, held.began))
    after = replace(row, switched=row.switched + 1, holds=(*row.holds[:-1], held))
    transaction.put(rows.cluster, "cluster", after)
    yield from transaction.commit()


def _locked(world: World, transaction: Transaction) -> Steps[Cluster]:
    """Every shard's row first, then the cluster's."""
    rows = world.database
    for shard in sorted(rows.shards.rows):
        yield from transaction.lock(rows.shards, shard)
    row = yield from transaction.lock(rows.cluster, "cluster")
    assert row is not None
    return row


def may_have_run(world: World, at: int, once: bool, cluster: Cluster) -> bool:
    """Whether an instant that isn't accounted for is one that runs at most once, and may have run
    in what was lost: late, from before the mark, too.
    """
    if not once or not world.on(Rule.ONCE_NOT_CAUGHT_UP):
        return False
    late = world.on(Rule.ONCE_LATE_NEITHER)
    return any(
        hold.ended is not None and at <= hold.doubtful_until and (late or at > hold.began)
        for hold in cluster.holds
    )


def doubted(world: World, run: Run, named: IncarnationId | None) -> bool:
    """Whether a run that this incarnation has may have been taken from it in what was lost."""
    row = world.database.incarnations.get(named) if named is not None else None
    lost = row is not None and row.lost
    return lost and run.sent[-1].at <= world.database.present.doubtful_until
