"""Daily partitions of `runs`, made ahead of time.

    runs_default ← whatever has no day of its own (backfills far back, instants far ahead)
    runs_20260101, runs_20260102, …

Invariants
- A day begins at 00:00 UTC. Its partition keeps two thirds of each page free for the two updates
  that a run sees: all of them are HOT then.
- Making a day never blocks a writer for longer than an empty table takes: the table is made first
  and attached then. A day that has rows in the default partition already stays there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

from sqlalchemy import Connection

log = logging.getLogger(__name__)

DAYS_AHEAD = 7

EXISTING = """
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'runs'::regclass
"""


def missing_days(connection: Connection, days: int) -> list[date]:
    """Days from yesterday to `days` ahead that have no partition and no rows in the default one."""
    existing = set(connection.exec_driver_sql(EXISTING).scalars())
    now = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
    wanted = [now.astimezone(UTC).date() + timedelta(n) for n in range(-1, days + 1)]
    return [day for day in wanted if name_of(day) not in existing]


def make_day(connection: Connection, day: date) -> bool:
    """Make the partition of one day; False when the default one holds rows of it."""
    start, end = bounds_of(day)
    name = name_of(day)
    taken = connection.exec_driver_sql(
        "SELECT 1 FROM runs_default WHERE scheduled_at >= %s AND scheduled_at < %s LIMIT 1",
        (start, end),
    )
    if taken.first() is not None:
        log.warning("runs of %s stay in the default partition: it holds some of them", day)
        return False
    connection.exec_driver_sql(
        f"CREATE TABLE {name} (LIKE runs INCLUDING DEFAULTS INCLUDING INDEXES)"
        " WITH (fillfactor = 33)"
    )
    connection.exec_driver_sql(
        f"ALTER TABLE runs ATTACH PARTITION {name} FOR VALUES FROM (%s) TO (%s)", (start, end)
    )
    return True


def making(day: date) -> Callable[[Connection], bool]:
    """`make_day` as the body of a transaction."""
    return lambda connection: make_day(connection, day)


def name_of(day: date) -> str:
    """The table of a day."""
    return f"runs_{day:%Y%m%d}"


def bounds_of(day: date) -> tuple[datetime, datetime]:
    """Its first instant, and the first that is not its own any more."""
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return start, start + timedelta(days=1)
