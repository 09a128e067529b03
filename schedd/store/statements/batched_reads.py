"""Combine reads of runs that arrive at the same time into one statement.

    a thousand watchers ──ids──▶ collected while the last statement runs, EVERY at least ──▶ SELECT

The first caller is served at once. Callers within EVERY of that, or during the statement, are
served by the next one (`schedkit.group_commit`). So the database's load doesn't depend on the
number of watchers. For an unchanged record the same object is returned again, so watchers compare
it cheaply.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import Final, TypeAlias

from schedd.core.ids import RunId
from schedd.core.runs.run_records import RunRecord
from schedkit.group_commit import GroupCommit

EVERY: Final = 0.05
"""Seconds between two reads, at least."""
MOST: Final = 2_000
"""Runs in one statement. A read of more runs has several statements."""

Records: TypeAlias = dict[RunId, RunRecord]


class BatchedReads:
    """Reads runs for many callers. `fetch`: the statement."""

    def __init__(self, fetch: Callable[[Sequence[RunId]], Awaitable[list[RunRecord]]]) -> None:
        self._fetch = fetch
        self._known: Records = {}
        self._reads: GroupCommit[Sequence[RunId], Records] = GroupCommit(
            self._read, most=sys.maxsize, rest=EVERY, reads=True
        )

    async def runs(self, run_ids: Sequence[RunId]) -> list[RunRecord]:
        """Return the existing runs, in a state read after the call. Raises Unavailable."""
        found = await self._reads.ask(run_ids)
        return [found[run_id] for run_id in run_ids if run_id in found]

    async def _read(self, requests: Sequence[Sequence[RunId]]) -> dict[int, Records]:
        """Read the runs of all callers. Each caller picks its own."""
        wanted = [*dict.fromkeys(chain.from_iterable(requests))]
        found: Records = {}
        for first in range(0, len(wanted), MOST):
            for record in await self._fetch(wanted[first : first + MOST]):
                found[record.run.key.run_id] = self._same_if_known(record)
        self._known = found
        return dict.fromkeys(range(len(requests)), found)

    def _same_if_known(self, record: RunRecord) -> RunRecord:
        before = self._known.get(record.run.key.run_id)
        return record if before is None or before != record else before
