"""Following a prefix through storms, compactions and restores, against the real etcd."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager

from schedd.core.cluster.coordination import Delete, DeletePrefix, Followed, Listing, Put, Revision
from schedd.etcd.access import EtcdAccess
from schedd.etcd.client import EtcdClient, connect
from schedd.etcd.codec import Codec
from schedd.etcd.connection import EtcdConnection
from schedd.etcd.follow import follow
from schedkit.errors import Unavailable
from support.etcd import EtcdCluster
from support.wait import WAIT_TIMEOUT, wait_until_async

from .conftest import DEADLINE


class Seen:
    """The states and deletions that a follower has shown so far."""

    def __init__(self) -> None:
        self.states: list[Listing] = []
        self.deleted: Mapping[str, Revision] = {}

    @property
    def newest(self) -> Listing:
        return self.states[-1]

    async def until(
        self, holds: Callable[[Listing], bool], what: str, timeout: float = WAIT_TIMEOUT
    ) -> None:
        await wait_until_async(lambda: self.states and holds(self.newest), timeout, what)

    async def until_equal(self, client: EtcdClient, prefix: str) -> None:
        fresh = await client.list(prefix)
        await self.until(lambda state: state.entries == fresh.entries, f"the state {fresh}")


@asynccontextmanager
async def following(states: AsyncIterator[Followed]) -> AsyncIterator[Seen]:
    """Collect the states in a task of its own."""
    seen = Seen()

    async def collect() -> None:
        async with aclosing(states) as shown:
            async for followed in shown:
                seen.states.append(followed.listing)
                seen.deleted = followed.deleted

    collecting = asyncio.create_task(collect(), name="collect")
    try:
        await seen.until(lambda _: True, "the first state")
        yield seen
    finally:
        collecting.cancel()
        await asyncio.wait({collecting})
        if not collecting.cancelled():
            collecting.result()


async def test_an_empty_first_state_is_sent_at_once(client):
    async with following(client.follow("none/")) as seen:
        assert seen.newest.entries == ()


async def test_each_change_shows_the_whole_state(client):
    await client.put("w/1", b"a")
    async with following(client.follow("w/")) as seen:
        assert seen.newest == await client.list("w/")
        for change in (
            client.put("w/2", b"b"),
            client.put("w/1", b"c"),
            client.delete("w/2"),
            client.txn((), [Put("w/3", b""), Delete("w/1")]),
        ):
            await change
            await seen.until_equal(client, "w/")
            assert seen.newest.revision == (await client.list("w/")).revision


async def test_changes_elsewhere_are_not_shown(client):
    async with following(client.follow("w/")) as seen:
        await client.put("w0", b"")
        await client.put("v", b"")
        await client.put("w/1", b"")
        await seen.until_equal(client, "w/")
        assert len(seen.states) == 2


async def test_a_key_that_ends_with_its_lease_leaves_the_state(client):
    lease = await client.grant(60)
    await client.put("w/1", b"", lease.id)
    async with following(client.follow("w/")) as seen:
        await client.revoke(lease.id)
        await seen.until(lambda state: not state.entries, "the key to go")


async def test_a_key_deleted_under_the_watch_is_reported_until_it_is_created_again(client):
    lease = await client.grant(60)
    await client.put("w/leased", b"", lease.id)
    await client.put("w/1", b"")
    async with following(client.follow("w/")) as seen:
        await client.delete("w/1")
        await client.revoke(lease.id)
        await seen.until(lambda _: seen.deleted.keys() == {"w/1", "w/leased"}, "both deletions")
        await client.put("w/1", b"")
        await seen.until(lambda _: seen.deleted.keys() == {"w/leased"}, "the key that is back")


async def test_deletion_watched_counts_for_nothing_from_the_moment_the_watch_breaks(client, single):
    """P6.4: while no watch is open, keys may come back and be lost in a restore."""
    await client.put("w/1", b"")
    async with following(client.follow("w/")) as seen:
        await client.delete("w/1")
        await seen.until(lambda _: seen.deleted, "the deletion")
        member = single.members[0]
        member.kill()
        try:
            await seen.until(lambda _: not seen.deleted, "it to be forgotten, etcd being away")
        finally:
            member.restart()
        await wait_until_async(lambda: _put(client, "w/2"), WAIT_TIMEOUT, "a write")
        await seen.until_equal(client, "w/")
        assert seen.deleted == {}


async def test_a_storm_of_writes_ends_in_the_state_that_a_list_shows(client):
    chance = random.Random(7)

    async def storm(count: int) -> None:
        for _ in range(count):
            key = f"w/{chance.randrange(30)}"
            match chance.randrange(4):
                case 0:
                    await client.delete(key)
                case 1:
                    await client.txn((), [DeletePrefix("w/1"), Put(f"w/2{key[2:]}", b"")])
                case _:
                    await client.put(key, chance.randbytes(8))

    async with following(client.follow("w/")) as seen:
        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(storm(150), name=f"storm {number}")
        await seen.until_equal(client, "w/")
        revisions = [state.revision for state in seen.states]
        assert revisions == sorted(set(revisions))


async def test_writes_of_a_transaction_appear_in_one_state(client):
    await client.txn((), [Put("w/a", b"0"), Put("w/b", b"0")])
    async with following(client.follow("w/")) as seen:
        for number in range(1, 200):
            value = str(number).encode()
            await client.txn((), [Put("w/a", value), Put("w/b", value)])
        await seen.until_equal(client, "w/")
        for state in seen.states:
            assert len({entry.value for entry in state}) == 1


async def test_several_changes_may_come_as_one_state(client):
    states = client.follow("w/")
    async with aclosing(states):
        await anext(states)
        for number in range(50):
            await client.put("w/a", str(number).encode())
        shown = []
        while not shown or shown[-1].entries[0].value != b"49":
            shown.append((await anext(states)).listing)
        assert len(shown) < 10


async def test_a_compaction_during_a_watch_goes_unnoticed(client):
    async with following(client.follow("w/")) as seen:
        for number in range(20):
            revision = await client.put("w/a", str(number).encode())
            await client.compact(revision)
        await seen.until_equal(client, "w/")
        assert [(entry.key, entry.value) for entry in seen.newest] == [("w/a", b"19")]


class SlowLister:
    """List, and run `meanwhile` before the first listing is returned."""

    def __init__(self, client: EtcdClient, meanwhile: Callable[[], object]) -> None:
        self._client = client
        self._meanwhile = meanwhile
        self.calls = 0

    async def __call__(self, prefix: str) -> Listing:
        self.calls += 1
        listing = await self._client.list(prefix)
        if self.calls == 1:
            await self._meanwhile()
        return listing


@asynccontextmanager
async def connection_to(
    cluster: EtcdCluster, deadline: float = WAIT_TIMEOUT
) -> AsyncIterator[EtcdConnection]:
    """`deadline`: seconds of silence after which a watch is given up, and listed again."""
    connection = EtcdConnection(EtcdAccess(cluster.endpoints), deadline=deadline)
    try:
        yield connection
    finally:
        await connection.close()


async def test_a_watch_from_before_a_compaction_lists_again(client, single, root):
    """M8: etcd cancels such a watch; the follower lists the keys again."""
    await client.put("w/old", b"")

    async def compacted() -> None:
        await client.delete("w/old")
        await client.put("w/new", b"")
        await client.compact(Revision(await client.put("elsewhere", b"")))

    lister = SlowLister(client, compacted)
    async with (
        connection_to(single) as connection,
        following(follow(connection, Codec(root), lister, "w/")) as seen,
    ):
        assert [entry.key for entry in seen.states[0]] in (["w/old"], ["w/new"])
        await seen.until_equal(client, "w/")
        assert [entry.key for entry in seen.newest] == ["w/new"]
        assert lister.calls == 2


async def test_events_too_large_for_one_message_arrive_whole(client, single, root):
    async def large() -> None:
        for number in range(20):
            await client.put(f"w/{number}", random.Random(number).randbytes(300_000))

    lister = SlowLister(client, large)
    async with (
        connection_to(single) as connection,
        following(follow(connection, Codec(root), lister, "w/")) as seen,
    ):
        await seen.until_equal(client, "w/")
        assert lister.calls == 1
    await client.txn((), [DeletePrefix("w/")])


async def test_a_quiet_watch_stays_open(client, single, root):
    async def nothing() -> None:
        return None

    lister = SlowLister(client, nothing)
    async with (
        connection_to(single, DEADLINE) as connection,
        following(follow(connection, Codec(root), lister, "w/")) as seen,
    ):
        # Longer than it takes to ask for progress and to give the watch up.
        await client.grant(60)
        await asyncio.sleep(5 * DEADLINE)
        await client.put("w/1", b"")
        await seen.until_equal(client, "w/")
        assert lister.calls == 1


async def test_a_watch_moves_from_a_hung_member_to_another(trio, trio_client):
    """M8: a silent watch is probed; without an answer it moves to another member."""
    async with following(trio_client.follow("w/")) as seen:
        member = trio.member(_watched(trio_client))
        member.pause()
        try:
            await wait_until_async(lambda: _put(trio_client, "w/1"), WAIT_TIMEOUT, "a write")
            await seen.until(lambda state: state.get("w/1") is not None, "the write")
        finally:
            member.resume()


async def test_a_watch_moves_from_a_killed_member_to_another(trio, trio_client):
    async with following(trio_client.follow("w/")) as seen:
        member = trio.member(_watched(trio_client))
        member.kill()
        try:
            await wait_until_async(lambda: _put(trio_client, "w/1"), WAIT_TIMEOUT, "a write")
            await seen.until(lambda state: state.get("w/1") is not None, "the write")
        finally:
            member.restart()


async def test_one_of_three_dies_and_history_is_compacted_under_the_watch(trio, trio_client):
    for key in ("w/kept", "w/gone"):
        await trio_client.put(key, b"old")
    async with following(trio_client.follow("w/")) as seen:
        await seen.until_equal(trio_client, "w/")
        member = trio.member(_watched(trio_client))
        member.kill()
        try:
            await wait_until_async(lambda: _put(trio_client, "w/new"), WAIT_TIMEOUT, "a write")
            await trio_client.delete("w/gone")
            await trio_client.compact(await trio_client.put("w/kept", b"new"))
            await seen.until_equal(trio_client, "w/")
        finally:
            member.restart()
        assert [entry.key for entry in seen.newest] == ["w/kept", "w/new"]
        await trio_client.put("w/later", b"")
        await seen.until_equal(trio_client, "w/")


def _watched(client: EtcdClient) -> str:
    connection = client._connection
    return connection.targets[connection.current]


async def _put(client: EtcdClient, key: str) -> bool:
    try:
        await client.put(key, b"")
    except Unavailable:
        return False
    return True


async def test_a_restore_that_sets_revisions_back_is_shown(root):
    with EtcdCluster(1) as cluster:
        access = EtcdAccess(cluster.endpoints)
        async with (
            connect(access, deadline=DEADLINE, root=root) as client,
            connect(access, deadline=DEADLINE, root=root) as other,
        ):
            for number in range(10):
                await client.put(f"w/{number}", b"before")
            async with following(client.follow("w/")) as seen:
                before = seen.newest
                cluster.members[0].kill()
                shutil.rmtree(cluster.folder / cluster.members[0].name)
                cluster.members[0].start()
                await wait_until_async(
                    lambda: _put(other, "w/new"), WAIT_TIMEOUT, "the restored etcd"
                )
                await seen.until_equal(other, "w/")
                assert [entry.key for entry in seen.newest] == ["w/new"]
                assert seen.newest.revision < before.revision


async def test_two_followers_share_a_client(client):
    async with (
        following(client.follow("a/")) as first,
        following(client.follow("b/")) as second,
    ):
        await client.put("a/1", b"")
        await client.put("b/1", b"")
        await first.until_equal(client, "a/")
        await second.until_equal(client, "b/")
        assert [entry.key for entry in first.newest] == ["a/1"]
        assert [entry.key for entry in second.newest] == ["b/1"]


async def test_a_follower_that_is_closed_leaves_no_task(client):
    before = asyncio.all_tasks()
    async with following(client.follow("w/")):
        assert asyncio.all_tasks() > before
    # grpc's own tasks of a cancelled call take another turn or two of the loop.
    await wait_until_async(lambda: asyncio.all_tasks() <= before, WAIT_TIMEOUT, "its tasks to end")
