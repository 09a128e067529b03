"""A planned change of leader, over fakes: the requested member leads, without a long wait."""

from __future__ import annotations

import asyncio
import time

import pytest

from schedd.cluster.leader.transfer import HEIR_TIMEOUT, LeadershipTransfers
from schedd.core.cluster.coordination import Get, Put
from schedd.core.cluster.membership import HEIR, ClusterView, Heir, encode_heir
from schedd.core.ids import Id, TenureId, Term, new_id
from support import wait
from support.members import Daemon, FakeCluster
from support.wait import wait_until_async


def succession(daemon: Daemon) -> LeadershipTransfers:
    cluster = daemon.member.cluster
    return LeadershipTransfers(daemon.client, cluster.until, lambda: cluster.lease)


def view(daemon: Daemon) -> ClusterView:
    return daemon.member.cluster.view()


def others(cluster: FakeCluster) -> list[str]:
    return [name for name in "abc" if name != cluster.leader()]


async def wait_for_one_map(cluster: FakeCluster) -> None:
    await cluster.wait_until_stable()
    await wait_until_async(
        lambda: len({view(cluster[name]).term for name in "abc"}) == 1,
        wait.WAIT_TIMEOUT,
        "one map for all",
    )


async def test_the_named_member_leads_under_a_higher_term_whichever_member_is_asked() -> None:
    """P2.8: the request decides who tries, election and term who leads."""
    async with FakeCluster("a", "b", "c") as cluster:
        for asked_of_leader in (True, False, False):
            await wait_for_one_map(cluster)
            old, (one, other) = cluster.leader(), others(cluster)
            assert old is not None
            asked = cluster[old if asked_of_leader else other]
            heir = cluster[one].tenure
            assert heir is not None
            before = view(asked)

            assert await succession(asked).ask(before, heir)
            async with asyncio.timeout(wait.WAIT_TIMEOUT):
                after = await succession(asked).follows(before.term)

            assert after.leader == heir
            assert after.term > before.term
            assert HEIR not in cluster.etcd.entries, "the request ends with the victory"


@pytest.mark.slow
async def test_no_shard_moves_with_leadership() -> None:
    async with FakeCluster("a", "b", "c") as cluster:
        await wait_for_one_map(cluster)
        rows = dict(cluster.rows.shards)
        one = cluster[others(cluster)[0]]
        assert one.tenure is not None
        before = view(one)
        assert await succession(one).ask(before, one.tenure)
        await succession(one).follows(before.term)
        await cluster.wait_until_stable()
        assert dict(cluster.rows.shards) == rows


@pytest.mark.slow
async def test_a_killed_heir_delays_the_election_only_until_the_timeout() -> None:
    """P2.8: a request alone must not leave the cluster without a leader."""
    async with FakeCluster("a", "b", "c") as cluster:
        await wait_for_one_map(cluster)
        old, (one, other) = cluster.leader(), others(cluster)
        assert old is not None
        heir, before = cluster[one].tenure, view(cluster[other])
        assert heir is not None
        cluster.kill(one)
        began = time.monotonic()
        assert await succession(cluster[other]).ask(before, heir)
        async with asyncio.timeout(wait.WAIT_TIMEOUT):
            after = await succession(cluster[other]).follows(before.term)
        assert after.leader in {cluster[old].tenure, cluster[other].tenure}
        assert time.monotonic() - began >= HEIR_TIMEOUT * 0.9, "it had its chance"


async def test_a_request_of_another_term_changes_nothing_and_is_deleted() -> None:
    """P2.8: it was heeded, or came to nothing; it must not depose the next leader."""
    async with FakeCluster("a", "b", "c") as cluster:
        await wait_for_one_map(cluster)
        old, (one, _) = cluster.leader(), others(cluster)
        heir = cluster[one].tenure
        assert heir is not None
        term = cluster.rows.term
        stale = Heir(heir, Term(term - 1))
        await cluster[one].client.txn((), [Put(HEIR, encode_heir(stale))])
        await wait_until_async(
            lambda: HEIR not in cluster.etcd.entries, wait.WAIT_TIMEOUT, "it to be deleted"
        )
        assert (cluster.leader(), cluster.rows.term) == (old, term)


async def test_a_request_for_an_absent_member_is_deleted() -> None:
    async with FakeCluster("a", "b", "c") as cluster:
        await wait_for_one_map(cluster)
        old, (one, _) = cluster.leader(), others(cluster)
        term = cluster.rows.term
        assert await succession(cluster[one]).ask(view(cluster[one]), TenureId(new_id()))
        await wait_until_async(
            lambda: HEIR not in cluster.etcd.entries, wait.WAIT_TIMEOUT, "it to be deleted"
        )
        assert (cluster.leader(), cluster.rows.term) == (old, term)


async def test_a_second_request_or_one_of_an_earlier_term_is_rejected() -> None:
    async with FakeCluster("a", "b", "c") as cluster:
        await wait_for_one_map(cluster)
        one = cluster[others(cluster)[0]]
        assert one.tenure is not None
        known = view(one)
        other = Heir(TenureId(Id.from_int(9)), Term(1))
        await one.client.txn((), [Put(HEIR, encode_heir(other))])
        assert not await succession(one).ask(known, one.tenure)
        await wait_until_async(
            lambda: HEIR not in cluster.etcd.entries, wait.WAIT_TIMEOUT, "it to be deleted"
        )
        assert await succession(one).ask(known, one.tenure)
        await succession(one).follows(known.term)
        assert not await succession(one).ask(known, one.tenure), "that leader is none any more"
        assert (await one.client.txn((), [Get(HEIR)])).read == (None,)


async def test_a_request_is_deleted_with_the_member_that_made_it() -> None:
    async with FakeCluster("a", "b", "c") as cluster:
        await wait_for_one_map(cluster)
        one = cluster[others(cluster)[0]]
        cluster[cluster.leader() or ""].client.cut = True
        assert one.tenure is not None
        assert await succession(one).ask(view(one), one.tenure)
        assert cluster.etcd.entries[HEIR].lease == one.member.cluster.lease
