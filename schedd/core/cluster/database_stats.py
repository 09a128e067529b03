"""Statistics that the leader reads from the database at intervals, for metrics. Pure.

PostgreSQL hides the times of other roles' transactions from a role without `pg_read_all_stats`, but
shows the oldest id of a transaction that still writes. If the same id is seen again, the time
between is the least for which it has been open: this finds a forgotten one without privileges.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from schedkit.records import dataclass

LOOK_EVERY: Final = timedelta(seconds=30)
MOST_LETTERS: Final = 10_000
"""Dead letters that are counted."""


@dataclass(frozen=True, slots=True)
class DatabaseLook:
    """One reading. `now`: of the database. `oldest`: age of the oldest transaction whose times are
    visible. `oldest_id`: of the oldest one that writes; if none does, the next id. `holds`: later
    transactions have ended, so the oldest id is in use.
    """

    now: datetime
    oldest: timedelta
    oldest_id: int
    holds: bool
    dead_letters: int


@dataclass(frozen=True, slots=True)
class DatabaseVitals:
    """The exported statistics."""

    oldest: timedelta
    dead_letters: int


class StatsWatch:
    """What follows from look after look."""

    def __init__(self) -> None:
        self._seen: tuple[int, datetime] | None = None
        """The oldest id, and since when it is in use, to within one reading."""

    def saw(self, look: DatabaseLook) -> DatabaseVitals:
        """Take the next reading; return the statistics."""
        if self._seen is None or self._seen[0] != look.oldest_id or not look.holds:
            self._seen = look.oldest_id, look.now
        return DatabaseVitals(max(look.oldest, look.now - self._seen[1]), look.dead_letters)
