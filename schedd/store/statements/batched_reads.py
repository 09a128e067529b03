"""One statement for all who ask the same thing at the same time.

    a thousand watchers ──ids──▶ gathered while the last statement runs, and a moment ──▶ one SELECT

Who asks first is served at once; who asks within EVERY of that, or while it runs, by the next one.
So watching costs the database the same however many watch. A record that is as it was is the very
object that was given before: a look that finds nothing new costs who watches next to nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from schedd.core.ids import RunId
from schedd.core.runs.run_records import RunRecord
from schedkit.clock import boottime
from schedkit.errors import Unavailable

EVERY: Final = 0.05
"""Seconds between two statements, at least."""
MOST: Final = 2_000
"""Runs in one statement; of more the rest is asked for right after it."""


class Gathered:
    """Reads runs for many. `fetch`: the statement."""

    def __init__(
        self,
        fetch: Callable[[Sequence[RunId]], Awaitable[list[RunRecord]]],
        clock: Callable[[], float] = boottime,
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._turn = asyncio.Lock()
        self._last = -EVERY
        self._wanted: dict[RunId, None] = {}
        self._known: dict[RunId, RunRecord] = {}
        self._answer: asyncio.Future[dict[RunId, RunRecord]] | None = None

    async def runs(self, run_ids: Sequence[RunId]) -> list[RunRecord]:
        """Those that exist, as they stand after the call was made. Raises Unavailable."""
        answer = self._answer
        if answer is None or len(self._wanted) + len(run_ids) > MOST:
            answer = self._answer = asyncio.get_running_loop().create_future()
            self._wanted = dict.fromkeys(run_ids)
            await self._read(answer, self._wanted)
        else:
            self._wanted |= dict.fromkeys(run_ids)
            await asyncio.wait([answer])
            if answer.cancelled():  # who was to read for all has left
                return await self.runs(run_ids)
        found = answer.result()
        return [found[run_id] for run_id in run_ids if run_id in found]

    async def _read(
        self, answer: asyncio.Future[dict[RunId, RunRecord]], wanted: dict[RunId, None]
    ) -> None:
        """Read what has been asked for until its turn comes, and tell all."""
        try:
            async with self._turn:
                await asyncio.sleep(max(0.0, self._last + EVERY - self._clock()))
                self._last = self._clock()
                self._close(answer)
                records = await self._fetch([*wanted])
            self._known = {record.run.key.run_id: self._kept(record) for record in records}
            answer.set_result(self._known)
        except Unavailable as away:
            answer.set_exception(away)
        finally:
            self._close(answer)
            if not answer.done():
                answer.cancel()

    def _kept(self, record: RunRecord) -> RunRecord:
        before = self._known.get(record.run.key.run_id)
        return record if before is None or before != record else before

    def _close(self, answer: asyncio.Future[dict[RunId, RunRecord]]) -> None:
        """Who asks from now on isn't answered by this."""
        if self._answer is answer:
            self._answer = None
