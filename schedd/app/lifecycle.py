"""How a daemon starts before its database if it must, and what its service manager hears of it.

waiting for PostgreSQL ──▶ waiting for etcd ──READY──▶ serving │ serving; not ready: why
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NoReturn, TypeVar

from schedkit.backoff import Backoff
from schedkit.daemon import service
from schedkit.errors import NotNow, Rejected, Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at whether a daemon is ready to serve."""


async def once_available(
    step: Callable[[], Coroutine[Any, Any, T]], what: str, daemon: service.Daemon
) -> T | None:
    """Do this as soon as the world is there; a daemon starts before its database if it must.

    None: it was asked to end before.

    Raises:
        NotNow: the dependency rejects this process. A start ends by that, so that whoever starts it
            sees why; its service manager tries again.
    """
    backoff = Backoff(0.2, 5.0)
    while not daemon.draining.is_set():
        try:
            return await _unless_draining(step(), daemon)
        except Rejected as rejected:
            raise NotNow(str(rejected)) from rejected
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


class ServingStatus:
    """How a daemon that serves stands, for its service manager. `answered`: whether etcd has; until
    then it takes what is sent to it, but it isn't started. `unready`: why it isn't ready to serve.
    """

    def __init__(
        self,
        daemon: service.Daemon,
        serving: str,
        answered: Callable[[], bool],
        unready: Callable[[], Sequence[str]],
    ) -> None:
        self._daemon = daemon
        self._serving = serving
        self._answered = answered
        self._unready = unready
        self._started = asyncio.Event()

    async def start(self) -> NoReturn:
        """READY once etcd has answered; then the answers to reloads."""
        await self._started.wait()
        self._daemon.ready(self._serving)
        await service.answer_reloads(self._daemon, self._serving)

    async def tell(self) -> NoReturn:
        """Its status, whenever that is another, and as long as it isn't ready; its end it tells
        itself.
        """
        told = ""
        while True:
            started = self._started.is_set()
            if self._answered():
                self._started.set()
            status = self._status()
            again = started and status != self._serving  # a reload may have told otherwise
            if (again or status != told) and not self._daemon.draining.is_set():
                told = status
                self._daemon.status(status)
            await asyncio.sleep(LOOK_EVERY if self._started.is_set() else LOOK_EVERY / 10)

    def _status(self) -> str:
        if not self._answered():
            return f"{self._serving}; waiting for etcd"
        reasons = self._unready()
        return f"{self._serving}; not ready: {', '.join(reasons)}" if reasons else self._serving
