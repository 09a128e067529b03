"""Columns of a batch as PostgreSQL array literals.

A batch goes to the server as one text parameter a column, unpacked by `unnest($1::uuid[], …)`:
the server parses one constant instead of thousands, and the planner still sees its length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, cast

from schedd.core.ids import Id

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def ids(values: Iterable[Id | None]) -> str:
    """Return a `uuid[]`."""
    listed = [*values]
    if None in listed:
        return _joined(["NULL" if value is None else value.hex() for value in listed])
    return "{" + b"".join(cast("list[Id]", listed)).hex(",", 16) + "}"


def numbers(values: Iterable[float | None]) -> str:
    """Return an `int[]`, `bigint[]`, `smallint[]` or `float8[]`."""
    return _joined(["NULL" if value is None else str(value) for value in values])


def flags(values: Iterable[bool]) -> str:
    """Return a `bool[]`."""
    return _joined(["t" if value else "f" for value in values])


def instants(values: Iterable[datetime | None]) -> str:
    """Return a `timestamptz[]`. Each text has its UTC offset; a batch has few different times."""
    listed = [*values]
    written = {value: "NULL" if value is None else value.isoformat() for value in {*listed}}
    return _joined([written[value] for value in listed])


def microseconds(values: Iterable[datetime | None]) -> str:
    """Return times as a `bigint[]` of microseconds since 1970 (`keys.instant`). Quicker to write
    and to read than a `timestamptz[]`.
    """
    since = [None if value is None else value - _EPOCH for value in values]
    return numbers([None if one is None else one // _MICROSECOND for one in since])


def texts(values: Iterable[str | None]) -> str:
    """Return a `text[]`. NUL, which PostgreSQL's text can't contain, becomes U+2400."""
    listed = [*values]
    if listed and None not in listed:
        joined = '","'.join(cast("list[str]", listed))
        plain = joined.isascii() and "\\" not in joined and "\0" not in joined
        if plain and joined.count('"') == 2 * len(listed) - 2:
            return '{"' + joined + '"}'
    written = {value: "NULL" if value is None else _quoted(clean(value)) for value in {*listed}}
    return _joined([written[value] for value in listed])


def blobs(values: Iterable[bytes | None]) -> str:
    """Return a `bytea[]`."""
    return _joined(["NULL" if value is None else f'"\\\\x{value.hex()}"' for value in values])


def spots(values: Iterable[str | None]) -> str:
    """Return a `tid[]` of `ctid` values that the database returned."""
    return _joined(["NULL" if value is None else f'"{value}"' for value in values])


def clean(value: str) -> str:
    """Return the text as PostgreSQL can store it: without NUL and lone surrogates."""
    if "\0" in value:
        value = value.replace("\0", "␀")
    try:
        value.encode()
    except UnicodeEncodeError:
        value = value.encode(errors="replace").decode()
    return value


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _joined(items: Sequence[str]) -> str:
    """Return the array literal. A list, not an iterator: that saves a call for each item."""
    return "{" + ",".join(items) + "}"
