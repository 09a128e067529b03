"""One thing that many watch: looked at for all of them together, and told of when it changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from schedd.api import in_time, looks
from schedd.api.errors import NotFound, OutOfTouch
from schedd.api.looks import Looks
from schedkit.errors import Unavailable
from schedproto.v1.run_pb2 import Redrive
from support.wait import wait_until_async

WHAT, LAST = ("redrive", "d1"), 3


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "FIRST_AFTER", 0.02)
    monkeypatch.setattr(looks, "LOOK_EVERY", 0.02)


class Thing:
    """It stands as the test says; each look is counted."""

    def __init__(self) -> None:
        self.made, self.looked = 0, 0
        self.before: Callable[[], Awaitable[None]] | None = None

    async def look(self) -> Redrive:
        self.looked += 1
        if self.before is not None:
            await self.before()
        return Redrive(made=self.made, left_out=self.looked)

    def watched(self, by: Looks) -> AsyncGenerator[Redrive, None]:
        return by.changes(
            WHAT, self.look, lambda one: Redrive(made=one.made), lambda one: one.made == LAST
        )


async def test_it_is_told_of_at_once_then_when_a_fact_of_it_changes_until_it_is_over() -> None:
    thing, found = Thing(), []
    async with asyncio.timeout(10):
        async for one in thing.watched(Looks()):
            found.append(one.made)
            await asyncio.sleep(0.05)
            thing.made += 1
    assert found == [0, 1, 2, 3]
    looked = thing.looked
    await asyncio.sleep(0.06)
    assert thing.looked == looked, "nobody looks at what nobody watches"


async def test_what_is_no_fact_of_it_isnt_told() -> None:
    thing = Thing()
    stream = thing.watched(Looks())
    assert (await anext(stream)).left_out == 1
    following = asyncio.ensure_future(anext(stream))
    await wait_until_async(lambda: thing.looked > 3, 10, "some looks")
    assert not following.done()
    thing.made = 1
    assert (await asyncio.wait_for(following, 10)).made == 1
    await stream.aclose()


async def test_however_many_watch_it_is_looked_at_for_all_of_them() -> None:
    thing, shared = Thing(), Looks()
    streams = [thing.watched(shared) for _ in range(50)]
    await asyncio.gather(*(anext(one) for one in streams))
    begun = thing.looked
    following = [asyncio.ensure_future(anext(one)) for one in streams]
    await wait_until_async(lambda: thing.looked >= begun + 10, 10, "some looks")
    thing.made = 1
    await asyncio.wait_for(asyncio.gather(*following), 10)
    assert thing.looked < begun + 50
    for one in streams:
        await one.aclose()
    assert not shared._watched


async def test_who_begins_is_told_how_it_stands_since_then() -> None:
    """Not of a look of others that had begun before: it may be what has just been changed."""
    thing, shared, go = Thing(), Looks(), asyncio.Event()

    async def slow() -> None:
        await go.wait()

    early = thing.watched(shared)
    await anext(early)
    thing.before = slow
    looking = asyncio.ensure_future(anext(early))
    await wait_until_async(lambda: thing.looked == 2, 10, "a look that lasts")
    late = asyncio.ensure_future(anext(thing.watched(shared)))
    await asyncio.sleep(0.02)
    thing.made, looked = 1, thing.looked
    go.set()
    assert (await asyncio.wait_for(late, 10)).left_out > looked
    await asyncio.wait_for(looking, 10)
    await early.aclose()


async def test_who_leaves_in_the_midst_of_a_look_takes_it_from_nobody() -> None:
    thing, shared, go = Thing(), Looks(), asyncio.Event()

    async def slow() -> None:
        await go.wait()

    thing.before = slow
    leaving = asyncio.ensure_future(anext(thing.watched(shared)))
    await wait_until_async(lambda: thing.looked == 1, 10, "its look")
    staying = asyncio.ensure_future(anext(thing.watched(shared)))
    await asyncio.sleep(0.02)
    leaving.cancel()
    go.set()
    assert (await asyncio.wait_for(staying, 10)).left_out == 2


@pytest.mark.parametrize("wrong", [Unavailable("etcd"), NotFound("none", reason="NONE", remedy="")])
async def test_what_a_look_comes_to_ends_the_stream(wrong: Exception) -> None:
    thing = Thing()

    async def fails() -> None:
        raise wrong

    stream = thing.watched(shared := Looks())
    await anext(stream)
    thing.before = fails
    with pytest.raises(type(wrong)):
        await asyncio.wait_for(anext(stream), 10)
    assert not shared._watched


async def test_a_database_that_is_silent_ends_it_in_the_time_of_a_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_time, "READ_WITHIN", 0.6)
    thing = Thing()

    async def silent() -> None:
        await asyncio.Event().wait()

    stream = thing.watched(Looks())
    await anext(stream)
    thing.before = silent
    with pytest.raises(OutOfTouch, match="no answer within"):
        await asyncio.wait_for(anext(stream), 10)
