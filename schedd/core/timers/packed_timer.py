"""Timers as packed bytes: a load compares them as a whole, and decodes only new ones. Pure.

A packed timer isn't paused and has a due time. Equal bytes mean equal timers.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from schedd.core.ids import Id
from schedd.core.runs.model import Timer
from schedkit.records import named_tuples

EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)
"""The times that stand for all outside the range of Python. They are a day inside of it, so that
every time zone can show them.
"""

_FORM: Final = Struct(">16siiiqq")
"""Job id, shard, generation, runs fired, due time, scheduled time. Times are in microseconds since
`_SINCE`, as PostgreSQL sends them.
"""
WIDTH: Final = _FORM.size
ID: Final = 16
"""The first bytes of a packed timer are its job's id."""
_SINCE: Final = datetime(2000, 1, 1, tzinfo=UTC)
_NO_TIME: Final = -(1 << 63)


class LastLoad(NamedTuple):
    """The state that a load leaves to the next, which reads only new rows."""

    oldest: str
    """The oldest transaction that was in progress: rows of it and of later ones are new."""
    until: datetime
    """Timers that were due by then were read."""


def unpacked(packed: Iterable[bytes]) -> list[Timer]:
    """Return the timers. Equal times are the same object."""
    rows = [*_FORM.iter_unpack(b"".join(packed))]
    times = {at: instant_of(at) for at in {at for row in rows for at in row[4:]}}
    new = bytes.__new__
    fields = [
        (new(Id, job), *two, times[due], None if at == _NO_TIME != due else times[at], False, fired)
        for job, *two, fired, due, at in rows
    ]
    return named_tuples(Timer, fields)


@lru_cache(maxsize=8_192)
def instant_of(microseconds: int) -> datetime:
    """Return a time that PostgreSQL sent; the nearest possible one if it is out of range."""
    try:
        return _SINCE + timedelta(0, 0, microseconds)
    except OverflowError:
        return EARLIEST if microseconds < 0 else LATEST
