"""Daily partitions of `runs`, made ahead of time.

    runs_default ← whatever has no day of its own (backfills far back, instants far ahead)
    runs_20260101, runs_20260102, …

Invariants
- A day begins at 00:00 UTC. Its partition keeps two thirds of each page free for the two updates
  that a run sees: all of them are HOT then.
- A past day that is empty, since its runs weren't kept any longer, is dropped. What comes for it
  later, by a backfill, has its place in the default partition.
- Making a day never blocks a writer for longer than an empty table takes: the table is made first
  and attached then. A day that has rows in the default partition already stays there.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from schedd.store.connection.errors import sqlstate

log = logging.getLogger(__name__)

DAYS_AHEAD = 7

AT_MOST = "100ms"
HOLDS_UP = "500ms"
"""More than a lock may take to get, so that a wait is told as one."""
TOOK_TOO_LONG = {"55P03", "57014"}
_OF_A_DAY = re.compile(r"runs_[0-9]{8}")

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


OWNER = """
SELECT pg_get_userbyid(relowner), quote_ident(pg_get_userbyid(relowner)), current_user
FROM pg_class WHERE oid = 'runs'::regclass
"""


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
    owner, quoted, ours = connection.exec_driver_sql(OWNER).one()
    if owner != ours:  # a member of the owning role made it: all partitions have one owner
        connection.exec_driver_sql(f"ALTER TABLE {name} OWNER TO {quoted}")
    connection.exec_driver_sql(
        f"ALTER TABLE runs ATTACH PARTITION {name} FOR VALUES FROM (%s) TO (%s)", (start, end)
    )
    return True


def making(day: date) -> Callable[[Connection], bool]:
    """`make_day` as the body of a transaction."""
    return lambda connection: make_day(connection, day)


def past_days(connection: Connection) -> list[date]:
    """Days that have a partition, and were over two days ago; oldest first."""
    now = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
    newest = name_of(now.astimezone(UTC).date() - timedelta(days=3))
    names = connection.exec_driver_sql(EXISTING).scalars()
    past = sorted(name for name in names if _OF_A_DAY.fullmatch(name) and name <= newest)
    return [datetime.strptime(name[-8:], "%Y%m%d").replace(tzinfo=UTC).date() for name in past]


def is_empty(day: date) -> Callable[[Connection], bool]:
    """Whether it holds no row; read without a lock."""
    statement = f"SELECT 1 FROM {name_of(day)} LIMIT 1"
    return lambda connection: connection.exec_driver_sql(statement).first() is None


def drop_day(connection: Connection, day: date) -> bool:
    """Drop it if it is empty and nobody is at it. Everybody waits for that lock, so neither waiting
    for it nor looking under it takes longer than a moment; False: another time.
    """
    name = name_of(day)
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{AT_MOST}'")
    connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{HOLDS_UP}'")
    try:
        with connection.begin_nested():
            connection.exec_driver_sql("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
            if not is_empty(day)(connection):
                return False
            connection.exec_driver_sql(f"DROP TABLE {name}")
    except DBAPIError as error:
        if sqlstate(error) not in TOOK_TOO_LONG:
            raise
        return False
    return True


def dropping(day: date) -> Callable[[Connection], bool]:
    """`drop_day` as the body of a transaction."""
    return lambda connection: drop_day(connection, day)


def name_of(day: date) -> str:
    """The table of a day."""
    return f"runs_{day:%Y%m%d}"


def bounds_of(day: date) -> tuple[datetime, datetime]:
    """Its first instant, and the first that is not its own any more."""
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return start, start + timedelta(days=1)
