"""The times of a schedule within a span, as bits: its minutes, and the seconds of them.

    grid     start ───────────────────────────────────▶ bit m is minute m after start
    layers   ((minutes, seconds), …)   in each of `minutes` it starts at each of `seconds`

`minutes` of two layers never share a bit, so counting is counting bits. A week is a number of
10,080 bits, and nearly every schedule has one layer.

The rules for clock changes are those of `cron.expression`, segment by segment. If a zone's offset
isn't whole minutes (before 1972), the times are computed one by one.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from functools import lru_cache
from math import gcd
from typing import Final, TypeAlias

from schedd.core.schedule.cron import EPOCH, CronExpression, DstPolicy, day_bits
from schedd.core.schedule.cron.dst import fixed_time_span, runs_after_gap
from schedd.core.schedule.cron.expression import SECOND
from schedd.core.schedule.scheduled_times import CronInstants, EveryInstants, Instants
from schedd.core.schedule.zones import Segment
from schedd.core.schedule.zones import zone as zone_of
from schedkit.records import dataclass, replace

Layer: TypeAlias = tuple[int, int]
Layers: TypeAlias = tuple[Layer, ...]

_DAY: Final = 1440
_MINUTE: Final = timedelta(minutes=1)
_TICK: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class MinuteGrid:
    """`minutes` whole minutes from `start` on (whole minutes too, in seconds since 1970 UTC)."""

    start: int
    minutes: int

    @property
    def stop(self) -> int:
        """The first second past the grid."""
        return self.start + self.minutes * 60

    def start_of_minute(self, minute: int) -> datetime:
        """Return when minute number `minute` begins."""
        return EPOCH + timedelta(seconds=self.start + minute * 60)


def grid_over(start: datetime, span: timedelta) -> MinuteGrid:
    """Return the grid whose minutes hold all of [start, start + span)."""
    first = (start - EPOCH) // _MINUTE
    stop = -((EPOCH - start - span) // _MINUTE)
    return MinuteGrid(first * 60, max(stop - first, 1))


def layers_of(instants: Instants, grid: MinuteGrid) -> Layers:
    """Return all times of the set that lie in the grid."""
    match instants:
        case CronInstants(expressions, dst):
            layers: Layers = ()
            for expression in expressions:
                layers = merged(layers, _expression_layers(expression, dst, grid))
            return layers
        case EveryInstants(interval, phase):
            return _every_layers(interval, phase, grid)
    return _walked(_seconds_of(instants, grid), grid)


def merged(one: Layers, other: Layers) -> Layers:
    """Return the times of either, each once."""
    if not one or not other:
        return one or other
    result = list(one)
    for minutes, seconds in other:
        left, following = minutes, []
        for known, its in result:
            if common := known & left:
                following.append((common, its | seconds))
            if rest := known & ~left:
                following.append((rest, its))
            left &= ~known
        if left:
            following.append((left, seconds))
        result = following
    return _tidy(result)


def without(one: Layers, other: Layers) -> Layers:
    """Return the times of `one` that `other` lacks."""
    for minutes, seconds in other:
        kept: list[Layer] = []
        for known, its in one:
            kept += [(known & ~minutes, its), (known & minutes, its & ~seconds)]
        one = _tidy(kept)
    return one


def clipped(layers: Layers, grid: MinuteGrid, first: int, stop: int) -> Layers:
    """Return the times in [first, stop), in seconds since 1970 UTC."""
    if first <= grid.start and stop >= grid.stop:
        return layers
    return without(
        layers, (*_stretch(grid, grid.start, first), *_stretch(grid, max(stop, first), grid.stop))
    )


def count(layers: Layers) -> int:
    """Return the number of times."""
    return sum(minutes.bit_count() * seconds.bit_count() for minutes, seconds in layers)


def any_minute(layers: Layers) -> int:
    """Return the minutes that have a time, as bits."""
    found = 0
    for minutes, _ in layers:
        found |= minutes
    return found


def first_of(layers: Layers, grid: MinuteGrid, limit: int) -> list[int]:
    """Return the first `limit` times, in seconds since 1970 UTC."""
    found: list[int] = []
    left = any_minute(layers)
    while left and len(found) < limit:
        lowest = left & -left
        left ^= lowest
        second = grid.start + (lowest.bit_length() - 1) * 60
        for minutes, seconds in layers:
            if minutes & lowest:
                found += [second + value for value in range(60) if seconds >> value & 1]
    return found[:limit]


def _tidy(layers: Iterable[Layer]) -> Layers:
    """Merge layers with equal seconds, and leave out empty ones."""
    found: dict[int, int] = {}
    for minutes, seconds in layers:
        if minutes and seconds:
            found[seconds] = found.get(seconds, 0) | minutes
    return tuple((minutes, seconds) for seconds, minutes in found.items())


def _stretch(grid: MinuteGrid, first: int, stop: int) -> Layers:
    """Return each second in [first, stop) of the grid."""
    first, stop = max(first, grid.start), min(stop, grid.stop)
    if first >= stop:
        return ()
    (low, begin), (high, end) = divmod(first - grid.start, 60), divmod(stop - grid.start, 60)
    if low == high:
        return ((1 << low, _ones(begin, end)),)
    whole = low + 1 if begin else low
    edges = [(1 << low, _ones(begin, 60))] if begin else []
    edges += [(1 << high, _ones(0, end))] if end else []
    return (*edges, *([(_ones(whole, high), _ones(0, 60))] if whole < high else []))


def _ones(low: int, high: int) -> int:
    """Return bits `low` to below `high`."""
    return (1 << high) - (1 << low)


@lru_cache(maxsize=8192)
def _expression_layers(expression: CronExpression, dst: DstPolicy, grid: MinuteGrid) -> Layers:
    masks = expression.masks
    if masks is None:
        return _every_layers(timedelta(seconds=expression.every), timedelta(0), grid)
    hours = (hour for hour in range(24) if masks.hour >> hour & 1)
    matching = sum(masks.minute << hour * 60 for hour in hours)
    minutes, after_gaps = 0, 0
    for segment in _changes(expression.zone, grid):
        if segment.offset % 60 or (segment.start % 60 and segment.start >= grid.start):
            return _walked(expression.seconds(grid.start - 1, grid.stop - 1, dst), grid)
        start, end = segment.start, segment.end
        if not expression.wildcard:
            start, end = fixed_time_span(segment, dst)
            if segment.start >= grid.start and runs_after_gap(segment, masks, dst):
                after_gaps |= 1 << (segment.start - grid.start) // 60
        low, high = max(start, grid.start), min(end, grid.stop)
        if low < high:
            local = day_bits.window(
                lambda day: matching if masks.matches_day(day) else 0,
                (low + segment.offset) // 60,
                (high - low) // 60,
                _DAY,
            )
            minutes |= local << (low - grid.start) // 60
    layers = ((minutes, masks.second),) if minutes else ()
    return merged(layers, ((after_gaps, 1),)) if after_gaps else layers


def _changes(zone: str, grid: MinuteGrid) -> Iterator[Segment]:
    """Yield the zone's segments in the grid, cut only at changes of offset."""
    segments = zone_of(zone).segments(grid.start - 1, grid.stop - 1)
    held = next(segments)
    for segment in segments:
        if segment.before == segment.offset:
            held = replace(held, end=segment.end, after=segment.after)
        else:
            yield held
            held = segment
    yield held


@lru_cache(maxsize=4096)
def _every_layers(interval: timedelta, phase: timedelta, grid: MinuteGrid) -> Layers:
    if interval % SECOND or phase % SECOND:
        return _walked(_seconds_of(EveryInstants(interval, phase), grid), grid)
    # The minutes repeat after as many minutes as the interval has seconds, or fewer.
    size = interval // SECOND
    period = min(size // gcd(size, 60), grid.minutes)
    each_period = int(("0" * (period - 1) + "1") * (grid.minutes // period + 1), 2)
    found: list[Layer] = []
    for minute in range(period):
        first = -(grid.start + minute * 60 - phase // SECOND) % size
        if first < 60:
            seconds = sum(1 << value for value in range(first, 60, size))
            found.append(((each_period << minute) & _ones(0, grid.minutes), seconds))
    return _tidy(found)


def _seconds_of(instants: Instants, grid: MinuteGrid) -> Iterator[int]:
    """Yield the times of a set in the grid, in seconds since 1970 UTC."""
    found = instants.next_after(grid.start_of_minute(0) - _TICK)
    while found is not None and found < grid.start_of_minute(grid.minutes):
        yield (found - EPOCH) // SECOND
        found = instants.next_after(found)


def _walked(seconds: Iterable[int], grid: MinuteGrid) -> Layers:
    """Return the layers of single times, in any order."""
    minutes: dict[int, int] = {}
    for second in seconds:
        if grid.start <= second < grid.stop:
            minute, rest = divmod(second - grid.start, 60)
            minutes[minute] = minutes.get(minute, 0) | 1 << rest
    return _tidy((1 << minute, its) for minute, its in minutes.items())
