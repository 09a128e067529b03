"""Look up access tokens that a member doesn't know: one statement at a time for many of them.

    unknown token -> waiting -> batch of at most MOST_AT_ONCE, one statement -> row or none

Invariants
- One statement runs at a time, so calls with unknown tokens occupy one database thread at most.
- Known tokens don't pass here: they never wait for unknown ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from copy import copy
from itertools import islice
from typing import Final, TypeAlias

from schedd.core.ids import AccessTokenId
from schedd.core.jobs.access_tokens import AccessToken
from schedd.ports import AccessTokenStore
from schedkit.clock import boottime
from schedkit.errors import Unavailable

MOST_AT_ONCE: Final = 256

Rows: TypeAlias = Mapping[AccessTokenId, AccessToken | None]


class TokenLookups:
    """The lookups of unknown tokens of one member.

    `keep` stores the rows that were found, with the time at which the lookup began.
    """

    def __init__(self, store: AccessTokenStore, keep: Callable[[float, Rows], None]) -> None:
        self._store, self._keep = store, keep
        self._waiting: dict[asyncio.Future[AccessToken | None], AccessTokenId] = {}
        self._running: asyncio.Task[None] | None = None

    async def row(self, token: AccessTokenId) -> AccessToken | None:
        """Return the stored row of this token, or None if there is none.

        Raises:
            Unavailable: the database is unavailable.
        """
        found: asyncio.Future[AccessToken | None] = asyncio.get_running_loop().create_future()
        self._waiting[found] = token
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="token lookups")
        try:
            return await found
        finally:
            self._waiting.pop(found, None)

    async def _run(self) -> None:
        """Look up batches until no call waits."""
        try:
            while self._waiting:
                batch = dict(islice(self._waiting.items(), MOST_AT_ONCE))
                for each in batch:
                    del self._waiting[each]
                await self._look_up(batch)
        finally:
            self._running = None

    async def _look_up(
        self, batch: Mapping[asyncio.Future[AccessToken | None], AccessTokenId]
    ) -> None:
        tokens, asked = set(batch.values()), boottime()
        try:
            rows = {row.id: row for row in await self._store.find_all(tokens)}
            self._keep(asked, {token: rows.get(token) for token in tokens})
            for each, token in batch.items():
                if not each.done():
                    each.set_result(rows.get(token))
        except Unavailable as error:
            for each in batch:
                if not each.done():
                    each.set_exception(copy(error))
        finally:  # the lookup was canceled, so its callers are too
            for each in batch:
                each.cancel()
