"""Read columns of PostgreSQL as Python values: timestamps in UTC, intervals, ids.

A run's row has half a dozen of each. The driver's own reader of timestamps makes a zone object for
each value, and the library's reader of ids accepts five spellings: together they took longer than
the query.

Invariant: every value that PostgreSQL can hold is read without an exception, in every time zone of
the session. A row that another client wrote must not end a member. A timestamp or interval outside
the range of Python (`infinity`, 44 BC, the year 294276) is read as `EARLIEST` or `LATEST`, or as
the shortest or longest interval.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from psycopg2 import DataError, extensions

from schedd.core.ids import Id
from schedd.core.timers.packed_timer import EARLIEST, LATEST

TIMESTAMPTZ, INTERVAL, UUID, UUIDS = 1184, 1186, 2950, 2951
"""Types of PostgreSQL, by their numbers."""

LONGEST: Final = timedelta(days=36_525)
"""A century: `LONGEST` added to a date of today is a date."""

_OUT_OF_RANGE: Final = re.compile(
    r"(?P<past>-infinity|.* BC)|(?P<future>infinity|\d{4,}-\d\d-\d\d .*)", re.DOTALL
)


def register(connection: Any, _record: object) -> None:
    """Have this connection read them so."""
    extensions.register_type(
        extensions.new_type((TIMESTAMPTZ,), "UTC_INSTANT", instant), connection
    )
    extensions.register_type(extensions.new_type((INTERVAL,), "SPAN", span), connection)
    one = extensions.new_type((UUID,), "ID", identity)
    extensions.register_type(one, connection)
    extensions.register_type(extensions.new_array_type((UUIDS,), "IDS", one), connection)


def instant(text: Any, cursor: Any) -> datetime | None:
    """Return the timestamp in UTC, whatever the session's time zone (a pooler may lose a setting).
    A timestamp outside the range of Python is `EARLIEST` or `LATEST`.
    """
    if text is None:
        return None
    try:
        read = datetime.fromisoformat(text)
        return read if read.tzinfo is UTC else read.astimezone(UTC)
    except (ValueError, OverflowError):
        return _out_of_range(text, cursor)


def _out_of_range(text: str, cursor: Any) -> datetime:
    """Return the nearest timestamp that Python has. A text of another `DateStyle` than ISO isn't a
    value of the row but a setting of the session: the driver reads it, or says why not.
    """
    found = _OUT_OF_RANGE.fullmatch(text)
    if found is None:
        read: datetime = extensions.PYDATETIMETZ(text, cursor)
        return read.astimezone(UTC)
    if found["past"] or text.startswith("0001-"):
        return EARLIEST
    return LATEST


def span(text: Any, cursor: Any) -> timedelta | None:
    if text is None:
        return None
    try:
        read: timedelta = extensions.PYINTERVAL(text, cursor)
    except (ValueError, OverflowError, DataError):
        read = -LONGEST if text.startswith("-") else LONGEST
    return max(-LONGEST, min(read, LONGEST))


def identity(text: Any, _cursor: object) -> Id | None:
    if text is None:
        return None
    return bytes.__new__(Id, bytes.fromhex(text.replace("-", "")))


def quoted(value: Id) -> extensions.AsIs:
    return extensions.AsIs(f"'{value}'::uuid")


extensions.register_adapter(Id, quoted)
