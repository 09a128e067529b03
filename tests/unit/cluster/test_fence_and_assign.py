"""A leader fences lost members, assigns shards to the remaining ones, and writes that once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from schedd.cluster.leader.candidate import Census, fence_departed, publish
from schedd.cluster.leader.term import Leadership, TermOver, campaign, open_term
from schedd.core.cluster.coordination import Delete, Put
from schedd.core.cluster.membership import LEADER, MAP, MemberView, encode_member, member_key
from schedd.core.cluster.partition import assign
from schedd.core.cluster.shard_map import ShardMap, decode
from schedd.core.ids import SHARDS, Id, TenureId, Term, new_id
from schedd.core.runs.model import Tenure
from schedkit.clock import utcnow
from support.fakes import FakeCoordination, FakeDatabase, FakeEtcd, FakeMembershipStore


def a_member(
    name: str, *, weight: int = 100, draining: bool = False, attached: bool = False
) -> MemberView:
    return MemberView(
        name=name,
        tenure=TenureId(new_id()),
        grpc=f"{name}:7420",
        http=f"{name}:7421",
        weight=weight,
        version="",
        tzdata="",
        draining=draining,
        attached=attached,
    )


def owners(members: Sequence[MemberView]) -> set[str]:
    names = {member.tenure: member.name for member in members}
    assigned = assign(members)
    assert len(assigned) in (0, SHARDS)
    return {names[tenure] for tenure in assigned.values()}


def test_shards_are_assigned_to_all_members_with_weight() -> None:
    assert owners([a_member("a"), a_member("b"), a_member("c", weight=0)]) == {"a", "b"}


def test_a_draining_member_gets_no_shards() -> None:
    assert owners([a_member("a", draining=True), a_member("b")]) == {"b"}


def test_draining_members_get_shards_when_all_members_drain() -> None:
    assert owners([a_member("a", draining=True), a_member("b", draining=True)]) == {"a", "b"}


def test_a_member_without_a_worker_gets_none_while_another_has_one() -> None:
    """P4.6: it could dispatch its runs only through another member."""
    assert owners([a_member("a", attached=True), a_member("b")]) == {"a"}


def test_a_worker_at_a_draining_member_does_not_count() -> None:
    assert owners([a_member("a", attached=True, draining=True), a_member("b")]) == {"b"}


def test_no_shard_is_assigned_if_no_member_may_own_one() -> None:
    assert owners([a_member("a", weight=0)]) == set()
    assert owners([]) == set()


class Throne:
    """A leader over fakes."""

    def __init__(self) -> None:
        self.etcd = FakeCoordination(FakeEtcd())
        self.store = FakeMembershipStore(FakeDatabase())
        self.trusted = True

    async def reign(self) -> Leadership:
        mandate = await campaign(self.etcd, TenureId(Id.from_int(1)), (await self.etcd.grant(5)).id)
        assert mandate is not None
        return await open_term(self.etcd, self.store, mandate, lambda: self.trusted)

    async def put_key(self, member: MemberView) -> None:
        await self.etcd.txn((), [Put(member_key(member.name), encode_member(member))])

    async def put_row(self, member: MemberView) -> None:
        await self.store.open_tenure(Tenure(member.tenure, member.name, utcnow()))


@pytest.fixture
def throne() -> Throne:
    return Throne()


async def test_a_tenure_without_a_key_is_fenced(throne: Throne) -> None:
    leadership, here, gone = await throne.reign(), a_member("here"), a_member("gone")
    await throne.put_key(here)
    await throne.put_row(here)
    await throne.put_row(gone)
    census = await fence_departed(throne.etcd, throne.store, leadership)
    assert census == Census(active=(here,), joining=())
    assert throne.store.rows.fenced(gone.tenure)
    assert not throne.store.rows.fenced(here.tenure)


async def test_a_member_without_a_row_doesnt_count_yet(throne: Throne) -> None:
    """P2.3: it may take nothing until its tenure is written."""
    leadership, joining = await throne.reign(), a_member("joining")
    await throne.put_key(joining)
    census = await fence_departed(throne.etcd, throne.store, leadership)
    assert census == Census(active=(), joining=(joining,))


async def test_an_earlier_tenure_of_a_name_is_fenced(throne: Throne) -> None:
    leadership, before, after = await throne.reign(), a_member("m"), a_member("m")
    await throne.put_row(before)
    await throne.put_row(after)
    await throne.put_key(after)
    census = await fence_departed(throne.etcd, throne.store, leadership)
    assert census == Census(active=(after,), joining=())
    assert throne.store.rows.fenced(before.tenure)


async def test_a_leader_of_an_earlier_term_fences_no_member(throne: Throne) -> None:
    leadership, gone = await throne.reign(), a_member("gone")
    await throne.put_row(gone)
    throne.store.rows.term = Term(leadership.term + 1)
    with pytest.raises(TermOver):
        await fence_departed(throne.etcd, throne.store, leadership)
    assert not throne.store.rows.fenced(gone.tenure)


async def test_a_leader_without_trust_fences_no_member_and_writes_no_map(throne: Throne) -> None:
    leadership, gone = await throne.reign(), a_member("gone")
    await throne.put_row(gone)
    throne.trusted = False
    with pytest.raises(TermOver):
        await fence_departed(throne.etcd, throne.store, leadership)
    with pytest.raises(TermOver):
        await publish(throne.etcd, leadership, ShardMap(leadership.term))
    assert not throne.store.rows.fenced(gone.tenure)
    assert await throne.etcd.get(MAP) is None


async def test_an_unchanged_map_isnt_written_again(throne: Throne) -> None:
    leadership = await throne.reign()
    shard_map = ShardMap(leadership.term, assign([a_member("a"), a_member("b")]))
    assert await publish(throne.etcd, leadership, shard_map)
    revision = throne.etcd.etcd.revision
    assert not await publish(throne.etcd, leadership, shard_map)
    assert throne.etcd.etcd.revision == revision


async def test_each_term_writes_its_own_map(throne: Throne) -> None:
    first = await throne.reign()
    shards = assign([a_member("a")])
    await publish(throne.etcd, first, ShardMap(first.term, shards))
    await throne.etcd.txn((), [Delete(LEADER)])
    second = await throne.reign()
    assert await publish(throne.etcd, second, ShardMap(second.term, shards))
    entry = await throne.etcd.get(MAP)
    assert entry is not None
    assert decode(entry.value).term == second.term


async def test_a_leader_that_was_replaced_cant_overwrite_the_map(throne: Throne) -> None:
    first = await throne.reign()
    await throne.etcd.txn((), [Delete(LEADER)])
    second = await throne.reign()
    await publish(throne.etcd, second, ShardMap(second.term, assign([a_member("b")])))
    before = await throne.etcd.get(MAP)
    with pytest.raises(TermOver):
        await publish(throne.etcd, first, ShardMap(first.term, assign([a_member("a")])))
    assert await throne.etcd.get(MAP) == before


async def test_a_member_that_joins_meanwhile_is_not_fenced(throne: Throne) -> None:
    """P2.3: the rows are read before the list. Were it the other way round, one that joined
    between the two would have a row and no key.
    """
    leadership, newcomer = await throne.reign(), a_member("newcomer")

    class Joining(FakeMembershipStore):
        async def unfenced_tenures(self) -> list[Tenure]:
            await throne.put_key(newcomer)
            await throne.put_row(newcomer)
            return await super().unfenced_tenures()

    await fence_departed(throne.etcd, Joining(throne.store.rows), leadership)
    assert not throne.store.rows.fenced(newcomer.tenure)


async def test_a_leader_replaced_between_read_and_write_writes_no_map(
    throne: Throne,
) -> None:
    """P2.2: the write itself carries the guards."""
    first = await throne.reign()

    def slept() -> bool:
        throne.etcd.etcd.txn((), [Delete(LEADER)], ())
        return True

    asleep = replace(first, trusted=slept)
    with pytest.raises(TermOver):
        await publish(throne.etcd, asleep, ShardMap(first.term, assign([a_member("a")])))
    assert await throne.etcd.get(MAP) is None
