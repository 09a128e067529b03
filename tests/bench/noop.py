"""Handlers of the benchmarks' runs, on the worker's event loop: they return at once, or wait."""

from __future__ import annotations

import asyncio
import time

from schedclient import Context, handler


@handler
async def noop(_payload: object, _ctx: Context) -> None:
    """Nothing."""


@handler
async def until(instant: float, _ctx: Context) -> None:
    """Be in hand until then, in seconds of the epoch; nothing if that has passed."""
    await asyncio.sleep(max(0.0, instant - time.time()))
