"""Changes of runs, for subscribers: the messages they get, and their cost."""

from __future__ import annotations

import asyncio

import pytest

from schedd.core.runs.change_stream import MOST_WAITING, Cursor, MissedChanges, Scope
from schedd.core.runs.lifecycle import State
from schedkit.errors import Unavailable
from support.feeds import ALL, ETL, OTHER, world
from support.runs import NOW
from support.wait import WAIT_TIMEOUT, wait_until_async


async def test_a_stream_begins_with_unended_runs_and_continues_with_changes() -> None:
    async with world() as here:
        here.rows.write(1)
        here.rows.write(2, State.SUCCEEDED)
        stream = await here.watch()
        here.change(1, State.RUNNING)
        await stream.until((1, State.PENDING), (1, State.RUNNING))
        assert 2 not in {number for number, _ in stream.states}


async def test_a_subscriber_of_a_job_gets_only_its_runs_and_others_are_not_read() -> None:
    async with world() as here:
        stream = await here.watch(Scope("default", ETL))
        here.change(1, State.RUNNING, OTHER)
        reads = here.rows.asked.count("read")
        here.change(2, State.RUNNING, ETL)
        await stream.until((2, State.RUNNING))
        assert stream.states == [(2, State.RUNNING)]
        assert here.rows.asked.count("read") == reads + 1


async def test_an_unreported_change_is_found_by_the_next_sweep_and_sent_once() -> None:
    async with world(sweeps=0.02) as here:
        stream = await here.watch()
        here.rows.write(1, State.SUCCEEDED)
        await stream.until((1, State.SUCCEEDED))
        sweeps = here.rows.asked.count("since")
        await wait_until_async(
            lambda: here.rows.asked.count("since") > sweeps + 3, WAIT_TIMEOUT, "more sweeps"
        )
        assert stream.states == [(1, State.SUCCEEDED)]


async def test_a_stream_continues_from_its_cursor_at_another_member_and_misses_nothing() -> None:
    async with world(sweeps=0.02) as here, world(rows=here.rows) as there:
        stream = await here.watch()
        here.change(1, State.SUCCEEDED)
        await stream.until((1, State.SUCCEEDED))
        await wait_until_async(
            lambda: stream.messages[-1].what is None, WAIT_TIMEOUT, "a checkpoint"
        )
        cursor = stream.messages[-1].cursor
        here.change(2, State.SUCCEEDED)

        again = await there.watch(after=cursor)

        assert again.states == [(2, State.SUCCEEDED)]
        assert again.gaps == []


async def test_a_cursor_of_another_database_gets_a_gap_and_the_unended_runs() -> None:
    async with world() as here:
        here.rows.write(1)
        stream = await here.watch(after=Cursor(9, 1))
        assert stream.states == [(1, State.PENDING)]
        [gap] = stream.gaps
        assert gap.before is None


async def test_a_subscriber_gets_a_gap_and_the_unended_runs_when_the_database_goes_back() -> None:
    async with world(sweeps=0.02) as here:
        stream = await here.watch()
        here.rows.timeline = 2
        here.rows.write(1)
        await stream.until((1, State.PENDING))
        assert [gap.before for gap in stream.gaps] == [None]
        last = stream.messages[-1].cursor
        assert last is not None
        assert last.timeline == 2


async def test_changes_that_a_snapshot_missed_are_sent_as_a_gap_to_a_resumed_stream() -> None:
    async with world() as here:
        here.rows.before = MissedChanges(Cursor(1, 1), before=NOW)
        stream = await here.watch(after=Cursor(1, 1))
        assert [gap.before for gap in stream.gaps] == [NOW]


async def test_a_feed_that_missed_changes_sweeps_the_rows_at_once() -> None:
    async with world() as here:
        stream = await here.watch()
        run = here.rows.write(1, State.FAILED)
        here.rows.before = MissedChanges(Cursor(1, 1), (run,), before=NOW)
        here.feed.deaf()
        await stream.until((1, State.FAILED))
        await wait_until_async(lambda: stream.gaps, WAIT_TIMEOUT, "the gap")


async def test_an_unreported_end_of_an_old_run_is_found_outside_the_sweeps() -> None:
    async with world(sweeps=0.02) as here:
        run = here.rows.write(1, State.RUNNING)
        here.rows.before = MissedChanges(Cursor(1, 1), older=frozenset({run}), before=NOW)
        stream = await here.watch()
        here.rows.write(1, State.SUCCEEDED)
        here.rows.before = MissedChanges(Cursor(1, 1), before=NOW)
        await stream.until((1, State.SUCCEEDED))


async def test_a_slow_reader_gets_the_last_state_of_each_run_and_delays_no_other() -> None:
    async with world() as here:
        slow, quick = await here.watch(), await here.watch()
        slow.reads.clear()
        for state in (State.PENDING, State.RUNNING, State.SUCCEEDED):
            here.change(1, state)
            await quick.until((1, state))
        for number in range(2, 5):
            here.change(number, State.SUCCEEDED)
            await quick.until((number, State.SUCCEEDED))
        slow.reads.set()
        await slow.until(*[(number, State.SUCCEEDED) for number in range(1, 5)])
        assert (1, State.RUNNING) not in slow.states


async def test_a_reader_that_falls_far_behind_catches_up_from_rows() -> None:
    async with world() as here:
        slow, quick = await here.watch(), await here.watch()
        slow.reads.clear()
        numbers = range(MOST_WAITING + 200)
        for number in numbers:
            here.change(number, State.SUCCEEDED)
            if number % 200 == 0:
                await quick.until((number, State.SUCCEEDED))
        await quick.until(*[(number, State.SUCCEEDED) for number in numbers])
        [box, _] = here.feed._boxes
        assert len(box._waiting) <= MOST_WAITING
        assert box.behind
        slow.reads.set()
        await slow.until(*[(number, State.SUCCEEDED) for number in numbers])


@pytest.mark.slow
async def test_two_hundred_subscribers_cost_as_many_statements_as_one() -> None:
    async with world() as here:
        streams = [await here.watch() for _ in range(200)]
        here.rows.asked.clear()
        here.change(1, State.SUCCEEDED)
        for stream in streams:
            await stream.until((1, State.SUCCEEDED))
        assert here.rows.asked == ["read"]


async def test_without_subscribers_nothing_is_read_received_or_kept() -> None:
    async with world(sweeps=0.01) as here:
        for number in range(3):
            here.change(number, State.RUNNING)
        await asyncio.sleep(0.05)
        assert here.rows.asked == []
        await here.watch()
        here.tasks[-1].cancel()
        await wait_until_async(lambda: not here.feed._boxes, WAIT_TIMEOUT, "the end of the stream")
        here.change(9, State.RUNNING)
        assert (here.feed._hints, here.feed._known, here.feed._reached) == ({}, {}, None)
        assert here.feed.jobs == frozenset()


async def test_a_database_outage_delays_changes_and_loses_none() -> None:
    async with world() as here:
        stream = await here.watch()
        here.rows.away = True
        here.change(1, State.SUCCEEDED)
        await asyncio.sleep(0.05)
        here.rows.away = False
        await stream.until((1, State.SUCCEEDED))


async def test_a_stream_that_cannot_begin_reports_why() -> None:
    async with world() as here:
        here.rows.away = True
        with pytest.raises(Unavailable):
            await anext(here.feed.follow(ALL, None))


async def test_an_end_is_sent_though_its_transaction_began_before_another() -> None:
    """The transaction waited for the row that the other one wrote."""
    async with world() as here:
        stream = await here.watch()
        here.change(1, State.RUNNING)
        await stream.until((1, State.RUNNING))
        here.rows.transaction -= 2
        here.change(1, State.SUCCEEDED)
        await stream.until((1, State.SUCCEEDED))


async def test_an_unended_state_isnt_sent_after_the_end_of_a_run() -> None:
    """A read that was under way comes later than one that began after it."""
    async with world() as here:
        after = await here.rows.now()
        here.rows.write(1, State.SUCCEEDED)
        stream = await here.watch(after=after)
        await stream.until((1, State.SUCCEEDED))
        here.change(1, State.RUNNING)
        here.change(2, State.RUNNING)
        await stream.until((2, State.RUNNING))
        assert stream.states == [(1, State.SUCCEEDED), (2, State.RUNNING)]


async def test_a_stream_that_breaks_in_its_first_snapshot_begins_again() -> None:
    async with world() as here:
        for number in range(3):
            here.rows.write(number)
        stream = await here.watch()
        await stream.until((2, State.PENDING))
        cursors = [news.cursor for news in stream.messages]
        assert cursors[:3] == [None] * 3
        assert cursors[3] is not None
