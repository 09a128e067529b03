"""Closed time: the rules of a calendar in one zone, as the edges of each local day.

    (0, 32400, 61200, 86400)    closed from 00:00 to 09:00, and from 17:00 on

One idea: what is excluded of a day is a row of seconds of the local clock at which it begins and
ends in turns. So whether a second is closed, and when that ends, is one look into the row, whatever
the rules say; a day that is wholly free, or wholly closed, needs none.

The edges of a day depend on the rules alone. They are kept, for all jobs that use them.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from datetime import date
from functools import lru_cache
from typing import Final

from schedd.core.calendars.rules import Rules
from schedd.core.cron import days, parse
from schedd.core.cron.days import DAY
from schedd.core.cron.masks import EPOCH_DAY, Masks, month_length
from schedd.core.cron.times import listed
from schedd.core.zones import LAST, NEAR, Zone
from schedd.core.zones import zone as zone_of

Edges = tuple[int, ...]
WHOLE: Final[Edges] = (0, DAY)
FREE: Final[Edges] = ()
FARTHEST: Final = 20 * 366
"""Days that are looked through for a free one."""
_KEPT: Final = 4096
_KEPT_BITS: Final = 64
_YEARS: Final = 9
"""Within so many there is a 29th of February."""


class Closed:
    """What a calendar excludes, by the clock of one zone. Get it from `closed`.

    All instants are whole seconds since 1970 UTC. Any thread may ask.
    """

    __slots__ = ("_bits", "_days", "_patterns", "_rules", "_sorted", "_unions", "zone")

    def __init__(self, rules: Rules, zone: Zone) -> None:
        self.zone = zone
        self._rules = rules
        self._sorted = sorted(rules.days)
        self._patterns = tuple(_pattern(text) for text in rules.cron)
        self._days: dict[int, Edges] = {}
        self._unions: dict[tuple[int, ...], Edges] = {}
        """By the patterns that a day matches: few such sets, each of many edges, maybe."""
        self._bits: dict[tuple[int, ...], int] = {}
        """The same as bits."""

    def has(self, second: int) -> bool:
        """Whether this instant is excluded."""
        segment = self.zone.latest
        if not segment.start <= second < segment.end:
            segment = self.zone.segment(second)
        day, rest = divmod(second + segment.offset, DAY)
        edges = self.on(day)
        return bool(edges) and bisect_right(edges, rest) & 1 == 1

    def day(self, day: int) -> int:
        """What is excluded of a UTC day since 1970, as its bits (`core/cron/days`)."""
        start = day * DAY
        found = 0
        for segment in self.zone.segments(start - 1, start + DAY - 1):
            first, stop = max(segment.start, start), min(segment.end, start + DAY)
            local = days.window(self._local, first + segment.offset, stop - first)
            found |= local << (first - start)
        return found

    def _local(self, day: int) -> int:
        """The same of a day of its own clock."""
        if self._is_whole(day):
            return days.FULL
        matching = self._matching(day)
        found = self._bits.get(matching)
        if found is None:
            if len(self._bits) >= _KEPT_BITS:
                self._bits = {}
            found = 0
            for number in matching:
                found |= self._patterns[number][2]
            self._bits[matching] = found
        return found

    def free_from(self, second: int) -> int | None:
        """The first instant not before `second` that isn't excluded; None: none for 20 years."""
        for _ in range(FARTHEST):
            if second >= LAST:
                return None
            segment = self.zone.segment(second)
            day, rest = divmod(second + segment.offset, DAY)
            edges = self.on(day)
            place = bisect_right(edges, rest)
            if not place & 1:
                return second
            second = min(segment.end, day * DAY + edges[place] - segment.offset)
        return None

    def closed_from(self, second: int) -> int | None:
        """The first instant not before `second` that is excluded; None: none is any more."""
        while second < LAST:
            segment = self.zone.segment(second)
            day, rest = divmod(second + segment.offset, DAY)
            edges = self.on(day)
            place = bisect_right(edges, rest)
            if place & 1:
                return second
            if place < len(edges):
                second = min(segment.end, day * DAY + edges[place] - segment.offset)
                continue
            following = self.next_day(day + 1)
            if following is None:
                return None
            # Clocks are set by less than two days: so long before its midnight the day isn't there.
            midnight = following * DAY - segment.offset
            second = midnight if midnight < segment.end else max(segment.end, midnight - NEAR)
        return None

    def on(self, day: int) -> Edges:
        """The edges of a local day: begin, end, begin, …"""
        edges = self._days.get(day)
        if edges is None:
            if len(self._days) >= _KEPT:
                self._days = {}
            edges = self._days[day] = self._worked_out(day)
        return edges

    def _is_whole(self, day: int) -> bool:
        rules = self._rules
        if day in rules.days or rules.weekdays >> (day + EPOCH_DAY) % 7 & 1:
            return True
        after = bisect_left(rules.ranges, (day + 1,))
        if after and day <= rules.ranges[after - 1][1]:
            return True
        if rules.yearly:
            at = date.fromordinal(day + EPOCH_DAY)
            return (at.month, at.day) in rules.yearly
        return False

    def _matching(self, day: int) -> tuple[int, ...]:
        """Which patterns name a day."""
        return tuple(
            number for number, (masks, *_) in enumerate(self._patterns) if masks.matches_day(day)
        )

    def _worked_out(self, day: int) -> Edges:
        if self._is_whole(day):
            return WHOLE
        matching = self._matching(day)
        edges = self._unions.get(matching)
        if edges is None:
            if len(self._unions) >= _KEPT:
                self._unions = {}
            edges = self._unions[matching] = _union([self._patterns[n][1] for n in matching])
        return edges

    def next_day(self, day: int) -> int | None:
        """The first local day not before `day` on which anything is excluded."""
        rules = self._rules
        found = (
            [self._sorted[at]] if (at := bisect_left(self._sorted, day)) < len(rules.days) else []
        )
        for first, last in rules.ranges[max(0, bisect_left(rules.ranges, (day,)) - 1) :]:
            if last >= day:
                found.append(max(first, day))
                break
        if rules.weekdays:
            found.append(next(d for d in range(day, day + 7) if self._is_weekday(d)))
        if rules.yearly:
            found.append(self._next_yearly(day))
        for masks, *_ in self._patterns:
            if (matching := masks.next_day(day)) is not None:
                found.append(matching)
        return min(found, default=None)

    def _is_weekday(self, day: int) -> bool:
        return bool(self._rules.weekdays >> (day + EPOCH_DAY) % 7 & 1)

    def _next_yearly(self, day: int) -> int:
        year = date.fromordinal(day + EPOCH_DAY).year
        return min(
            number
            for one in range(year, year + _YEARS)
            for month, at in self._rules.yearly
            if (month, at) != (2, 29) or month_length(one, 2) == 29
            if (number := date(one, month, at).toordinal() - EPOCH_DAY) >= day
        )


@lru_cache(maxsize=1024)
def closed(rules: Rules, zone: str) -> Closed:
    """The closed time of these rules; `zone` is for those that have none of their own."""
    return Closed(rules, zone_of(rules.zone or zone))


@lru_cache(maxsize=1024)
def _pattern(expression: str) -> tuple[Masks, Edges, int]:
    """The days of an expression, and what it names of each: its edges, and its bits."""
    masks = parse(expression, zone="UTC", seed="").masks
    assert masks is not None, "the rules were checked"
    length = 1 if len(expression.split()) > 5 else 60  # in five fields the second is 0
    edges = _joined((at, at + length) for at in listed(masks.times))
    second = masks.second if length == 1 else (1 << 60) - 1
    return masks, edges, days.of_times(masks.hour, masks.minute, second)


def _union(rows: Sequence[Edges]) -> Edges:
    """What any of these closes."""
    if len(rows) < 2:
        return rows[0] if rows else FREE
    return _joined(sorted(span for row in rows for span in zip(row[::2], row[1::2], strict=True)))


def _joined(spans: Iterable[tuple[int, int]]) -> Edges:
    """The edges of spans in order; those that touch are one."""
    edges: list[int] = []
    for begin, end in spans:
        if edges and begin <= edges[-1]:
            edges[-1] = max(edges[-1], end)
        else:
            edges += (begin, end)
    return tuple(edges)
