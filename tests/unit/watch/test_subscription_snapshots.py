"""Many who begin to watch: one look for all who come together, and what it costs the others."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from schedd.core.runs.change_stream import Change, Scope
from schedd.core.runs.lifecycle import State
from schedd.watch.subscriptions import IN_A_TURN
from schedkit.errors import Unavailable
from support.feeds import ALL, world
from support.wait import WAIT_TIMEOUT, wait_until_async


async def test_two_hundred_concurrent_subscribers_share_one_snapshot_and_its_rows() -> None:
    async with world() as here:
        for number in range(3):
            here.rows.write(number)
        await here.watch(Scope("other"))
        here.rows.asked.clear()
        streams = [here.begin() for _ in range(200)]
        for stream in streams:
            await stream.until(*[(number, State.PENDING) for number in range(3)])
        assert here.rows.asked == ["now", "unended", "read"]
        assert (
            len({id(news.what) for stream in streams for news in stream.messages if news.what}) == 3
        )


async def test_a_subscriber_during_a_snapshot_waits_for_the_next() -> None:
    """A change in between isn't in that snapshot, and was put into no queue of theirs."""
    async with world() as here:
        here.rows.held.clear()
        first = here.begin()
        await wait_until_async(lambda: "unended" in here.rows.asked, WAIT_TIMEOUT, "a look")
        here.rows.write(1)
        second = here.begin()
        await asyncio.sleep(0.01)
        here.rows.held.set()
        await second.until((1, State.PENDING))
        assert here.rows.asked.count("unended") == 2
        await first.begun()


async def test_a_subscriber_that_leaves_ends_a_snapshot_only_if_it_is_the_last() -> None:
    async with world() as here:
        here.rows.write(1)
        await here.watch(Scope("other"))
        here.rows.held.clear()
        here.rows.asked.clear()
        leaves, stays = here.begin(), here.begin()
        await wait_until_async(lambda: "unended" in here.rows.asked, WAIT_TIMEOUT, "a look")
        here.tasks[-2].cancel()
        await asyncio.sleep(0.01)
        here.rows.held.set()
        await stays.until((1, State.PENDING))
        assert leaves.messages == []

        here.rows.held.clear()
        here.rows.asked.clear()
        here.begin()
        await wait_until_async(lambda: "unended" in here.rows.asked, WAIT_TIMEOUT, "a look")
        here.tasks[-1].cancel()
        await wait_until_async(lambda: here.rows.given_up, WAIT_TIMEOUT, "its end")
        here.rows.held.set()
        last = here.begin()
        await last.until((1, State.PENDING))


async def test_a_failed_snapshot_fails_all_its_watchers_and_the_next_is_taken_again() -> None:
    async with world() as here:
        here.rows.write(1)
        await here.watch(Scope("other"))
        here.rows.away = True
        ways = [here.feed.follow(ALL, None) for _ in range(2)]
        for way in ways:
            await anext(way)
        ends = await asyncio.gather(*map(anext, ways), return_exceptions=True)
        assert [type(end) for end in ends] == [Unavailable] * 2
        here.rows.away = False
        again = await here.watch()
        await again.until((1, State.PENDING))


async def test_an_unchanged_run_is_one_object_however_often_it_is_read() -> None:
    async with world() as here:
        here.rows.write(1)
        first = await here.watch()
        await first.until((1, State.PENDING))
        [change] = [news.what for news in first.messages if isinstance(news.what, Change)]
        here.rows.rows[change.run_id] = Change(replace(change.record), change.version)
        second = await here.watch()
        await second.until((1, State.PENDING))
        assert change in {news.what for news in second.messages}

        here.rows.rows[change.run_id] = Change(
            replace(change.record, pre_dispatched=True), change.version
        )  # what its row doesn't say
        third = await here.watch()
        await third.until((1, State.PENDING))
        assert change not in {news.what for news in third.messages}


async def test_the_loop_yields_between_fifty_changes_for_any_number_of_subscribers() -> None:
    async with world() as here:
        for number in range(600):
            here.rows.write(number)
        streams = [here.begin() for _ in range(20)]

        def count_messages() -> int:
            return sum(len(stream.messages) for stream in streams)

        most, before = 0, 0
        while count_messages() < 600 * len(streams):
            await asyncio.sleep(0)
            most, before = max(most, count_messages() - before), count_messages()
        assert most <= IN_A_TURN + len(streams), "and the end of each look"
