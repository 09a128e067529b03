"""How a daemon starts before its database if it must."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from schedkit import service
from schedkit.backoff import Backoff
from schedkit.errors import Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")


async def once_available(
    step: Callable[[], Coroutine[Any, Any, T]], what: str, daemon: service.Daemon
) -> T | None:
    """Do this as soon as the world is there; a daemon starts before its database if it must.

    None: it was asked to end before.
    """
    backoff = Backoff(0.2, 5.0)
    while not daemon.draining.is_set():
        try:
            return await _unless_draining(step(), daemon)
        except Unavailable as away:
            log.warning("waiting for %s: %s", what, away)
            daemon.status(f"waiting for {what}")
        await _unless_draining(asyncio.sleep(backoff.next()), daemon)
    return None


async def _unless_draining(work: Coroutine[Any, Any, T], daemon: service.Daemon) -> T | None:
    """What the work gives; None as soon as the daemon is asked to end."""
    doing = asyncio.create_task(work, name="start")
    asked = asyncio.create_task(daemon.draining.wait(), name="asked to end")
    try:
        await asyncio.wait({doing, asked}, return_when=asyncio.FIRST_COMPLETED)
        return doing.result() if doing.done() else None
    finally:
        doing.cancel()
        asked.cancel()
        await asyncio.gather(doing, asked, return_exceptions=True)
