"""Statistics that an owner reads of its queues and pools, and the leader of the database. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
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


@dataclass(frozen=True, slots=True)
class Behind:
    """The number of timers that should have fired, and how long the first of them has been due."""

    timers: int = 0
    since: timedelta = timedelta(0)


def behind(timers: Counter[datetime | None], now: datetime) -> Behind:
    """Count timers that are behind. `timers`: the number of timers by due time."""
    late = [at for at in timers if at is not None and at < now - LATE]
    if not late:
        return Behind()
    return Behind(min(sum(timers[at] for at in late), MOST), now - min(late))


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Counts from the rows of some shards. `pools`: with some of their jobs each."""

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
    """Return the slots of the workers that can run the most demanding of these jobs; of all workers
    if there is no job.
    """
    able_to = (sum(one.slots for one in workers if able(one, need)) for need in set(needs))
    return min(able_to, default=sum(worker.slots for worker in workers))


# A role without `pg_read_all_stats` can't see the times of other roles' transactions. It does see
# the oldest id of a transaction that still writes. If two readings have the same id, that
# transaction has been open for at least the time between them. So a forgotten transaction is found
# without privileges.

LOOK_EVERY: Final = timedelta(seconds=30)
MOST_LETTERS: Final = 10_000


@dataclass(frozen=True, slots=True)
class DatabaseSnapshot:
    now: datetime
    """The database's clock."""
    oldest: timedelta
    """Age of the oldest transaction whose times are visible."""
    oldest_id: int
    """Id of the oldest transaction that writes; the next id if none does."""
    holds: bool
    """Whether later transactions have ended, so the oldest id is in use."""
    dead_letters: int


class StatsWatch:
    def __init__(self) -> None:
        self._seen: tuple[int, datetime] | None = None
        """The oldest id, and since when it has been in use, exact to one reading."""

    def add_reading(self, look: DatabaseSnapshot) -> timedelta:
        """Add a reading; return the age of the oldest transaction."""
        if self._seen is None or self._seen[0] != look.oldest_id or not look.holds:
            self._seen = look.oldest_id, look.now
        return max(look.oldest, look.now - self._seen[1])
