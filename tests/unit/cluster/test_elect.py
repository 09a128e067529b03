"""Elections: one wins, and no doubt counts as a victory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedd.cluster.leader.term import Mandate, TermOver, campaign, holds, open_term, withdraw
from schedd.core.cluster.coordination import Delete, Put
from schedd.core.cluster.membership import HEIR, LEADER, Heir, encode_heir, encode_leader
from schedd.core.ids import Id, TenureId, Term
from schedkit.errors import Unavailable
from support.fakes import FakeCoordination, FakeDatabase, FakeEtcd, FakeMembershipStore

A, B = TenureId(Id.from_int(1)), TenureId(Id.from_int(2))


@pytest.fixture
def etcd() -> FakeCoordination:
    return FakeCoordination(FakeEtcd())


@pytest.fixture
def store() -> FakeMembershipStore:
    return FakeMembershipStore(FakeDatabase())


async def elect(etcd: FakeCoordination, tenure: TenureId) -> Mandate:
    mandate = await campaign(etcd, tenure, (await etcd.grant(5)).id)
    assert mandate is not None
    return mandate


async def test_one_of_two_is_elected(etcd: FakeCoordination) -> None:
    mandate = await elect(etcd, A)
    assert await holds(etcd, mandate)
    assert await campaign(etcd, B, (await etcd.grant(5)).id) is None


async def test_the_leader_key_is_deleted_with_its_lease(etcd: FakeCoordination) -> None:
    lease = await etcd.grant(5)
    mandate = await campaign(etcd, A, lease.id)
    assert mandate is not None
    await etcd.revoke(lease.id)
    assert not await holds(etcd, mandate)
    assert await campaign(etcd, B, (await etcd.grant(5)).id)


async def test_a_campaign_with_a_lost_answer_fails_and_its_key_is_removed(
    etcd: FakeCoordination,
) -> None:
    """M8: who can't know that it won doesn't lead."""
    etcd.loses_answers = 1
    with pytest.raises(Unavailable):
        await campaign(etcd, A, (await etcd.grant(5)).id)
    assert await etcd.get(LEADER)
    await withdraw(etcd, A)
    assert await etcd.get(LEADER) is None


async def test_a_victory_of_any_member_deletes_the_request_for_an_heir(
    etcd: FakeCoordination,
) -> None:
    await etcd.txn((), [Put(HEIR, encode_heir(Heir(B, Term(1))))])
    await elect(etcd, A)
    assert await etcd.get(HEIR) is None


async def test_a_member_never_deletes_the_key_of_another(etcd: FakeCoordination) -> None:
    mandate = await elect(etcd, A)
    await withdraw(etcd, B)
    assert await holds(etcd, mandate)


async def test_a_recreated_key_is_no_mandate_even_with_the_same_value(
    etcd: FakeCoordination,
) -> None:
    """P2.2: in between another may have led."""
    mandate = await elect(etcd, A)
    await etcd.txn((), [Delete(LEADER)])
    await etcd.txn((), [Put(LEADER, encode_leader(A))])
    assert not await holds(etcd, mandate)


async def test_a_leader_key_of_another_member_at_the_same_revision_gives_no_mandate(
    etcd: FakeCoordination,
) -> None:
    """P2.2: a restored etcd counts its revisions again, so a life may come twice."""
    mandate = await elect(etcd, A)
    entry = etcd.etcd.entries[LEADER]
    etcd.etcd.entries[LEADER] = replace(entry, value=encode_leader(B))
    assert not await holds(etcd, mandate)


async def test_each_leadership_has_a_higher_term(
    etcd: FakeCoordination, store: FakeMembershipStore
) -> None:
    first = await open_term(etcd, store, await elect(etcd, A), lambda: True)
    await withdraw(etcd, A)
    second = await open_term(etcd, store, await elect(etcd, B), lambda: True)
    assert second.term > first.term


async def test_no_term_begins_when_the_key_was_deleted_after_the_term_was_read(
    etcd: FakeCoordination, store: FakeMembershipStore
) -> None:
    """P2.2: who slept there would depose its successor."""
    mandate = await elect(etcd, A)
    await etcd.txn((), [Delete(LEADER)])
    with pytest.raises(TermOver):
        await open_term(etcd, store, mandate, lambda: True)
    assert store.rows.term == Term(0)


async def test_no_term_begins_without_trust(
    etcd: FakeCoordination, store: FakeMembershipStore
) -> None:
    """P2.2: the key may be gone any moment."""
    with pytest.raises(TermOver):
        await open_term(etcd, store, await elect(etcd, A), lambda: False)
    assert store.rows.term == Term(0)


async def test_a_term_that_another_raised_meanwhile_isnt_raised_again(
    etcd: FakeCoordination, store: FakeMembershipStore
) -> None:
    mandate = await elect(etcd, A)

    def slept() -> bool:
        store.rows.term = Term(7)
        return True

    with pytest.raises(TermOver):
        await open_term(etcd, store, mandate, slept)
    assert store.rows.term == Term(7)
