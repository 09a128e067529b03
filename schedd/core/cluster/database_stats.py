"""What the leader looks at in the database now and then, for whoever watches the cluster. Pure.

PostgreSQL shows a role without `pg_read_all_stats` no other's times, but everybody the oldest id of
a transaction that still writes. Who sees the same id again knows for how long it has been open, at
least: so a forgotten one is found with no right at all.
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
    """One look. `now`: of the database. `oldest`: age of the oldest transaction whose times may be
    seen. `oldest_id`: of the oldest that writes, or would be of the next. `holds`: later ones have
    ended since, so that somebody has it.
    """

    now: datetime
    oldest: timedelta
    oldest_id: int
    holds: bool
    dead_letters: int


@dataclass(frozen=True, slots=True)
class DatabaseVitals:
    """What is told of it."""

    oldest: timedelta
    dead_letters: int


class StatsWatch:
    """What follows from look after look."""

    def __init__(self) -> None:
        self._seen: tuple[int, datetime] | None = None
        """The oldest id, and since when somebody has it, a look more or less."""

    def saw(self, look: DatabaseLook) -> DatabaseVitals:
        """The next look."""
        if self._seen is None or self._seen[0] != look.oldest_id or not look.holds:
            self._seen = look.oldest_id, look.now
        return DatabaseVitals(max(look.oldest, look.now - self._seen[1]), look.dead_letters)
