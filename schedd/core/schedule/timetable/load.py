"""The combined load of schedules: starts a minute over a span, and the hottest minutes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import field
from datetime import datetime, timedelta
from typing import Final

from schedd.core.schedule.cron import EPOCH, ScheduleError
from schedd.core.schedule.cron.expression import SECOND
from schedd.core.schedule.timetable.entries import (
    Row,
    TimetableEntry,
    Wrong,
    compiled_of,
    row_of,
    row_over,
)
from schedd.core.schedule.timetable.minutes import (
    Layers,
    MinuteGrid,
    clipped,
    count,
    first_of,
    grid_over,
    without,
)
from schedkit.records import dataclass

# A counter for each minute, all counted at once: the counts' bits are in slices.
#
# slices[i] holds bit i of every minute's count. Adding a number of minutes is a few ANDs and XORs
# over all of them together (a carry-save adder, as wide as the grid).

LANE: Final = 8
"""Slices that are read together: they are one byte of a minute's count."""
_DIGITS: Final = bytes.maketrans(b"01", b"\x00\x01")


@dataclass(slots=True)
class MinuteTally:
    minutes: int
    slices: list[int] = field(default_factory=list)

    def add(self, which: int, weight: int = 1) -> None:
        """Add `weight` to each minute whose bit is set in `which`."""
        at = 0
        while weight:
            if weight & 1:
                self._add_at(which, at)
            weight >>= 1
            at += 1

    def _add_at(self, carry: int, at: int) -> None:
        while carry:
            while len(self.slices) <= at:
                self.slices.append(0)
            before = self.slices[at]
            self.slices[at] = before ^ carry
            carry &= before
            at += 1

    def peak(self) -> tuple[int, int]:
        """Return the greatest count, and the minutes that have it."""
        value, having = 0, (1 << self.minutes) - 1
        for at in reversed(range(len(self.slices))):
            if hit := having & self.slices[at]:
                having = hit
                value |= 1 << at
        return value, having

    def above(self, limit: int) -> int:
        """Return the minutes whose count is greater than `limit`, as bits."""
        greater, equal = 0, (1 << self.minutes) - 1
        for at in reversed(range(max(len(self.slices), limit.bit_length()))):
            bits = self.slices[at] if at < len(self.slices) else 0
            if limit >> at & 1:
                equal &= bits
            else:
                greater |= equal & bits
                equal &= ~bits
        return greater

    def counts(self) -> list[int]:
        """Return the count of each minute."""
        found = [0] * self.minutes
        for first in range(0, len(self.slices), LANE):
            lanes = 0
            for at, bits in enumerate(self.slices[first : first + LANE]):
                lanes |= _spread(bits, self.minutes) << at
            counted = lanes.to_bytes(self.minutes, "little")
            found = [many + (more << first) for many, more in zip(found, counted, strict=True)]
        return found

    def total(self) -> int:
        """Return the sum over all minutes."""
        return sum(bits.bit_count() << at for at, bits in enumerate(self.slices))


def _spread(bits: int, length: int) -> int:
    """Return a byte for each of `length` bits: 0 or 1."""
    return int.from_bytes(format(bits, f"0{length}b").encode().translate(_DIGITS), "big")


@dataclass(frozen=True, slots=True)
class BusyMinute:
    """A minute and its entries, each with its starts in that minute, most first.

    `alike`: how many minutes of the span have the same entries.
    """

    at: datetime
    starts: int
    alike: int
    entries: tuple[tuple[TimetableEntry, int], ...]


@dataclass(frozen=True, slots=True)
class Forecast:
    """Starts in each minute of `grid`.

    `hottest`: the minutes with most starts. Minutes with equal entries are listed once.
    """

    grid: MinuteGrid
    counts: tuple[int, ...]
    hottest: tuple[BusyMinute, ...]

    @property
    def total(self) -> int:
        """The sum of all starts."""
        return sum(self.counts)

    @property
    def peak(self) -> int:
        """The starts of the hottest minute."""
        return max(self.counts, default=0)


@dataclass(frozen=True, slots=True)
class StartsAtOnce:
    """A second, and the entries that start at it."""

    at: datetime
    entries: tuple[TimetableEntry, ...]


@dataclass(frozen=True, slots=True)
class Collisions:
    """The number of seconds with too many starts, the most starts, and the worst seconds."""

    instants: int
    most: int
    worst: tuple[StartsAtOnce, ...]


def tally_of(rows: Sequence[Row], grid: MinuteGrid) -> MinuteTally:
    """Return the starts of each minute."""
    tally = MinuteTally(grid.minutes)
    alike = Counter(layer for row in rows for layer in row.layers)
    for (minutes, seconds), times in alike.items():
        tally.add(minutes, times * seconds.bit_count())
    return tally


def forecast(rows: Sequence[Row], grid: MinuteGrid, top: int = 5) -> Forecast:
    """Count the starts of each minute; list the entries of the `top` hottest minutes."""
    counts = tally_of(rows, grid).counts()
    busy = (minute for minute, many in enumerate(counts) if many)
    order = sorted(busy, key=counts.__getitem__, reverse=True)
    hottest: list[BusyMinute] = []
    listed = 0
    for minute in order:
        if listed >> minute & 1:
            continue
        if len(hottest) == top:
            break
        alike = _alike(rows, minute, grid.minutes)
        listed |= alike
        first = (alike & -alike).bit_length() - 1
        named = _named(rows, _members(rows, minute))
        hottest.append(
            BusyMinute(grid.start_of_minute(first), counts[minute], alike.bit_count(), named)
        )
    return Forecast(grid, tuple(counts), tuple(hottest))


def _alike(rows: Sequence[Row], minute: int, length: int) -> int:
    """Return the minutes, one bit each, in which the same layers start as in this minute."""
    found = (1 << length) - 1
    for row in rows:
        for minutes, _ in row.layers:
            found &= minutes if minutes >> minute & 1 else ~minutes
    return found


def _members(rows: Sequence[Row], minute: int) -> tuple[tuple[int, int], ...]:
    """Return the rows that start in this minute, as (number, starts)."""
    bit = 1 << minute
    return tuple(
        (number, seconds.bit_count())
        for number, row in enumerate(rows)
        for minutes, seconds in row.layers
        if minutes & bit
    )


def _named(
    rows: Sequence[Row], members: Sequence[tuple[int, int]]
) -> tuple[tuple[TimetableEntry, int], ...]:
    named = [(rows[number].entry, starts) for number, starts in members]
    return tuple(sorted(named, key=lambda one: -one[1]))


def beside(
    entries: Sequence[TimetableEntry], instants: Sequence[datetime]
) -> tuple[list[int], list[Wrong]]:
    """Return how many entries start in the minute of each time, and the invalid entries."""
    grids = [grid_over(at.replace(second=0), timedelta(minutes=1)) for at in instants]
    found = [0] * len(grids)
    wrong: list[Wrong] = []
    for entry in entries:
        try:
            compiled = compiled_of(entry)
        except ScheduleError as error:
            wrong.append(Wrong(entry, error))
            continue
        for number, grid in enumerate(grids):
            found[number] += bool(row_over(entry, compiled, grid).layers)
    return found, wrong


def collide(rows: Sequence[Row], grid: MinuteGrid, allowed: int = 1, limit: int = 10) -> Collisions:
    """Return the seconds at which more than `allowed` start; the worst with their entries."""
    by_second = [MinuteTally(grid.minutes) for _ in range(60)]
    alike = Counter(layer for row in rows for layer in row.layers)
    for (minutes, seconds), times in alike.items():
        for second in range(60):
            if seconds >> second & 1:
                by_second[second].add(minutes, times)
    found = 0
    worst: list[tuple[int, int, int]] = []
    for second, tally in enumerate(by_second):
        above = tally.above(allowed)
        found += above.bit_count()
        worst += _fullest(tally, above, second, limit)
    worst = sorted(worst)[:limit]
    named = (_together(rows, grid, minute, second) for _, minute, second in worst)
    return Collisions(found, -worst[0][0] if worst else 0, tuple(named))


def _fullest(tally: MinuteTally, above: int, second: int, limit: int) -> list[tuple[int, int, int]]:
    """Return the `limit` minutes of `above` with the greatest counts: (−count, minute, second)."""
    if not above:
        return []
    counts = tally.counts()
    minutes = sorted((-counts[m], m, second) for m in range(tally.minutes) if above >> m & 1)
    return minutes[:limit]


def _together(rows: Sequence[Row], grid: MinuteGrid, minute: int, second: int) -> StartsAtOnce:
    bit = 1 << minute
    who = tuple(
        row.entry
        for row in rows
        if any(minutes & bit and seconds >> second & 1 for minutes, seconds in row.layers)
    )
    return StartsAtOnce(grid.start_of_minute(minute) + timedelta(seconds=second), who)


# Compare two schedules: the fire times that only one of them has.


@dataclass(frozen=True, slots=True)
class Difference:
    """The numbers of fire times only in the first, only in the second, and in both.

    Also the first of each kind, in UTC.
    """

    only_first: int
    only_second: int
    both: int
    in_first: tuple[datetime, ...]
    in_second: tuple[datetime, ...]

    @property
    def differ(self) -> bool:
        """Return whether any fire time differs."""
        return bool(self.only_first or self.only_second)


def differ(
    first: TimetableEntry, second: TimetableEntry, start: datetime, span: timedelta, limit: int
) -> Difference:
    """Compare the fire times in [start, start + span). At most `limit` of each kind are listed.

    Raises ScheduleError.
    """
    grid = grid_over(start, span)
    low, high = -((EPOCH - start) // SECOND), -((EPOCH - start - span) // SECOND)

    def within(entry: TimetableEntry) -> Layers:
        return clipped(row_of(entry, grid).layers, grid, low, high)

    def listed(layers: Layers) -> tuple[datetime, ...]:
        found = first_of(layers, grid, limit)
        return tuple(EPOCH + timedelta(seconds=second) for second in found)

    one, other = within(first), within(second)
    left, right = without(one, other), without(other, one)
    return Difference(
        count(left), count(right), count(one) - count(left), listed(left), listed(right)
    )
