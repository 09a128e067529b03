"""Members of etcd that die, stand still, or lose their majority."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from schedd.core.cluster.coordination import Compare, Put
from schedd.etcd.access import EtcdAccess
from schedd.etcd.client import EtcdClient, connect
from schedd.etcd.lease_keeper import keep_lease
from schedkit.errors import OutcomeUnknown, Unavailable
from support.etcd import EtcdCluster, EtcdMember
from support.wait import WAIT_TIMEOUT, wait_until_async

from .conftest import DEADLINE

SLACK = 2.0
"""Seconds past a deadline that a busy machine may take to tell of it."""


def current(client: EtcdClient, cluster: EtcdCluster) -> EtcdMember:
    """The member that the client's next call begins with."""
    connection = client._connection
    return cluster.member(connection.targets[connection.current])


async def put_in_the_end(client: EtcdClient, key: str, timeout: float = WAIT_TIMEOUT) -> None:
    async def done() -> bool:
        try:
            await client.put(key, b"")
        except Unavailable:
            return False
        return True

    await wait_until_async(done, timeout, f"the write of {key}")


async def test_calls_continue_when_a_follower_that_serves_us_is_killed(trio, trio_client):
    await trio_client.put("a", b"1")
    member = current(trio_client, trio)
    while member.leads():  # leave the leader alone here
        trio_client._connection._ring.failed(trio_client._connection.current)
        member = current(trio_client, trio)
    await trio_client.put("a", b"2")

    member.kill()
    try:
        assert (await trio_client.get("a")).value == b"2"
        await put_in_the_end(trio_client, "b")
        assert current(trio_client, trio) is not member
    finally:
        member.restart()


async def test_calls_continue_when_the_leader_is_killed(trio, trio_client):
    await trio_client.put("a", b"1")
    member = trio.leader()
    member.kill()
    try:
        await put_in_the_end(trio_client, "b")
        assert (await trio_client.get("a")).value == b"1"
        assert trio.leader() is not member
    finally:
        member.restart()


async def test_at_most_one_call_is_lost_to_a_hung_member(trio, trio_client):
    await trio_client.put("a", b"1")
    member = current(trio_client, trio)
    if member.leads():
        trio_client._connection._ring.failed(trio_client._connection.current)
        member = current(trio_client, trio)
        await trio_client.put("a", b"1")
    member.pause()
    try:
        began = time.monotonic()
        with pytest.raises(Unavailable):
            await trio_client.get("a")
        assert time.monotonic() - began < DEADLINE + SLACK
        assert (await trio_client.get("a")).value == b"1"
        await trio_client.put("a", b"2")
    finally:
        member.resume()


async def test_a_hung_etcd_doesnt_answer_within_the_deadline(client, single):
    await client.put("a", b"old")
    single.members[0].pause()
    try:
        began = time.monotonic()
        with pytest.raises(Unavailable) as read:
            await client.get("a")
        assert not isinstance(read.value, OutcomeUnknown), "a read has no outcome to know"
        with pytest.raises(OutcomeUnknown):
            await client.put("a", b"new")
        with pytest.raises(OutcomeUnknown):
            await client.grant(5)
        with pytest.raises(Unavailable):
            await client.list("")
        assert time.monotonic() - began < 4 * (DEADLINE + SLACK)
    finally:
        single.members[0].resume()

    await put_in_the_end(client, "b")
    assert (await client.get("a")).value in (b"old", b"new"), "unknown means: read back"


async def test_a_write_that_was_lost_on_the_way_is_never_sent_twice(client, single):
    await client.put("count", b"0")
    single.members[0].pause()
    try:
        with pytest.raises(OutcomeUnknown):
            await client.txn([Compare.exists("count")], [Put("count", b"1")])
    finally:
        single.members[0].resume()
    await put_in_the_end(client, "other")
    assert (await client.get("count")).version <= 2


async def test_without_a_majority_no_call_is_answered_until_it_is_back(trio, trio_client):
    await trio_client.put("a", b"1")
    leader = trio.leader()
    others = [member for member in trio.members if member is not leader]
    for member in others:
        member.kill()
    try:
        with pytest.raises(Unavailable):
            await trio_client.get("a")
        with pytest.raises(Unavailable):
            await trio_client.put("a", b"2")
    finally:
        for member in others:
            member.start()
        for member in trio.members:
            member.wait_ready()
    await put_in_the_end(trio_client, "b")
    assert (await trio_client.get("a")).value in (b"1", b"2")


async def test_an_unreachable_etcd_is_reported_at_once():
    cluster = EtcdCluster(3)  # never started: no process listens on its ports
    async with connect(EtcdAccess(cluster.endpoints), deadline=WAIT_TIMEOUT) as client:
        began = time.monotonic()
        with pytest.raises(Unavailable) as read:
            await client.put("a", b"")
        assert not isinstance(read.value, OutcomeUnknown), "it was never sent"
        assert time.monotonic() - began < WAIT_TIMEOUT / 5


async def test_a_silent_endpoint_is_skipped(single, root):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        endpoints = (f"127.0.0.1:{mute.getsockname()[1]}", *single.endpoints)
        async with connect(EtcdAccess(endpoints), deadline=DEADLINE, root=root) as client:
            client._connection._ring.current = 0
            await client.put("a", b"1")
            assert client._connection.current == 1
            assert (await client.get("a")).value == b"1"


async def test_status_names_the_unavailable_member(trio, trio_client):
    member = trio.members[1]
    member.kill()
    try:
        status = await trio_client.status()
        assert [bool(each.away) for each in status] == [False, True, False]
    finally:
        member.restart()


@pytest.mark.parametrize("hurt", ["kill", "pause"])
async def test_a_kept_lease_outlives_the_member_that_kept_it(trio, trio_client, hurt):
    access = EtcdAccess(trio.endpoints)
    async with keep_lease(trio_client, access, ttl=3, deadline=DEADLINE) as keeper:
        running = asyncio.create_task(keeper.until_lost(), name="keeper")
        first = keeper.trusted_until
        await wait_until_async(lambda: keeper.trusted_until > first, WAIT_TIMEOUT, "a keepalive")
        member = trio.members[keeper._lifeline._ring.current]
        if member.leads():  # a change of etcd's leader may cost the lease of a TTL of 3 s
            keeper._lifeline._ring.failed(keeper._lifeline._ring.current)
            seen = keeper.trusted_until
            await wait_until_async(lambda: keeper.trusted_until > seen, WAIT_TIMEOUT, "a keepalive")
            member = trio.members[keeper._lifeline._ring.current]
        (member.kill if hurt == "kill" else member.pause)()
        try:
            target = keeper.trusted_until + 1.5
            await wait_until_async(
                lambda: keeper.trusted_until > target or running.done(), WAIT_TIMEOUT, "keepalives"
            )
            assert keeper.trusted()
        finally:
            running.cancel()
            member.restart() if hurt == "kill" else member.resume()
