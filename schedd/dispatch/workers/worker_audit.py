"""Audit rejected items of workers: one row for each worker, kind and minute.

    stream, collector ──rejected(worker, kind, why)──→ counted in memory ──loop──→ audit row

A worker can send thousands of items a second that are rejected: out of bounds, or results of runs
that don't exist. The first of a kind is written at once. Later ones are counted, and written as one
row after a minute.

Invariants
- At most `MOST_KEPT` entries are in memory; beyond that the oldest worker's entry is dropped.
- While the database is unavailable, no count in memory is lost; the loop retries.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from schedd.core.runs.model import AuditRecord, Incarnation
from schedd.store.user_store import UserStore
from schedkit.clock import boottime
from schedkit.records import dataclass
from schedkit.tasks import Loop

EVERY: Final = 60.0
"""Seconds between two rows of one worker and kind."""
MOST_KEPT: Final = 10_000
LONGEST_WHY: Final = 300


@dataclass(slots=True)
class _Kept:
    host: str
    why: str
    count: int = 0
    """Rejected items since the last row."""
    written_at: float | None = None


class WorkerAudit:
    """Counts rejected items and writes them. Created once per process."""

    def __init__(self, log: UserStore, boot: Callable[[], float] = boottime) -> None:
        self._log = log
        self._boot = boot
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self.loop = Loop("worker audit", self.step, interval=EVERY / 12)

    def rejected(self, who: Incarnation, kind: str, why: str) -> None:
        """Count a rejected item of this worker."""
        self.note(who.worker, who.host, kind, why)

    def note(self, worker: str, source: str, kind: str, why: str, count: int = 1) -> None:
        """Count rejected items of a worker."""
        kept = self._kept.get((worker, kind))
        if kept is None:
            kept = self._kept[worker, kind] = _Kept(source, why[:LONGEST_WHY])
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            self.loop.wake()
        kept.count += count
        kept.why = why[:LONGEST_WHY]

    async def step(self) -> None:
        """Write the rows that are due. Raises Unavailable."""
        now = self._boot()
        for (worker, kind), kept in self._due(now):
            count, kept.count = kept.count, 0
            try:
                await self._log.audit(_entry(worker, kind, kept, count))
            except BaseException:
                kept.count += count
                raise
            kept.written_at = now

    def _due(self, now: float) -> Sequence[tuple[tuple[str, str], _Kept]]:
        due = []
        for at, kept in [*self._kept.items()]:
            if kept.written_at is not None and now - kept.written_at < EVERY:
                continue
            if kept.count:
                due.append((at, kept))
            else:
                del self._kept[at]
        return due


def _entry(worker: str, kind: str, kept: _Kept, count: int) -> AuditRecord:
    return AuditRecord(
        actor=f"worker/{worker}",
        action=kind.replace(" ", "_"),
        object=f"worker/{worker}",
        outcome="refused",
        reason="REJECTED",
        worker=worker,
        source=kept.host,
        after=json.dumps({"count": count, "problem": kept.why}),
    )
