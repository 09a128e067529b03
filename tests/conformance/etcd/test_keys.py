"""Keys and transactions, against the real etcd."""

from __future__ import annotations

import asyncio

import pytest

from schedd.core.cluster.coordination import (
    Compare,
    CoordinationEntry,
    Delete,
    DeletePrefix,
    Field,
    Get,
    LeaseId,
    Put,
    Relation,
    Revision,
)
from schedd.etcd.client import EtcdClient
from schedd.etcd.errors import EtcdRefused, LeaseGone, RevisionGone


async def test_a_key_is_read_as_it_was_written(client: EtcdClient):
    revision = await client.put("a", b"\x00one\xff")

    assert await client.get("a") == CoordinationEntry("a", b"\x00one\xff", revision, revision, 1)
    assert await client.get("b") is None


async def test_a_second_write_keeps_the_create_revision_and_a_recreated_key_has_another(client):
    first = await client.put("a", b"1")
    second = await client.put("a", b"2")
    assert await client.get("a") == CoordinationEntry("a", b"2", first, second, 2)

    assert await client.delete("a")
    assert not await client.delete("a")
    third = await client.put("a", b"3")
    assert await client.get("a") == CoordinationEntry("a", b"3", third, third, 1)


async def test_a_listing_holds_the_keys_under_its_prefix_and_no_others(client):
    for key in ("members/b", "members/a", "members0", "member", "workers/a"):
        await client.put(key, key.encode())

    listing = await client.list("members/")

    assert [entry.key for entry in listing] == ["members/a", "members/b"]
    assert listing.get("members/b").value == b"members/b"
    assert listing.get("members/c") is None
    assert listing.revision == (await client.get("workers/a")).mod_revision
    assert len(await client.list("")) == 5


async def test_a_listing_of_many_pages_is_the_state_of_one_revision(client):
    keys = [f"many/{number:05}" for number in range(4_500)]
    for start in range(0, len(keys), 100):
        await client.txn((), [Put(key, b"") for key in keys[start : start + 100]])

    listing = await client.list("many/")

    assert [entry.key for entry in listing] == keys
    assert listing.revision == listing.entries[-1].mod_revision


async def test_every_comparison_means_what_the_core_says(client):
    lease = (await client.grant(60)).id
    await client.put("fresh", b"b")
    await client.put("rewritten", b"a")
    await client.put("rewritten", b"b")
    await client.put("leased", b"b", lease)
    for key in ("absent", "fresh", "rewritten", "leased"):
        entry = await client.get(key)
        for field in Field:
            for relation in Relation:
                for operand in _operands(entry, field, lease):
                    compare = Compare(key, field, relation, operand)
                    result = await client.txn([compare], [])
                    assert result.succeeded == compare.holds(entry), (compare, entry)
    await client.revoke(lease)


def _operands(entry: CoordinationEntry | None, field: Field, lease: LeaseId) -> list[int | bytes]:
    if field is Field.VALUE:
        return [b"", b"a", b"b", b"c"]
    actual = getattr(entry, field.value) if entry else 0
    return [0, actual, actual + 1, max(0, actual - 1), lease]


async def test_a_transaction_does_one_branch_and_reads_what_it_did(client):
    await client.put("old", b"1")
    won = await client.txn(
        [Compare.absent("leader")],
        [Put("leader", b"me"), Delete("old"), Get("leader"), Get("old")],
        [Get("leader")],
    )
    assert won.succeeded
    assert won.deleted == 1
    assert won.read == (CoordinationEntry("leader", b"me", won.revision, won.revision, 1), None)

    lost = await client.txn(
        [Compare.absent("leader")], [Put("leader", b"you")], [Get("leader"), Get("old")]
    )
    assert not lost.succeeded
    assert lost.read == won.read
    assert lost.revision == won.revision


async def test_all_conditions_have_to_hold(client):
    first = await client.put("a", b"1")
    both = [Compare.created_at("a", first), Compare.value_is("a", b"1")]
    assert (await client.txn(both, [Put("a", b"2")])).succeeded
    assert not (await client.txn(both, [Put("a", b"3")])).succeeded
    assert (await client.get("a")).value == b"2"


async def test_only_one_of_many_wins_a_free_key(client):
    claims = [
        client.txn([Compare.absent("leader")], [Put("leader", str(number).encode())])
        for number in range(20)
    ]
    won = [result.succeeded for result in await asyncio.gather(*claims)]

    assert won.count(True) == 1
    assert (await client.get("leader")).value == str(won.index(True)).encode()


async def test_a_prefix_is_deleted_whole_and_its_neighbours_stay(client):
    for key in ("w/1", "w/2", "w0", "v"):
        await client.put(key, b"")
    assert (await client.txn((), [DeletePrefix("w/")])).deleted == 2
    assert [entry.key for entry in await client.list("")] == ["v", "w0"]


async def test_a_write_under_an_ended_lease_is_refused_and_leaves_nothing(client):
    with pytest.raises(LeaseGone):
        await client.txn((), [Put("a", b""), Put("b", b"", LeaseId(4711))])
    assert len(await client.list("")) == 0


async def test_a_request_that_makes_no_sense_is_a_bug_of_the_caller(client):
    with pytest.raises(EtcdRefused, match="duplicate key"):
        await client.txn((), [Put("a", b"1"), Put("a", b"2")])


async def test_a_revision_can_be_compacted_once(client):
    revision = await client.put("a", b"1")
    await client.put("a", b"2")
    await client.compact(Revision(revision))
    with pytest.raises(RevisionGone):
        await client.compact(Revision(revision))


async def test_status_covers_each_endpoint(client):
    [status] = await client.status()
    assert status.leads
    assert status.has_leader
    assert status.version.startswith("3.")
    assert status.size > 0
    assert status.problems == ()
