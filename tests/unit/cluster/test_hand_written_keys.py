"""Keys written into etcd by hand: the cluster continues, and deletes what blocks it."""

from __future__ import annotations

import pytest

from schedd.core.cluster.coordination import NO_LEASE, CoordinationEntry, Put
from schedd.core.cluster.membership import HEIR, LEADER, MAP, encode_leader, member_key
from schedd.core.cluster.shard_map import ShardMap, decode, encode
from schedd.core.ids import SHARDS, ShardId, TenureId, Term, Timeline, new_id
from support import wait
from support.members import FakeCluster
from support.wait import wait_until_async

DEEP = b"[" * 100_000


async def wait_for_leader(cluster: FakeCluster) -> None:
    def holds() -> bool:
        entry = cluster.etcd.entries.get(LEADER)
        return entry is not None and entry.lease != NO_LEASE and cluster.leader() is not None

    await wait_until_async(holds, wait.WAIT_TIMEOUT, "a member to lead")


def stored_entry(cluster: FakeCluster, key: str) -> CoordinationEntry | None:
    return cluster.etcd.entries.get(key)


@pytest.mark.parametrize(
    "value", [b"garbage", b"", DEEP, encode_leader(TenureId(new_id()))], ids=["x", "", "deep", "id"]
)
async def test_an_election_key_written_by_hand_is_deleted_and_a_member_leads(
    value: bytes, caplog: pytest.LogCaptureFixture
):
    async with FakeCluster("a", "b") as cluster:
        await cluster.wait_until_stable()
        await cluster["a"].client.txn((), [Put(LEADER, value)])
        await wait_for_leader(cluster)
        await cluster.wait_until_stable()
    said = [line for line in caplog.messages if "invalid etcd key deleted: leader" in line]
    assert len(said) == 1


@pytest.mark.slow
@pytest.mark.parametrize("key", ["members/x", "members/", "workers/y", "heir", "stray/\udcff"])
async def test_garbage_under_a_key_neither_ends_nor_stalls_a_member(
    key: str, caplog: pytest.LogCaptureFixture
):
    async with FakeCluster("a", "b") as cluster:
        await cluster.wait_until_stable()
        await cluster["a"].client.txn((), [Put(key, DEEP)])
        cluster.start("c")
        await cluster.wait_until_stable()
        await wait_until_async(
            lambda: HEIR not in cluster.etcd.entries, wait.WAIT_TIMEOUT, "no heir to be left"
        )
    said = [line for line in caplog.messages if "invalid etcd keys ignored" in line]
    assert len(said) <= len("abc") + 1, "once for each member"


@pytest.mark.slow
async def test_a_map_of_a_far_term_is_replaced_by_a_leader_of_a_later_term():
    """Members follow no map of a lower term: else all would keep to this one."""
    async with FakeCluster("a", "b") as cluster:
        await cluster.wait_until_stable()
        strange = ShardMap(
            Term(1 << 50), {ShardId(at): TenureId(new_id()) for at in range(SHARDS)}, Timeline(1)
        )
        await cluster["a"].client.txn((), [Put(MAP, encode(strange))])

        def replaced() -> bool:
            entry = stored_entry(cluster, MAP)
            return entry is not None and decode(entry.value).term > strange.term

        await wait_until_async(replaced, wait.WAIT_TIMEOUT, "a map of a later term")
        await cluster.wait_until_stable()


async def test_a_member_whose_key_was_overwritten_serves_again():
    async with FakeCluster("a", "b") as cluster:
        await cluster.wait_until_stable()
        await cluster["a"].client.txn((), [Put(member_key("b"), DEEP)])

        def valid() -> bool:
            entry = stored_entry(cluster, member_key("b"))
            return entry is not None and entry.value != DEEP and entry.lease != NO_LEASE

        await wait_until_async(valid, wait.WAIT_TIMEOUT, "b to be registered")
        await cluster.wait_until_stable()


async def test_a_member_joins_despite_a_key_without_a_lease_under_its_name():
    async with FakeCluster("a") as cluster:
        await cluster.wait_until_stable()
        await cluster["a"].client.txn((), [Put(member_key("b"), b"garbage")])
        cluster.start("b")
        await cluster.wait_until_stable()
