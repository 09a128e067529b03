"""The pulse of an event loop: how long it stood still, and for how long that is remembered."""

from __future__ import annotations

import asyncio
import time

from schedd.runtime.loop_monitor import EVERY, LoopMonitor
from schedkit.lease_margin import WINDOW
from support.wait import wait_until_async

TICK = 0.001
"""Seconds between readings of two clocks, generously."""


async def test_a_step_that_doesnt_yield_is_seen_and_measured() -> None:
    pulse, created = LoopMonitor(), time.monotonic()
    beating = asyncio.create_task(pulse.run(), name="pulse")
    await asyncio.sleep(0)

    began = time.monotonic()
    while time.monotonic() < began + 3 * EVERY:  # the block is the subject
        pass

    await wait_until_async(lambda: pulse.longest > 0, 10, "the block to be seen")
    late = time.monotonic() - created - EVERY
    assert 2 * EVERY - TICK <= pulse.longest <= late + TICK
    beating.cancel()


def test_the_longest_delay_is_reported_for_a_minute_and_forgotten_after_two() -> None:
    now = [0.0]
    pulse = LoopMonitor(lambda: now[0])

    pulse.record_step(0.7, 0.1)
    pulse.record_step(0.2, 0.3)
    assert (pulse.longest, pulse.longest_by_own_work) == (0.7, 0.2)
    now[0] = WINDOW
    pulse.record_step(0.1, 0.1)
    assert (pulse.longest, pulse.longest_by_own_work) == (0.7, 0.2)
    now[0] = 2 * WINDOW
    pulse.record_step(0.1, 0.1)
    assert (pulse.longest, pulse.longest_by_own_work) == (0.1, 0.1)
