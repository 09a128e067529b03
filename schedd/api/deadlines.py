"""Deadlines of calls: no call waits for an unresponsive PostgreSQL without limit.

    read      UNAVAILABLE, DATABASE_SILENT, after 2.5 s without any answer: nothing was changed
    change    DEADLINE_EXCEEDED, OUTCOME_UNKNOWN: it may have been made, or be made later

A change that exceeds its deadline stops between two transactions, as if its gRPC caller had left. A
statement that was sent ends in PostgreSQL at its own timeout. Owners find changes that they weren't
notified of by their scans. The change isn't continued in the background: retries would pile up and
all run once PostgreSQL answers again.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from types import TracebackType
from typing import Final

from schedd.api.errors import CallError, MemberUnavailableError, unanswered
from schedkit.clock import boottime

READ_WITHIN: Final = 10.0
"""Seconds that a read may take: several statements, each with its own timeout."""

SILENT_FOR: Final = 2.5
"""Seconds without any answer of PostgreSQL after which a read ends: a call answers within 3 s."""

SHORTEST: Final = 0.5
"""Seconds. A deadline below that can't show that PostgreSQL is silent."""

WAITS: Final = 25.0
"""Seconds that a change may wait for other processes, for example workers that return runs, if its
caller gives no deadline. HTTP callers can't.
"""

STATEMENTS: Final = 5.0
"""Seconds that a change has for its own statements beside `WAITS`. So a change that waits too long
can usually report what it waited for.
"""


@asynccontextmanager
async def limit_read(
    deadline: float | None, answered_at: Callable[[], float] = boottime
) -> AsyncIterator[None]:
    """Limit a read to its caller's deadline (seconds from now) and to `READ_WITHIN`. End it sooner
    if PostgreSQL has answered no transaction of this member for `SILENT_FOR` seconds.

    `answered_at` returns when PostgreSQL last answered, in seconds of CLOCK_BOOTTIME.
    """
    within = READ_WITHIN if deadline is None else min(deadline, READ_WITHIN)
    if within < SHORTEST:
        yield
        return
    began = boottime()

    def silent() -> MemberUnavailableError:
        return MemberUnavailableError(
            f"PostgreSQL timed out: no answer within {boottime() - began:.1f} s",
            reason="DATABASE_SILENT",
            remedy="`schedctl cluster doctor` shows the cause; or call another member",
        )

    async with _TimeLimit(within, silent) as limit:
        watch = _Watch(limit, began, within, answered_at)
        try:
            yield
        finally:
            watch.stop()


def changed(waits: float) -> AbstractAsyncContextManager[object]:
    """Limit a change that waits for other processes for at most `waits` seconds."""
    return _TimeLimit(waits + STATEMENTS, unanswered)


class _Watch:
    """End a read early once PostgreSQL is silent."""

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


class _TimeLimit:
    """`asyncio.timeout` with an error of a call."""

    def __init__(self, within: float, error: Callable[[], CallError]) -> None:
        self._limit = asyncio.timeout(within)
        self._error = error

    async def __aenter__(self) -> asyncio.Timeout:
        return await self._limit.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(TimeoutError):
            await self._limit.__aexit__(kind, error, traceback)
            if not isinstance(error, TimeoutError):
                return
        if self._limit.expired():
            raise self._error() from None
