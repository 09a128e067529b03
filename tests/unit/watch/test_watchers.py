"""Waiting for runs to change, again and again."""

from __future__ import annotations

import asyncio
import time

from schedd.core.ids import Id, RunId
from schedd.watch.change_bus import Watchers

ONE, OTHER = RunId(Id.from_int(1)), RunId(Id.from_int(2))
LONG = 10.0


async def test_a_change_wakes_waiters_of_its_run_only() -> None:
    watchers = Watchers()
    with watchers.watching([ONE]) as watch:
        waiting = asyncio.create_task(watch.wait(LONG), name="waiting")
        await asyncio.sleep(0)
        watchers.changed([(OTHER, None)])
        await asyncio.sleep(0)
        assert not waiting.done()
        watchers.changed([(ONE, None)])
        async with asyncio.timeout(LONG / 2):
            await waiting


async def test_a_change_between_two_waits_is_not_missed_and_counts_once() -> None:
    watchers = Watchers()
    with watchers.watching([ONE, OTHER]) as watch:
        watchers.changed([(OTHER, None)])
        began = time.monotonic()
        await watch.wait(LONG)
        assert time.monotonic() - began < LONG / 2
        await watch.wait(0.05)
        assert time.monotonic() - began >= 0.05


async def test_no_state_is_kept_of_watchers_that_left() -> None:
    watchers = Watchers()
    with watchers.watching([ONE]), watchers.watching([ONE, OTHER]):
        pass
    assert not watchers._watched
