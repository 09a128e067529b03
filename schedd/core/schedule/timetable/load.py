"""The entries of a timetable, and their combined load: starts a minute, and the hottest minutes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import field
from datetime import datetime, timedelta
from heapq import nsmallest
from typing import Final

from schedd.core.ids import Id
from schedd.core.schedule import compiled_schedule as schedules
from schedd.core.schedule.compiled_schedule import Schedule, ScheduleBounds
from schedd.core.schedule.cron import EPOCH, ScheduleError
from schedd.core.schedule.cron.expression import SECOND
from schedd.core.schedule.cron.masks import lowest
from schedd.core.schedule.timetable.minutes import (
    Layers,
    MinuteGrid,
    any_minute,
    clipped,
    count,
    first_of,
    grid_over,
    layers_of,
    without,
)
from schedkit.records import dataclass

_NO_JOB: Final = Id.from_int(0)
"""Placeholder for the job id, which only jitter uses. Scheduled times have no jitter."""


@dataclass(frozen=True, slots=True)
class TimetableEntry:
    """A schedule with a name. `where`: its source, such as `crontab:12`, `jobs.yaml:3`, `job`.
    `lines`: line numbers of its expressions (or its interval) in the file, if they are known.
    """

    name: str
    where: str
    schedule: Schedule
    namespace: str = "default"
    bounds: ScheduleBounds = field(default_factory=ScheduleBounds)
    lines: tuple[int, ...] = ()

    @property
    def seed(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Row:
    """An entry's scheduled times within a grid."""

    entry: TimetableEntry
    layers: Layers

    @property
    def minutes(self) -> int:
        """The minutes in which the entry starts, as bits."""
        return any_minute(self.layers)


@dataclass(frozen=True, slots=True)
class Wrong:
    """An invalid entry, and the error."""

    entry: TimetableEntry
    error: ScheduleError


def row_of(entry: TimetableEntry, grid: MinuteGrid) -> Row:
    """Return the scheduled times of an entry within its bounds and this grid.

    Raises ScheduleError.
    """
    compiled = schedules.compile(entry.schedule, entry.seed, _NO_JOB, entry.bounds)
    layers = layers_of(compiled.instants, grid)
    start, end = compiled.bounds.start, compiled.bounds.end
    if start is None and end is None:
        return Row(entry, layers)
    first = grid.start if start is None else -((EPOCH - start) // SECOND)
    stop = grid.stop if end is None else (end - EPOCH) // SECOND + 1
    return Row(entry, clipped(layers, grid, first, stop))


def rows_of(entries: Iterable[TimetableEntry], grid: MinuteGrid) -> tuple[list[Row], list[Wrong]]:
    """Return the valid entries as rows, and the invalid ones."""
    rows: list[Row] = []
    wrong: list[Wrong] = []
    for entry in entries:
        try:
            rows.append(row_of(entry, grid))
        except ScheduleError as error:
            wrong.append(Wrong(entry, error))
    return rows, wrong


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
        for bit in range(weight.bit_length()):
            carry, at = which if weight >> bit & 1 else 0, bit
            while carry:
                self.slices += [0] * (at + 1 - len(self.slices))
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
    """A minute and its entries, each with its starts in that minute, most first. `alike`: how many
    minutes of the span have the same entries.
    """

    at: datetime
    starts: int
    alike: int
    entries: tuple[tuple[TimetableEntry, int], ...]


@dataclass(frozen=True, slots=True)
class Forecast:
    """Starts in each minute of `grid`. `hottest`: minutes with equal entries are listed once."""

    grid: MinuteGrid
    counts: tuple[int, ...]
    hottest: tuple[BusyMinute, ...]

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def peak(self) -> int:
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
        alike, named = (1 << grid.minutes) - 1, []
        for row in rows:
            for minutes, seconds in row.layers:
                starts = minutes >> minute & 1
                alike &= minutes if starts else ~minutes
                if starts:
                    named.append((row.entry, seconds.bit_count()))
        listed |= alike
        named.sort(key=lambda one: -one[1])
        first = grid.start_of_minute(lowest(alike))
        hottest.append(BusyMinute(first, counts[minute], alike.bit_count(), tuple(named)))
    return Forecast(grid, tuple(counts), tuple(hottest))


def beside(
    entries: Sequence[TimetableEntry], instants: Sequence[datetime]
) -> tuple[list[int], list[Wrong]]:
    """Return how many entries start in the minute of each time, and the invalid entries."""
    grids = [grid_over(at.replace(second=0), timedelta(minutes=1)) for at in instants]
    found = [0] * len(grids)
    wrong: list[Wrong] = []
    for entry in entries:
        try:
            for number, grid in enumerate(grids):
                found[number] += bool(row_of(entry, grid).layers)
        except ScheduleError as error:
            wrong.append(Wrong(entry, error))
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
    """The seconds with the greatest counts, as (−count, minute, second)."""
    for second, tally in enumerate(by_second):
        if above := tally.above(allowed):
            found += above.bit_count()
            counts = tally.counts()
            full = ((-counts[m], m, second) for m in range(tally.minutes) if above >> m & 1)
            worst += nsmallest(limit, full)
    worst = nsmallest(limit, worst)
    named = (_together(rows, grid, minute, second) for _, minute, second in worst)
    return Collisions(found, -worst[0][0] if worst else 0, tuple(named))


def _together(rows: Sequence[Row], grid: MinuteGrid, minute: int, second: int) -> StartsAtOnce:
    bit = 1 << minute
    who = tuple(
        row.entry
        for row in rows
        if any(minutes & bit and seconds >> second & 1 for minutes, seconds in row.layers)
    )
    return StartsAtOnce(grid.start_of_minute(minute) + timedelta(seconds=second), who)


@dataclass(frozen=True, slots=True)
class Difference:
    """The numbers of fire times only in the first, only in the second, and in both. Also the first
    of each kind, in UTC.
    """

    only_first: int
    only_second: int
    both: int
    in_first: tuple[datetime, ...]
    in_second: tuple[datetime, ...]

    @property
    def differ(self) -> bool:
        return bool(self.only_first or self.only_second)


def differ(
    first: TimetableEntry, second: TimetableEntry, start: datetime, span: timedelta, limit: int
) -> Difference:
    """Compare the fire times in [start, start + span), and list `limit` of each. Raises
    ScheduleError.
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
