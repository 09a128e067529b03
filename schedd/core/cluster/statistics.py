"""Statistics that an owner reads of its queues and pools, and the leader of the database. Pure.

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


# Statistics that the leader reads from the database at intervals, for metrics. Pure.
#
# A role without `pg_read_all_stats` can't see the times of other roles' transactions. It does see
# the oldest id of a transaction that still writes. If two readings have the same id, that
# transaction has been open for at least the time between them. So a forgotten transaction is found
# without privileges.

LOOK_EVERY: Final = timedelta(seconds=30)
MOST_LETTERS: Final = 10_000
"""Maximum number of dead letters that are counted."""


@dataclass(frozen=True, slots=True)
class DatabaseSnapshot:
    """A reading of the database. `now`: the database's clock.

    `oldest`: age of the oldest transaction whose times are visible. `oldest_id`: id of the oldest
    transaction that writes; the next id if none does. `holds`: later transactions have ended, so
    the oldest id is in use.
    """

    now: datetime
    oldest: timedelta
    oldest_id: int
    holds: bool
    dead_letters: int


@dataclass(frozen=True, slots=True)
class DatabaseVitals:
    oldest: timedelta
    dead_letters: int


class StatsWatch:
    """The statistics that follow from consecutive readings."""

    def __init__(self) -> None:
        self._seen: tuple[int, datetime] | None = None
        """The oldest id, and since when it has been in use, exact to one reading."""

    def add_reading(self, look: DatabaseSnapshot) -> DatabaseVitals:
        """Add a reading; return the statistics."""
        if self._seen is None or self._seen[0] != look.oldest_id or not look.holds:
            self._seen = look.oldest_id, look.now
        return DatabaseVitals(max(look.oldest, look.now - self._seen[1]), look.dead_letters)
