"""Many watchers of one object share its snapshots and receive its changes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from schedd.api import deadlines
from schedd.api.errors import MemberUnavailableError, NotFoundError
from schedd.api.runs import snapshots
from schedd.api.runs.snapshots import ObjectSnapshots
from schedkit.errors import Unavailable
from schedproto.v1.run_pb2 import Redrive
from support.wait import wait_until_async

WHAT, LAST = ("redrive", "d1"), 3


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "FIRST_AFTER", 0.02)
    monkeypatch.setattr(snapshots, "LOOK_EVERY", 0.02)


class WatchedObject:
    """An object in the state that the test sets. Each snapshot is counted."""

    def __init__(self) -> None:
        self.made, self.looked = 0, 0
        self.before: Callable[[], Awaitable[None]] | None = None

    async def look(self) -> Redrive:
        self.looked += 1
        if self.before is not None:
            await self.before()
        return Redrive(created=self.made, omitted=self.looked)

    def watched(self, by: ObjectSnapshots) -> AsyncGenerator[Redrive, None]:
        return by.changes(
            WHAT, self.look, lambda one: one, watched_facts, lambda one: one.created == LAST
        )


def watched_facts(one: Redrive) -> Redrive:
    """Return the watched facts of a redrive."""
    return Redrive(created=one.created)


class ManyObjects:
    """Many objects of one snapshot, and how often each was compared."""

    def __init__(self, count: int) -> None:
        self.made = dict.fromkeys(range(count), 0)
        self.looked = 0
        self.compared: Counter[str] = Counter()

    async def look(self) -> dict[int, Redrive]:
        self.looked += 1
        await asyncio.sleep(0.005)
        return {
            which: Redrive(redrive_id=str(which), created=made) for which, made in self.made.items()
        }

    def watched(self, by: ObjectSnapshots, which: int) -> AsyncGenerator[Redrive, None]:
        def pick(found: dict[int, Redrive]) -> Redrive:
            if which not in found:
                raise NotFoundError(f"no {which}", reason="NONE", remedy="")
            return found[which]

        def facts(one: Redrive) -> Redrive:
            self.compared[one.redrive_id] += 1
            return watched_facts(one)

        return by.changes(("all", ""), self.look, pick, facts, lambda _: False)


class Dear:
    """A snapshot that takes `takes` seconds, and the rests between two."""

    def __init__(self, takes: float) -> None:
        self.takes = takes
        self.rests: list[float] = []
        self.ended: float | None = None

    async def look(self) -> Redrive:
        now = asyncio.get_running_loop().time
        if self.ended is not None:
            self.rests.append(now() - self.ended)
        await asyncio.sleep(self.takes)
        self.ended = now()
        return Redrive()

    async def watched(self, by: ObjectSnapshots, *, rests: bool = True) -> None:
        async for _ in by.changes(
            WHAT, self.look, lambda one: one, watched_facts, lambda _: False, rests=rests
        ):
            pass


async def test_a_watch_sends_the_object_at_once_then_each_change_until_its_end() -> None:
    thing, found = WatchedObject(), []
    async with asyncio.timeout(10):
        async for one in thing.watched(ObjectSnapshots()):
            found.append(one.created)
            await asyncio.sleep(0.05)
            thing.made += 1
    assert found == [0, 1, 2, 3]
    looked = thing.looked
    await asyncio.sleep(0.06)
    assert thing.looked == looked, "no snapshot without a watcher"


async def test_a_change_outside_the_watched_facts_is_not_sent() -> None:
    thing = WatchedObject()
    stream = thing.watched(ObjectSnapshots())
    assert (await anext(stream)).omitted == 1
    following = asyncio.ensure_future(anext(stream))
    await wait_until_async(lambda: thing.looked > 3, 10, "some snapshots")
    assert not following.done()
    thing.made = 1
    assert (await asyncio.wait_for(following, 10)).created == 1
    await stream.aclose()


async def test_all_watchers_of_an_object_share_its_snapshots() -> None:
    thing, shared = WatchedObject(), ObjectSnapshots()
    streams = [thing.watched(shared) for _ in range(50)]
    await asyncio.gather(*(anext(one) for one in streams))
    begun = thing.looked
    following = [asyncio.ensure_future(anext(one)) for one in streams]
    await wait_until_async(lambda: thing.looked >= begun + 10, 10, "some snapshots")
    thing.made = 1
    await asyncio.wait_for(asyncio.gather(*following), 10)
    assert thing.looked < begun + 50
    for one in streams:
        await one.aclose()
    assert not shared._watched


@pytest.mark.slow
async def test_objects_of_one_snapshot_share_it_and_each_watcher_gets_its_own() -> None:
    things, shared = ManyObjects(1000), ObjectSnapshots()
    streams = [things.watched(shared, which) for which in range(200)]
    first = await asyncio.gather(*(anext(one) for one in streams))
    assert [one.redrive_id for one in first] == [str(which) for which in range(200)]
    begun = things.looked
    assert begun <= 2
    following = [asyncio.ensure_future(anext(one)) for one in streams]
    await wait_until_async(lambda: things.looked >= begun + 5, 10, "some snapshots")
    assert set(things.compared) == {str(which) for which in range(200)}, "no other object"
    things.made[7] = 1
    assert (await asyncio.wait_for(following[7], 10)).redrive_id == "7"
    assert not any(one.done() for which, one in enumerate(following) if which != 7)
    del things.made[8]
    with pytest.raises(NotFoundError, match="no 8"):
        await asyncio.wait_for(following[8], 10)
    looked = things.looked
    await wait_until_async(lambda: things.looked >= looked + 3, 10, "the others to watch on")
    things.made = dict.fromkeys(things.made, 2)
    left = [one for which, one in enumerate(following) if which not in (7, 8)]
    await asyncio.wait_for(asyncio.gather(*left), 10)
    assert things.looked < begun + 100
    for one in streams:
        await one.aclose()
    assert not shared._watched


@pytest.mark.slow
async def test_an_expensive_snapshot_is_taken_rarely_for_any_number_of_watchers() -> None:
    dear, shared = Dear(0.05), ObjectSnapshots()
    watching = [asyncio.ensure_future(dear.watched(shared)) for _ in range(3)]
    await wait_until_async(lambda: dear.ended is not None, 10, "the first snapshot")
    begun = len(dear.rests)
    await wait_until_async(lambda: len(dear.rests) >= begun + 4, 20, "some snapshots")
    for one in watching:
        one.cancel()
    # Watchers that begin together take one or two snapshots at once; their duration varies.
    assert min(dear.rests[2:]) >= 10 * 0.05 * 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("rests", "most"), [(True, 0.1), (False, 10.0)])
async def test_the_next_snapshot_is_taken_soon_enough(
    monkeypatch: pytest.MonkeyPatch, *, rests: bool, most: float
) -> None:
    """No rest is longer than MOST_REST, and a snapshot without rests waits only for others."""
    monkeypatch.setattr(snapshots, "MOST_REST", most)
    dear = Dear(0.3)
    watching = asyncio.ensure_future(dear.watched(ObjectSnapshots(), rests=rests))
    await wait_until_async(lambda: len(dear.rests) >= 3, 20, "some snapshots")
    watching.cancel()
    assert min(dear.rests) < 1.0


async def test_a_new_watcher_gets_a_snapshot_that_began_after_its_request() -> None:
    """A snapshot that began earlier may miss the change that the caller has just made."""
    thing, shared, go = WatchedObject(), ObjectSnapshots(), asyncio.Event()

    async def slow() -> None:
        await go.wait()

    early = thing.watched(shared)
    await anext(early)
    thing.before = slow
    looking = asyncio.ensure_future(anext(early))
    await wait_until_async(lambda: thing.looked == 2, 10, "a snapshot in progress")
    late = asyncio.ensure_future(anext(thing.watched(shared)))
    await asyncio.sleep(0.02)
    thing.made, looked = 1, thing.looked
    go.set()
    assert (await asyncio.wait_for(late, 10)).omitted > looked
    await asyncio.wait_for(looking, 10)
    await early.aclose()


async def test_a_watcher_that_leaves_during_a_snapshot_does_not_cancel_it() -> None:
    thing, shared, go = WatchedObject(), ObjectSnapshots(), asyncio.Event()

    async def slow() -> None:
        await go.wait()

    thing.before = slow
    leaving = asyncio.ensure_future(anext(thing.watched(shared)))
    await wait_until_async(lambda: thing.looked == 1, 10, "its snapshot")
    staying = asyncio.ensure_future(anext(thing.watched(shared)))
    await asyncio.sleep(0.02)
    leaving.cancel()
    go.set()
    assert (await asyncio.wait_for(staying, 10)).omitted == 2


@pytest.mark.parametrize(
    "wrong", [Unavailable("etcd"), NotFoundError("none", reason="NONE", remedy="")]
)
async def test_an_error_of_a_snapshot_ends_the_stream(wrong: Exception) -> None:
    thing = WatchedObject()

    async def fails() -> None:
        raise wrong

    stream = thing.watched(shared := ObjectSnapshots())
    await anext(stream)
    thing.before = fails
    with pytest.raises(type(wrong)):
        await asyncio.wait_for(anext(stream), 10)
    assert not shared._watched


async def test_a_silent_database_ends_the_stream_at_the_read_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deadlines, "READ_WITHIN", 0.6)
    thing = WatchedObject()

    async def silent() -> None:
        await asyncio.Event().wait()

    stream = thing.watched(ObjectSnapshots())
    await anext(stream)
    thing.before = silent
    with pytest.raises(MemberUnavailableError, match="no answer within"):
        await asyncio.wait_for(anext(stream), 10)
