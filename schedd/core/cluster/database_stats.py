"""Statistics that the leader reads from the database at intervals, for metrics. Pure.

A role without `pg_read_all_stats` can't see the times of other roles' transactions. It does see the
oldest id of a transaction that still writes. If two readings have the same id, that transaction has
been open for at least the time between them. So a forgotten transaction is found without
privileges.
"""

from datetime import datetime, timedelta
from typing import Final

from schedkit.records import dataclass

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
