"""Closed time: the rules of a calendar in one zone, as the bits of each local day.

One idea: what is excluded of a local day is a number of 86,400 bits
(`core/schedule/cron/day_bits`). So whether a second is closed, and when that ends, is a shift and
the lowest bit set, whatever the rules say; a day that is wholly free, or wholly closed, needs none.

Which patterns name a day is kept for some days of each calendar; the numbers, 11 KiB each, are kept
for all calendars together, as many as `_KEPT_BITS`.
"""

from bisect import bisect_left
from datetime import date
from functools import lru_cache
from typing import Final

from schedd.core.schedule.calendars.rules import Rules
from schedd.core.schedule.cron import day_bits, parse
from schedd.core.schedule.cron.day_bits import DAY, FULL
from schedd.core.schedule.cron.masks import EPOCH_DAY, Masks, lowest, month_length
from schedd.core.schedule.work_budget import spend
from schedd.core.schedule.zones import LAST, NEAR, Zone
from schedd.core.schedule.zones import zone as zone_of

FARTHEST: Final = 20 * 366
"""Days that are looked through for a free one."""
_KEPT: Final = 2048
"""Days of one calendar of which it is known which patterns name them."""
_KEPT_BITS: Final = 1024
"""Numbers of closed seconds, 11 MiB in all."""
_KEPT_OWN: Final = 16
"""The same beside them, of each calendar."""
_YEARS: Final = 9
"""Within so many there is a 29th of February."""
_WHOLE: Final = -1
"""In place of the patterns that name a day: it is closed as a whole."""


class ClosedTime:
    """What a calendar excludes, by the clock of one zone. Get it from `closed`.

    All instants are whole seconds since 1970 UTC. Any thread may ask.
    """

    __slots__ = ("_bits", "_days", "_patterns", "_rules", "_sorted", "zone")

    def __init__(self, rules: Rules, zone: Zone) -> None:
        self.zone = zone
        self._rules = rules
        self._sorted = sorted(rules.days)
        self._patterns = tuple(_pattern(text) for text in rules.cron)
        self._days: dict[int, int] = {}
        """Which patterns name a local day, a bit each; or `_WHOLE`."""
        self._bits: dict[int, int] = {}
        """What some sets of patterns close."""

    def has(self, second: int) -> bool:
        """Whether this instant is excluded."""
        segment = self.zone.latest
        if not segment.start <= second < segment.end:
            segment = self.zone.segment(second)
        day, rest = divmod(second + segment.offset, DAY)
        bits = self.on(day)
        return bool(bits) and (bits is FULL or bits >> rest & 1 == 1)

    def day(self, day: int) -> int:
        """What is excluded of a UTC day since 1970, as its bits (`core/schedule/cron/day_bits`)."""
        start = day * DAY
        found = 0
        for segment in self.zone.segments(start - 1, start + DAY - 1):
            first, stop = max(segment.start, start), min(segment.end, start + DAY)
            if stop - first == DAY:  # no change of the clock
                local, rest = divmod(start + segment.offset, DAY)
                bits = self.on(local)
                if not rest or ((bits is FULL or not bits) and bits is self.on(local + 1)):
                    return bits
            spend(10)
            bits = day_bits.window(self.on, first + segment.offset, stop - first)
            found |= bits << (first - start)
        return found

    def free_from(self, second: int) -> int | None:
        """The first instant not before `second` that isn't excluded; None: none for 20 years."""
        for _ in range(FARTHEST):
            if second >= LAST:
                return None
            segment = self.zone.segment(second)
            day, rest = divmod(second + segment.offset, DAY)
            closed = self.on(day)
            if not closed:
                return second
            free = (FULL ^ closed) >> rest
            if free and (first := second + lowest(free)) < segment.end:
                return first
            second = min(segment.end, (day + 1) * DAY - segment.offset)
        return None

    def closed_from(self, second: int) -> int | None:
        """The first instant not before `second` that is excluded; None: none is any more."""
        while second < LAST:
            segment = self.zone.segment(second)
            day, rest = divmod(second + segment.offset, DAY)
            closed = self.on(day) >> rest
            if closed:
                first = second + lowest(closed)
                if first < segment.end:
                    return first
                second = segment.end
                continue
            following = self.next_day(day + 1)
            if following is None:
                return None
            # Clocks are set by less than two days: so long before its midnight the day isn't there.
            midnight = following * DAY - segment.offset
            second = midnight if midnight < segment.end else max(segment.end, midnight - NEAR)
        return None

    def on(self, day: int) -> int:
        """What is excluded of a local day, as its bits."""
        matching = self._days.get(day)
        spend(2)
        if matching is None:
            if len(self._days) >= _KEPT:
                self._days = {}
            matching = self._days[day] = _WHOLE if self._is_whole(day) else self._matching(day)
        if matching == _WHOLE:
            return FULL
        if not matching:
            return 0
        bits = self._bits.get(matching)
        if bits is None:
            if len(self._bits) >= _KEPT_OWN:
                self._bits = {}
            bits = self._bits[matching] = _union(self._rules.cron, matching)
        return bits

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

    def _matching(self, day: int) -> int:
        """Which patterns name a day, a bit each."""
        spend(len(self._patterns) // 2)
        found = 0
        for number, (masks, _) in enumerate(self._patterns):
            if masks.matches_day(day):
                found |= 1 << number
        return found

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
        spend(len(self._patterns))
        for masks, _ in self._patterns:
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


@lru_cache(maxsize=256)
def closed(rules: Rules, zone: str) -> ClosedTime:
    """The closed time of these rules; `zone` is for those that have none of their own."""
    return ClosedTime(rules, zone_of(rules.zone or zone))


@lru_cache(maxsize=4096)
def _pattern(expression: str) -> tuple[Masks, int]:
    """The days of an expression, and the mask of its seconds."""
    masks = parse(expression, zone="UTC", seed="").masks
    assert masks is not None, "the rules were checked"
    # In five fields the second is 0, and the whole minute is meant.
    return masks, masks.second if len(expression.split()) > 5 else (1 << 60) - 1


@lru_cache(maxsize=_KEPT_BITS)
def _union(expressions: tuple[str, ...], matching: int) -> int:
    """What any of these expressions closes of a day, of those that have their bit in `matching`."""
    spend(10 * matching.bit_count())
    found = 0
    while matching and found != FULL:
        masks, second = _pattern(expressions[lowest(matching)])
        found |= day_bits.of_times(masks.hour, masks.minute, second)
        matching &= matching - 1
    return FULL if found == FULL else found
