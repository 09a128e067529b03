"""Combine reads of runs that arrive at the same time into one statement.

    a thousand watchers ──ids──▶ collected while the last statement runs, EVERY at least ──▶ SELECT

The first caller is served at once. Callers within EVERY of that, or during the statement, are
served by the next one. So the database's load doesn't depend on the number of watchers. For an
unchanged record the same object is returned again, so watchers compare it cheaply.
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
"""Runs in one statement. The rest follows in the next one."""


class Gathered:
    """Reads runs for many callers. `fetch`: the statement."""

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
        """Return the existing runs, in a state read after the call. Raises Unavailable."""
        answer = self._answer
        if answer is None or len(self._wanted) + len(run_ids) > MOST:
            answer = self._answer = asyncio.get_running_loop().create_future()
            self._wanted = dict.fromkeys(run_ids)
            await self._read(answer, self._wanted)
        else:
            self._wanted |= dict.fromkeys(run_ids)
            await asyncio.wait([answer])
            if answer.cancelled():  # the caller that read for all was canceled
                return await self.runs(run_ids)
        found = answer.result()
        return [found[run_id] for run_id in run_ids if run_id in found]

    async def _read(
        self, answer: asyncio.Future[dict[RunId, RunRecord]], wanted: dict[RunId, None]
    ) -> None:
        """Read the runs requested so far, and answer all callers."""
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
        """Close this batch: later callers get the next one."""
        if self._answer is answer:
            self._answer = None
