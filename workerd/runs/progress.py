"""How far one attempt is, as it tells: the newest of it, at a bounded rate.

    handler, any thread ──came──→ newest ──the loop, at most once in `EVERY`──→ tell

What comes quickly is left out; the last that is said is always told, if the attempt goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from datetime import datetime
from math import inf
from typing import Final

from schedclient.handlers import Progress
from schedkit.clock import boottime
from schedproto.v1 import worker_service_pb2 as pb

EVERY: Final = 0.25
"""Seconds from one telling to the next, at least."""
_newest: Final = threading.RLock()
"""Held for a moment by whoever tells or takes the newest, of any attempt."""


class Advance:
    """Of an attempt that begins now. Belongs to the event loop; `came` may be called anywhere."""

    __slots__ = (
        "_closed",
        "_date",
        "_key",
        "_loop",
        "_newest",
        "_tell",
        "_timer",
        "_told_at",
        "told",
    )

    def __init__(
        self,
        key: pb.AssignmentKey,
        date: Callable[[], datetime],
        tell: Callable[[pb.Progress], object],
    ) -> None:
        """`date`: the cluster's time."""
        self._key = key
        self._date = date
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._newest: Progress | None = None
        self._told_at = -inf
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.told: pb.Progress | None = None
        """What was told last."""

    def came(self, progress: Progress) -> None:
        """It is so far."""
        with _newest:
            due, self._newest = self._newest is None, progress
        if due:
            with contextlib.suppress(RuntimeError):  # a closed loop: the worker has ended
                self._loop.call_soon_threadsafe(self._plan)

    def close(self) -> None:
        """It has ended: nothing more is told."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _plan(self) -> None:
        if not self._closed:
            wait = self._told_at + EVERY - boottime()
            self._timer = self._loop.call_later(max(wait, 0.0), self._say)

    def _say(self) -> None:
        with _newest:
            newest, self._newest = self._newest, None
        assert newest is not None, "it was planned for one"
        self._told_at = boottime()
        self.told = pb.Progress(
            key=self._key,
            fraction=newest.fraction,
            done=newest.done,
            total=newest.total,
            note=newest.note,
        )
        self.told.at.FromDatetime(self._date())
        self._tell(self.told)
