"""No call waits for ever for a PostgreSQL that stands still. What is answered then:

    read      UNAVAILABLE, DATABASE_SILENT, after 2.5 s without any answer: nothing was changed
    change    DEADLINE_EXCEEDED, OUTCOME_UNKNOWN: it may have happened, and may happen yet

A change ends as that of a gRPC caller whose deadline has passed: between two transactions, each of
which happens once or not at all; one that is at PostgreSQL ends there, in its own time. What nobody
told the owners of, they find. It isn't gone on with behind the answer: who asks again and again
would heap up what is all done once PostgreSQL goes on.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from schedd.api.errors import CallError, OutOfTouch, unanswered
from schedkit.clock import boottime

READ_WITHIN: Final = 10.0
"""Seconds that a read may take: several statements, each as long as its own timeout allows."""

SILENT_FOR: Final = 2.5
"""Seconds without any answer of PostgreSQL after which a read ends: a call answers within 3 s."""

TELLING: Final = 0.5
"""Seconds after which it says something of PostgreSQL that there was no answer."""

WAITS: Final = 25.0
"""Seconds that a change may wait for others, such as workers that give runs back, where its caller
doesn't say: HTTP's can't.
"""

STATEMENTS: Final = 5.0
"""Seconds that it has beside them for its own statements: so it says itself what it waited for in
vain, unless those take so long.
"""


@asynccontextmanager
async def read(
    deadline: float | None, answered_at: Callable[[], float] = boottime
) -> AsyncIterator[None]:
    """Limit a read to its caller's deadline (seconds from now) and to `READ_WITHIN`. End it sooner
    if PostgreSQL has answered no transaction of this member for `SILENT_FOR` seconds.

    `answered_at` returns when PostgreSQL last answered, in seconds of CLOCK_BOOTTIME.
    """
    within = READ_WITHIN if deadline is None else min(deadline, READ_WITHIN)
    if within < TELLING:  # a shorter deadline says nothing of PostgreSQL
        yield
        return
    began = boottime()
    async with _ended(within, lambda: _silent(boottime() - began)) as limit:
        watch = _Watch(limit, began, within, answered_at)
        try:
            yield
        finally:
            watch.stop()


@asynccontextmanager
async def changed(waits: float) -> AsyncIterator[None]:
    """Around a change that waits for others so many seconds at most."""
    async with _ended(waits + STATEMENTS, unanswered):
        yield


class _Watch:
    """Ends a read early once PostgreSQL is silent."""

    def __init__(
        self, limit: asyncio.Timeout, began: float, within: float, answered_at: Callable[[], float]
    ) -> None:
        self._limit = limit
        self._began = began
        self._answered_at = answered_at
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        if within > SILENT_FOR:
            self._timer = self._loop.call_later(SILENT_FOR, self._check)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        left = max(self._began, self._answered_at()) + SILENT_FOR - boottime()
        if left <= 0:
            self._limit.reschedule(self._loop.time())
        else:
            self._timer = self._loop.call_later(left, self._check)


def _silent(after: float) -> OutOfTouch:
    return OutOfTouch(
        f"PostgreSQL gave this member no answer within {after:.1f} s; nothing was changed",
        reason="DATABASE_SILENT",
        remedy="`schedctl cluster doctor` says what is wrong; or ask another member",
    )


@asynccontextmanager
async def _ended(within: float, error: Callable[[], CallError]) -> AsyncIterator[asyncio.Timeout]:
    limit = asyncio.timeout(within)
    try:
        async with limit:
            yield limit
    except TimeoutError:
        if not limit.expired():
            raise
        raise error() from None
