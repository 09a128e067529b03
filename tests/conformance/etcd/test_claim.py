"""`schedd claim-prefix` writes nothing beside a member that joins while it runs."""

from __future__ import annotations

import pytest

from schedd.app.recover import write_claim
from schedd.core.cluster.coordination import Compare, Listing
from schedd.core.cluster.prefix_owner import CLUSTER, PrefixOwner, decode, encode
from schedd.core.ids import Id
from schedd.etcd.client import EtcdClient
from schedkit.errors import Misconfigured

BEFORE = PrefixOwner("c1", "db1:5432/schedd", Id.from_int(1))
AFTER = PrefixOwner("c2", "db2:5432/schedd", Id.from_int(2))


async def owner_in(client: EtcdClient) -> PrefixOwner:
    entry = await client.get(CLUSTER)
    assert entry is not None
    return decode(entry)


def writing_after_the_list(
    client: EtcdClient, monkeypatch: pytest.MonkeyPatch, key: str, value: bytes
) -> None:
    listed = client.list

    async def list_then_write(prefix: str) -> Listing:
        found = await listed(prefix)
        await client.put(key, value)
        return found

    monkeypatch.setattr(client, "list", list_then_write)


async def test_the_claim_of_a_prefix_without_members_is_written(client: EtcdClient) -> None:
    await client.put("members0", b"a neighbor of the prefix")
    await write_claim(client, BEFORE)
    assert await owner_in(client) == BEFORE
    await write_claim(client, AFTER)
    assert await owner_in(client) == AFTER


@pytest.mark.parametrize(
    ("key", "value"), [("members/m1", b"{}"), (CLUSTER, encode(BEFORE))], ids=["member", "claim"]
)
async def test_a_member_or_a_claim_written_after_the_list_is_detected(
    client: EtcdClient, monkeypatch: pytest.MonkeyPatch, key: str, value: bytes
) -> None:
    await client.put(CLUSTER, encode(BEFORE))
    writing_after_the_list(client, monkeypatch, key, value)

    with pytest.raises(Misconfigured, match=r"nothing was written: .*\. Stop all members"):
        await write_claim(client, AFTER)
    assert await owner_in(client) == BEFORE


async def test_a_transaction_may_require_that_a_prefix_is_empty(client: EtcdClient) -> None:
    await client.put("members0", b"")
    assert (await client.txn([Compare.none_under("members/")], [])).succeeded
    await client.put("members/m1", b"")
    assert not (await client.txn([Compare.none_under("members/")], [])).succeeded
