"""Daily partitions of `runs`, made ahead of time.

    runs_default ← runs whose day has no partition (old backfills, times far in the future)
    runs_20260101, runs_20260102, …

Invariants
- A day begins at 00:00 UTC. Its partition keeps two thirds of each page free for the two updates of
  a run, so that all of them are HOT.
- The partition of a past day is dropped when retention has emptied it. Later runs of that day, of a
  backfill, go to the default partition.
- Creating a partition blocks writers only for the time of attaching an empty table. A day that
  already has rows in the default partition gets none.
"""

from __future__ import annotations

import logging
import re
from datetime import UTC, date, datetime, timedelta

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from schedd.store.connection.errors import sqlstate

log = logging.getLogger(__name__)

DAYS_AHEAD = 7

AT_MOST = "100ms"
HOLDS_UP = "500ms"
"""Greater than the lock timeout, so that a lock wait has its own SQLSTATE."""
TOOK_TOO_LONG = {"55P03", "57014"}
_OF_A_DAY = re.compile(r"runs_[0-9]{8}")

EXISTING = """
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'runs'::regclass
"""


def missing_days(connection: Connection, days: int) -> list[date]:
    """Return the days from yesterday to `days` ahead that have no partition."""
    existing = set(connection.exec_driver_sql(EXISTING).scalars())
    now = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
    wanted = [now.astimezone(UTC).date() + timedelta(n) for n in range(-1, days + 1)]
    return [day for day in wanted if name_of(day) not in existing]


OWNER = """
SELECT pg_get_userbyid(relowner), quote_ident(pg_get_userbyid(relowner)), current_user
FROM pg_class WHERE oid = 'runs'::regclass
"""


def make_day(connection: Connection, day: date) -> bool:
    """Create the partition of one day. False if the default partition holds rows of that day."""
    start, end = bounds_of(day)
    name = name_of(day)
    taken = connection.exec_driver_sql(
        "SELECT 1 FROM runs_default WHERE scheduled_at >= %s AND scheduled_at < %s LIMIT 1",
        (start, end),
    )
    if taken.first() is not None:
        log.warning(
            "partition not created day=%s: the default partition holds runs of that day", day
        )
        return False
    connection.exec_driver_sql(
        f"CREATE TABLE {name} (LIKE runs INCLUDING DEFAULTS INCLUDING INDEXES)"
        " WITH (fillfactor = 33)"
    )
    owner, quoted, ours = connection.exec_driver_sql(OWNER).one()
    if owner != ours:  # created by a member of the owning role: all partitions have one owner
        connection.exec_driver_sql(f"ALTER TABLE {name} OWNER TO {quoted}")
    connection.exec_driver_sql(
        f"ALTER TABLE runs ATTACH PARTITION {name} FOR VALUES FROM (%s) TO (%s)", (start, end)
    )
    return True


def past_days(connection: Connection) -> list[date]:
    """Return days that have a partition and ended two days ago or earlier, oldest first."""
    now = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
    newest = name_of(now.astimezone(UTC).date() - timedelta(days=3))
    names = connection.exec_driver_sql(EXISTING).scalars()
    past = sorted(name for name in names if _OF_A_DAY.fullmatch(name) and name <= newest)
    return [datetime.strptime(name[-8:], "%Y%m%d").replace(tzinfo=UTC).date() for name in past]


def is_empty(connection: Connection, day: date) -> bool:
    """Return whether the partition has no rows. Locks nothing."""
    return connection.exec_driver_sql(f"SELECT 1 FROM {name_of(day)} LIMIT 1").first() is None


def drop_day(connection: Connection, day: date) -> bool:
    """Drop the partition if it is empty and not in use. All other sessions queue behind that lock,
    so waiting for it and checking under it are short. False: not dropped now.
    """
    name = name_of(day)
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{AT_MOST}'")
    connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{HOLDS_UP}'")
    try:
        with connection.begin_nested():
            connection.exec_driver_sql("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
            if not is_empty(connection, day):
                return False
            connection.exec_driver_sql(f"DROP TABLE {name}")
    except DBAPIError as error:
        if sqlstate(error) not in TOOK_TOO_LONG:
            raise
        return False
    return True


def name_of(day: date) -> str:
    return f"runs_{day:%Y%m%d}"


def bounds_of(day: date) -> tuple[datetime, datetime]:
    """Return the beginning of the day and of the next one, in UTC."""
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return start, start + timedelta(days=1)
