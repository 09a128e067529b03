"""The times of day of an expression, as small tables.

`hours[h]` is the first matching hour not before `h`, so the next time of day takes one look into
each of three tables and no search. `_NONE` is past the last match. A table is one longer than its
field, so that "the next value" needs no check. 147 bytes for any expression.
"""

from functools import lru_cache
from typing import Final

from schedkit.records import dataclass

_NONE: Final = 255


@dataclass(frozen=True, slots=True)
class Times:
    """The matching seconds of a day. Created by `times`."""

    hours: bytes
    minutes: bytes
    seconds: bytes
    first: int
    """First matching second of the day."""
    in_hour: int
    """First matching second of a matching hour."""
    count: int

    def next(self, rest: int) -> int:
        """Return the first matching second of a day not before `rest` (0 to 86399), or -1."""
        hour = rest // 3600
        if self.hours[hour] == hour:
            minute = rest // 60 - hour * 60
            found = self.minutes[minute]
            if found == minute:
                second = self.seconds[rest % 60]
                if second != _NONE:
                    return rest - rest % 60 + second
                found = self.minutes[minute + 1]
            if found != _NONE:
                return hour * 3600 + found * 60 + self.seconds[0]
        found = self.hours[hour + 1]
        return -1 if found == _NONE else found * 3600 + self.in_hour


@lru_cache(maxsize=4096)
def times(hour: int, minute: int, second: int) -> Times:
    """Return the tables of three masks, none of which is empty."""
    hours, minutes, seconds = _table(hour, 24), _table(minute, 60), _table(second, 60)
    in_hour = minutes[0] * 60 + seconds[0]
    count = hour.bit_count() * minute.bit_count() * second.bit_count()
    return Times(hours, minutes, seconds, hours[0] * 3600 + in_hour, in_hour, count)


@lru_cache(maxsize=64)
def listed(of: Times) -> tuple[int, ...]:
    """Return all matching seconds of a day. Few lists are cached: one may have 86,400 numbers."""
    return tuple(
        hour * 3600 + minute * 60 + second
        for hour in _values(of.hours)
        for minute in _values(of.minutes)
        for second in _values(of.seconds)
    )


def _table(mask: int, size: int) -> bytes:
    table = bytearray([_NONE] * (size + 1))
    found = _NONE
    for value in reversed(range(size)):
        if mask >> value & 1:
            found = value
        table[value] = found
    return bytes(table)


def _values(table: bytes) -> list[int]:
    return [value for value, found in enumerate(table) if value == found]
