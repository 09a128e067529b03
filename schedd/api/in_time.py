"""No call waits for ever for a PostgreSQL that stands still. What is answered then:

    read      UNAVAILABLE, DATABASE_SILENT: nothing was changed, for nothing depends on it
    change    DEADLINE_EXCEEDED, OUTCOME_UNKNOWN: it may have happened, and may happen yet

A change ends as that of a gRPC caller whose deadline has passed: between two transactions, each of
which happens once or not at all; one that is at PostgreSQL ends there, in its own time. What nobody
told the owners of, they find. It isn't gone on with behind the answer: who asks again and again
would heap up what is all done once PostgreSQL goes on.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from schedd.api.errors import CallError, OutOfTouch, unanswered

READ_WITHIN: Final = 10.0
"""Seconds that a read may take: several statements, each as long as its own timeout allows."""

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
async def read(deadline: float | None) -> AsyncIterator[None]:
    """Around what only reads, for a caller with this deadline (seconds from now)."""
    within = READ_WITHIN if deadline is None else min(deadline, READ_WITHIN)
    if within < TELLING:  # its caller's haste tells nothing of PostgreSQL
        yield
        return
    silent = OutOfTouch(
        f"PostgreSQL gave this member no answer within {within:.3g} s; nothing was changed",
        reason="DATABASE_SILENT",
        remedy="`schedctl cluster doctor` says what is wrong; or ask another member",
    )
    async with _ended(within, silent):
        yield


@asynccontextmanager
async def changed(waits: float) -> AsyncIterator[None]:
    """Around a change that waits for others so many seconds at most."""
    async with _ended(waits + STATEMENTS, unanswered()):
        yield


@asynccontextmanager
async def _ended(within: float, told: CallError) -> AsyncIterator[None]:
    limit = asyncio.timeout(within)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise told from None
