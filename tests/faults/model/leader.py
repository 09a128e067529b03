"""The leader: elected through etcd, under a term of PostgreSQL; it looks, fences, maps and marks.

    campaign ─→ raise the term ─→ look at the marks (`recovery`) ─→ fence, map, mark, and again

What it writes into PostgreSQL holds its term, what it writes into etcd compares its life of the
key. Two may believe to lead at once. Only a tenure that a map names takes shards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from faults.model import recovery
from faults.model.recovery import Mandate, under
from faults.model.rows import Abort, Steps, Tenure, TenureId, Term
from faults.model.rules import Rule
from faults.model.timing import MARK_EVERY

if TYPE_CHECKING:
    from faults.model.owner import Member


def leading(member: Member) -> Steps[None]:
    """Lead whenever there is no leader."""
    world, etcd = member.world, member.world.etcd
    while not member.over:
        yield
        if etcd.leader is not None or member.tenure not in etcd.members:
            member.rest(world.rng.randint(10, MARK_EVERY // 2))
            continue
        etcd.leader = mandate = (member.tenure, world.name())
        try:
            yield from _term(member, mandate)
        except Abort:
            continue
        finally:
            if etcd.leader == mandate:
                etcd.leader = None


def _term(member: Member, mandate: Mandate) -> Steps[None]:
    world = member.world
    term = yield from _raise(member, mandate)
    looked = world.on(Rule.LOOK_BEFORE_MAP)
    if looked:
        yield from recovery.look(member, mandate, term)
    while True:
        yield from _fence_departed(member, term)
        _map(member, mandate)
        yield
        if not looked:
            yield from recovery.look(member, mandate, term)
            looked = True
        yield from recovery.mark(member, mandate, term)
        member.rest(world.rng.randint(10, MARK_EVERY))
        yield


def _raise(member: Member, mandate: Mandate) -> Steps[int]:
    world = member.world
    rows = world.database
    seen = rows.terms["term"]
    yield
    if world.etcd.leader != mandate:
        raise Abort
    transaction = member.transaction()
    row = yield from transaction.lock(rows.terms, "term")
    if row is None or row != seen:
        transaction.rollback()
        raise Abort
    floor = world.now if world.on(Rule.EPOCH_CLOCK_FLOOR) else 0
    term = max(row.term + 1, floor)
    transaction.put(rows.terms, "term", Term(term))
    yield from transaction.commit()
    return term


def _fence_departed(member: Member, term: int) -> Steps[None]:
    """Tenures first, then the keys: who joins meanwhile isn't fenced."""
    rows, etcd = member.world.database, member.world.etcd
    unfenced = _unfenced(member)
    yield
    for tenure in sorted(unfenced - etcd.members):
        transaction = member.transaction()
        yield from under(transaction, term)
        yield from transaction.lock(rows.tenures, tenure)
        transaction.put(rows.tenures, tenure, Tenure(fenced=True))
        yield from transaction.commit()


def _map(member: Member, mandate: Mandate) -> None:
    etcd = member.world.etcd
    member.look()
    if etcd.leader != mandate:
        raise Abort
    etcd.mapped = frozenset(_unfenced(member) & etcd.members)


def _unfenced(member: Member) -> set[TenureId]:
    rows: Iterable[tuple[TenureId, Tenure]] = member.world.database.tenures.rows.items()
    return {tenure for tenure, row in rows if not row.fenced}
