"""Leases and the keeper, against the real etcd. TTL 3 s, the smallest allowed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from schedd.core.cluster.coordination import NO_LEASE
from schedd.etcd.access import EtcdAccess
from schedd.etcd.client import EtcdClient, connect
from schedd.etcd.lease_keeper import EtcdLeaseKeeper, keep_lease
from schedd.etcd.lease_trust import LeaseLoss
from schedkit.clock import boottime
from schedkit.errors import Misconfigured
from support.etcd import EtcdCluster
from support.wait import WAIT_TIMEOUT, wait_until_async

TTL = 3
DEADLINE = TTL / 6


@asynccontextmanager
async def kept_lease(
    client: EtcdClient, cluster: EtcdCluster
) -> AsyncIterator[tuple[EtcdLeaseKeeper, asyncio.Task[LeaseLoss]]]:
    """A kept lease with a key on it, and the task that waits for its loss."""
    access = EtcdAccess(cluster.endpoints)
    async with keep_lease(client, access, ttl=TTL, deadline=DEADLINE) as keeper:
        await client.put("mine", b"", keeper.lease.id)
        running = asyncio.create_task(keeper.until_lost(), name="keeper")
        try:
            yield keeper, running
        finally:
            running.cancel()


async def test_a_lease_ends_when_its_keepalive_stops(client):
    lease = await client.grant(2)
    await client.put("mine", b"", lease.id)
    granted = boottime()
    while boottime() < granted + 3:
        assert await client.keepalive_once(lease.id) == lease.ttl
        await asyncio.sleep(0.2)  # the rhythm of a keepalive, not a wait
    assert await client.get("mine") is not None

    await wait_until_async(
        lambda: _key_deleted(client), WAIT_TIMEOUT, "the key to go with its lease"
    )
    assert await client.keepalive_once(lease.id) == 0


async def test_a_keepalive_of_an_unknown_lease_returns_zero(client):
    assert await client.keepalive_once(4711) == 0


async def test_many_leases_are_kept_alive_together_and_ended_leases_are_reported(client):
    kept = [(await client.grant(60)).id for _ in range(3)]
    gone = (await client.grant(60)).id
    await client.revoke(gone)
    assert await client.keep_alive([*kept, gone, 4711]) == dict.fromkeys(kept, 60) | {
        gone: 0,
        4711: 0,
    }
    assert await client.keep_alive([]) == {}


async def test_a_revoked_lease_deletes_its_keys_and_can_be_revoked_again(client):
    lease = await client.grant(60)
    await client.put("mine", b"", lease.id)
    await client.put("freed", b"", lease.id)
    await client.put("freed", b"", NO_LEASE)
    assert await client.keepalive_once(lease.id) == 60

    await client.revoke(lease.id)
    await client.revoke(lease.id)

    assert await client.get("mine") is None
    assert await client.get("freed") is not None
    assert await client.keepalive_once(lease.id) == 0


async def test_a_busy_loop_cannot_starve_the_keepalive(client, single):
    """M7: a loop that is late and gets on keeps its lease."""
    async with kept_lease(client, single) as (keeper, running):
        began = boottime()
        while boottime() < began + TTL + 1.5:
            time.sleep(0.85)  # noqa: ASYNC251 (blocking the loop is the point)
            await asyncio.sleep(0)
            assert keeper.trusted()
        mine = await client.get("mine")
        assert mine is not None
        assert mine.lease == keeper.lease.id
        assert not running.done()


async def test_a_hung_loop_loses_its_lease(client, single):
    """M7: a member that does nothing any more must not stay the owner of its shards."""
    async with kept_lease(client, single) as (keeper, running):
        assert keeper.trusted()
        time.sleep(TTL + 2)  # noqa: ASYNC251 (a hung loop is the point)
        assert not keeper.trusted()
        assert await running is LeaseLoss.HUNG
        await wait_until_async(
            lambda: _key_deleted(client), WAIT_TIMEOUT, "the key to go with its lease"
        )


async def test_trust_moves_on_with_each_keepalive(client, single):
    trust, began = TTL - 1, boottime()
    async with kept_lease(client, single) as (keeper, _):
        first = keeper.trusted_until
        assert began + trust < first < boottime() + trust, "from the moment of sending"
        await wait_until_async(lambda: keeper.trusted_until > first, WAIT_TIMEOUT, "a keepalive")
        assert first + TTL / 3 <= keeper.trusted_until < boottime() + trust


async def test_the_next_keepalive_reports_a_lease_that_etcd_has_ended(client, single):
    async with kept_lease(client, single) as (keeper, running):
        await client.revoke(keeper.lease.id)
        assert await asyncio.wait_for(running, WAIT_TIMEOUT) is LeaseLoss.EXPIRED
        assert not keeper.trusted()


async def test_trust_ends_before_the_lease_when_etcd_hangs(client, single):
    async with kept_lease(client, single) as (keeper, running):
        single.members[0].pause()
        try:
            assert await asyncio.wait_for(running, WAIT_TIMEOUT) is LeaseLoss.UNANSWERED
            assert 0 <= boottime() - keeper.trusted_until < TTL / 3, "the lease itself lives on"
        finally:
            single.members[0].resume()

        await wait_until_async(lambda: _answers(client), WAIT_TIMEOUT, "etcd to answer again")
        assert not keeper.trusted(), "trust that has ended never comes back"


async def _key_deleted(client: EtcdClient) -> bool:
    return await client.get("mine") is None


async def _answers(client: EtcdClient) -> bool:
    [status] = await client.status()
    return not status.away


async def test_leaving_the_block_gives_the_lease_back_at_once(client, single):
    async with kept_lease(client, single):
        assert await client.get("mine") is not None
    assert await client.get("mine") is None


async def test_a_keeper_whose_thread_breaks_loses_the_lease(client, single, monkeypatch):
    def broken(*_: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    async with kept_lease(client, single) as (keeper, running):
        monkeypatch.setattr(keeper._lifeline, "keepalive", broken)
        assert await asyncio.wait_for(running, WAIT_TIMEOUT) is LeaseLoss.UNANSWERED
        assert not keeper.trusted()


async def test_the_granted_ttl_counts_where_it_exceeds_the_asked_one():
    slow = ("--heartbeat-interval", "400", "--election-timeout", "4000")
    with EtcdCluster(1, flags=slow) as cluster:
        access, began = EtcdAccess(cluster.endpoints), boottime()
        async with (
            connect(access, deadline=DEADLINE) as client,
            keep_lease(client, access, ttl=TTL, deadline=DEADLINE) as keeper,
        ):
            assert keeper.lease.ttl == 6
            assert keeper.trusted_until - began > 6 - 1.2
            assert keeper.trusted_until - boottime() < 6 - 1.2


async def test_a_deadline_that_leaves_no_second_try_is_refused(client, single):
    with pytest.raises(Misconfigured, match="can't be renewed in time"):
        async with keep_lease(client, EtcdAccess(single.endpoints), ttl=TTL, deadline=0.6):
            pass
