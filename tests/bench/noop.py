"""Handlers of the benchmarks' runs, on the worker's event loop: they return at once, or wait."""

from __future__ import annotations

import asyncio
import time

from schedclient import Context, handler


@handler
async def noop(_payload: object, _ctx: Context) -> None:
    """Do nothing."""


@handler
async def until(instant: float, _ctx: Context) -> None:
    """Wait until this time, in seconds since 1970."""
    await asyncio.sleep(max(0.0, instant - time.time()))
