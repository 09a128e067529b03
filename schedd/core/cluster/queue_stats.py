"""Statistics of queues and pools that an owner reads at intervals, for metrics. Pure.

The capacity of a pool is its capacity for its most demanding job: the slots of workers that can run
that job. Only some jobs of the pool are examined. A pool without jobs has the capacity of all
workers.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from schedd.core.dispatch.placement import Need, able
from schedd.core.ids import JobId
from schedd.core.runs.model import Incarnation
from schedd.core.runs.pools import PoolKey
from schedkit.records import dataclass

LATE: Final = timedelta(seconds=2)
"""How long a timer may be due without counting as behind."""
MOST: Final = 10_000
"""Maximum number of timers that are counted."""


@dataclass(frozen=True, slots=True)
class Behind:
    """The number of timers that should have fired, and how long the first of them has been due."""

    timers: int = 0
    since: timedelta = timedelta(0)


def behind(late: Collection[datetime], now: datetime) -> Behind:
    """Count timers that are behind, by the due times before `now` minus `LATE`."""
    return Behind(min(len(late), MOST), now - min(late)) if late else Behind()


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Counts from the rows of some shards. `pools`: with some of their jobs each.

    `overdue`: timers that should have fired. `behind`: how long the first has been due. `backfill`:
    scheduled times that remain.
    """

    pools: dict[PoolKey, tuple[JobId, ...]]
    overdue: int
    behind: timedelta
    backfill: int


@dataclass(frozen=True, slots=True)
class PoolStats:
    """A pool, as its owner sees it. `limit` None: no limit."""

    key: PoolKey
    slots: int
    limit: int | None
    running: int
    waiting: int
    paused: bool


def capacity(workers: Sequence[Incarnation], needs: Iterable[Need]) -> int:
    """Return the slots of the workers that can run the most demanding of these jobs."""
    distinct: Collection[Need] = set(needs)
    if not distinct:
        return sum(worker.slots for worker in workers)
    return min(sum(worker.slots for worker in workers if able(worker, need)) for need in distinct)
