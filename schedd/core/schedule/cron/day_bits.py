"""A day as a number of 86,400 bits: bit `s` is its second `s`.

The runs of a day, its closed seconds and the rest are such numbers. So "the first open time" is an
`&`, a shift and the lowest bit set, however finely both are cut. A number takes 11 KiB, an
operation some microseconds.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

from schedd.core.schedule.work_budget import spend

DAY: Final = 86400
FULL: Final = (1 << DAY) - 1


@lru_cache(maxsize=1024)
def of_times(hour: int, minute: int, second: int) -> int:
    """Return the seconds of a day that match masks of hours, minutes and seconds."""
    spend(20)
    return _spread(hour, 3600, _spread(minute, 60, second))


@lru_cache(maxsize=256)
def each(first: int, step: int) -> int:
    """Return the bits of `first` and every `step` seconds after it."""
    return of_seconds(range(first, DAY, step))


def of_seconds(seconds: Iterable[int]) -> int:
    """Return the bits of these seconds of the day."""
    bits = bytearray(DAY // 8)
    for second in seconds:
        bits[second >> 3] |= 1 << (second & 7)
    return int.from_bytes(bits, "little")


def window(local: Callable[[int], int], first: int, length: int, day_size: int = DAY) -> int:
    """Return `length` seconds from `first` on, both on a local clock, as the lowest bits. `local`
    returns the bits of a local day, of which there are `day_size`.
    """
    found = taken = 0
    while taken < length:
        day, rest = divmod(first + taken, day_size)
        bits, size = local(day), min(day_size - rest, length - taken)
        if bits:
            part = bits >> rest
            found |= (part if size == day_size - rest else part & ((1 << size) - 1)) << taken
        taken += size
    return found


def count(times_on_day: Callable[[int], int], after: int, until: int) -> int:
    """Return how many seconds in (after, until], since 1970, have a bit in their days."""
    found, last = 0, until // DAY
    for day in range((after + 1) // DAY, last + 1):
        spend(10)
        bits = times_on_day(day)
        if day == last:
            bits &= (2 << until - day * DAY) - 1
        if after >= day * DAY:
            bits >>= after + 1 - day * DAY
        found += bits.bit_count()
    return found


def _spread(mask: int, step: int, unit: int) -> int:
    """Return `unit` at each place, `step` apart, where `mask` has a bit."""
    return sum(unit << step * place for place in range(mask.bit_length()) if mask >> place & 1)
