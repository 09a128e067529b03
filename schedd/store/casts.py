"""What the driver makes of columns: instants in UTC and ids, for each of many rows.

A run's row has half a dozen of each. The driver's own reader of instants goes by a zone object of
its own making for each of them, and the library's reader of ids looks for five ways to write one:
together they took longer than the query.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID, SafeUUID

from psycopg2 import extensions

TIMESTAMPTZ, UUID_ = 1184, 2950
"""Types of PostgreSQL, by their numbers."""

_UNKNOWN: Final = SafeUUID.unknown
"""Looked up once: to ask an enumeration takes as long as to make the id."""


def register(connection: Any, _record: object) -> None:
    """Have this connection read them so."""
    extensions.register_type(
        extensions.new_type((TIMESTAMPTZ,), "UTC_INSTANT", instant), connection
    )
    extensions.register_type(extensions.new_type((UUID_,), "ID", identity), connection)


def instant(text: Any, cursor: Any) -> datetime | None:
    """In UTC, whatever the session's time zone (a pooler may lose a setting)."""
    if text is None:
        return None
    try:
        read = datetime.fromisoformat(text)
    except ValueError:  # infinity, a year before Christ: the driver says what it makes of it
        read = extensions.PYDATETIMETZ(text, cursor)
    return read if read.tzinfo is UTC else read.astimezone(UTC)


def identity(text: Any, _cursor: object) -> UUID | None:
    """From the one form that PostgreSQL writes."""
    if text is None:
        return None
    found: UUID = object.__new__(UUID)
    object.__setattr__(found, "int", int(text.replace("-", ""), 16))
    object.__setattr__(found, "is_safe", _UNKNOWN)
    return found
