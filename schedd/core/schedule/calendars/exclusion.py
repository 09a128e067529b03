"""The exclusions of a job: its calendars in their order, then its own cron expressions. The first
match decides which calendar is reported, and whether the time rolls.

The excluded time of a local day is a number of 86,400 bits (`core/schedule/cron/day_bits`). So the
next closed or open second is a shift and the lowest bit set, whatever the rules are. A day that is
wholly free or wholly closed needs no number.

The patterns that match a day are cached for some days of each calendar. The numbers, 11 KiB each,
are cached for all calendars together: at most `_KEPT_BITS`.
"""

from bisect import bisect_left
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Final

from schedd.core.schedule.calendars.rules import Exclude, Roll, Rules
from schedd.core.schedule.cron import EPOCH, day_bits, parse
from schedd.core.schedule.cron.day_bits import DAY, FULL
from schedd.core.schedule.cron.masks import EPOCH_DAY, Masks, lowest, month_length
from schedd.core.schedule.work_budget import spend
from schedd.core.schedule.zones import LAST, NEAR, Zone
from schedd.core.schedule.zones import zone as zone_of
from schedkit.records import dataclass

FARTHEST: Final = 20 * 366
"""Maximum number of days searched for a free one."""
_KEPT: Final = 2048
"""Days of one calendar whose matching patterns are cached."""
_KEPT_BITS: Final = 1024
"""Cached numbers of closed seconds: 11 MiB in all."""
_KEPT_OWN: Final = 16
"""Cached numbers of each calendar, besides the common ones."""
_YEARS: Final = 9
"""Any span of so many years has a 29th of February."""
_WHOLE: Final = -1
"""Instead of the patterns that match a day: the whole day is closed."""


class ClosedTime:
    """The excluded time of a calendar, by the clock of one zone. Get it from `closed`.

    All times are whole seconds since 1970 UTC. Thread-safe.
    """

    __slots__ = ("_bits", "_days", "_patterns", "_rules", "_sorted", "zone")

    def __init__(self, rules: Rules, zone: Zone) -> None:
        self.zone = zone
        self._rules = rules
        self._sorted = sorted(rules.days)
        self._patterns = tuple(_pattern(text) for text in rules.cron)
        self._days: dict[int, int] = {}
        """The patterns that match a local day, one bit each; or `_WHOLE`."""
        self._bits: dict[int, int] = {}
        """The closed seconds of some sets of patterns."""

    def excludes_second(self, second: int) -> bool:
        segment = self.zone.latest
        if not segment.start <= second < segment.end:
            segment = self.zone.segment(second)
        day, rest = divmod(second + segment.offset, DAY)
        bits = self.closed_bits_on_day(day)
        return bool(bits) and (bits is FULL or bits >> rest & 1 == 1)

    def day(self, day: int) -> int:
        """Return the excluded time of a UTC day since 1970, as its `day_bits`."""
        start = day * DAY
        found = 0
        for segment in self.zone.segments(start - 1, start + DAY - 1):
            first, stop = max(segment.start, start), min(segment.end, start + DAY)
            if stop - first == DAY:  # no change of the clock
                local, rest = divmod(start + segment.offset, DAY)
                bits = self.closed_bits_on_day(local)
                if not rest or (
                    (bits is FULL or not bits) and bits is self.closed_bits_on_day(local + 1)
                ):
                    return bits
            spend(10)
            bits = day_bits.window(self.closed_bits_on_day, first + segment.offset, stop - first)
            found |= bits << (first - start)
        return found

    def border_from(self, second: int) -> int | None:
        """Return the first time after `second` that is excluded, if `second` isn't, or that isn't,
        if `second` is; None: there is none, or all of 20 years is excluded.
        """
        closed = self.excludes_second(second)
        last = min(LAST, second + FARTHEST * DAY) if closed else LAST
        while second < last:
            segment = self.zone.segment(second)
            day, rest = divmod(second + segment.offset, DAY)
            bits = self.closed_bits_on_day(day)
            other = (FULL ^ bits if closed else bits) >> rest
            if other and (first := second + lowest(other)) < segment.end:
                return first
            following = day + 1 if closed or other else self.next_day(day + 1)
            if following is None:
                return None
            # Clocks are set by less than two days: the day can't begin earlier than that.
            midnight = following * DAY - segment.offset
            second = midnight if midnight < segment.end else max(segment.end, midnight - NEAR)
        return None

    def closed_bits_on_day(self, day: int) -> int:
        """Return the excluded time of a local day, as its bits."""
        matching = self._days.get(day)
        spend(2)
        if matching is None:
            if len(self._days) >= _KEPT:
                self._days = {}
            matching = self._days[day] = self._matching(day)
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

    def _matching(self, day: int) -> int:
        """Return the patterns that match a day, one bit each, or `_WHOLE`."""
        rules, at = self._rules, date.fromordinal(day + EPOCH_DAY)
        after = bisect_left(rules.ranges, (day + 1,))
        if (
            day in rules.days
            or self._is_weekday(day)
            or (after and day <= rules.ranges[after - 1][1])
            or (at.month, at.day) in rules.yearly
        ):
            return _WHOLE
        spend(len(self._patterns) // 2)
        matching = (masks.matches_day(day) for masks, _ in self._patterns)
        return sum(matches << number for number, matches in enumerate(matching))

    def next_day(self, day: int) -> int | None:
        """Return the first local day not before `day` on which anything is excluded."""
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
            year = date.fromordinal(day + EPOCH_DAY).year
            found += [
                number
                for one in range(year, year + _YEARS)
                for month, at in rules.yearly
                if (month, at) != (2, 29) or month_length(one, 2) == 29
                if (number := date(one, month, at).toordinal() - EPOCH_DAY) >= day
            ]
        spend(len(self._patterns))
        matching = (masks.next_day(day) for masks, _ in self._patterns)
        return min((*found, *(one for one in matching if one is not None)), default=None)

    def _is_weekday(self, day: int) -> bool:
        return bool(self._rules.weekdays >> (day + EPOCH_DAY) % 7 & 1)


@lru_cache(maxsize=256)
def closed(rules: Rules, zone: str) -> ClosedTime:
    """Return the closed time of these rules. `zone` is used if the rules have none."""
    return ClosedTime(rules, zone_of(rules.zone or zone))


@lru_cache(maxsize=4096)
def _pattern(expression: str) -> tuple[Masks, int]:
    """Return the days of an expression, and the mask of its seconds."""
    masks = parse(expression, zone="UTC", seed="").masks
    assert masks is not None, "the rules were checked"
    # With five fields the second is 0, and the whole minute is meant.
    return masks, masks.second if len(expression.split()) > 5 else (1 << 60) - 1


@lru_cache(maxsize=_KEPT_BITS)
def _union(expressions: tuple[str, ...], matching: int) -> int:
    """Return the seconds of a day that expressions with a bit in `matching` close."""
    spend(10 * matching.bit_count())
    found = 0
    while matching and found != FULL:
        masks, second = _pattern(expressions[lowest(matching)])
        found |= day_bits.of_times(masks.hour, masks.minute, second)
        matching &= matching - 1
    return FULL if found == FULL else found


@dataclass(frozen=True, slots=True)
class Closure:
    """A source of exclusions: a version of a calendar, or the job's own expressions (no name)."""

    name: str
    version: int
    roll: Roll
    time: ClosedTime

    def __str__(self) -> str:
        if not self.name:
            return "the job's exclude.cron"
        return f"calendar {self.name}" + (f" v{self.version}" if self.version else "")


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The exclusions of a job, in order. Times are aware datetimes in UTC."""

    closures: tuple[Closure, ...]

    def decider(self, instant: datetime) -> Closure | None:
        """Return the first closure that excludes this time; None: it isn't excluded."""
        return self.decider_at(second_of(instant))

    def decider_at(self, second: int) -> Closure | None:
        """Return the `decider` of a time in whole seconds since 1970."""
        spend(2 * len(self.closures))
        for closure in self.closures:
            if closure.time.excludes_second(second):
                return closure
        return None

    def excludes(self, instant: datetime) -> bool:
        return self.decider_at(second_of(instant)) is not None

    def open_on(self, day: int) -> int:
        """Return the seconds of a UTC day since 1970 that aren't excluded, as its `day_bits`."""
        spend(2)
        found = 0
        for closure in self.closures:
            closed = closure.time.day(day)
            if closed is FULL:
                return 0
            found = found | closed if found and closed else found or closed
        return FULL ^ found if found else FULL

    def border_after(self, instant: datetime) -> datetime | None:
        """Return the next time at which a closure begins or ends; None: there is none."""
        found = (closure.time.border_from(second_of(instant)) for closure in self.closures)
        first = min((one for one in found if one is not None), default=None)
        return None if first is None else instant_of(first)


def exclusion_of(exclude: Exclude) -> Exclusion | None:
    """Return the exclusions of a job; None if it has none."""
    sources = [(one.name, one.version, one.rules) for one in exclude.calendars]
    if exclude.cron:
        sources.append(("", 0, Rules(cron=exclude.cron)))
    closures = tuple(
        Closure(name, version, rules.roll, closed(rules, exclude.zone))
        for name, version, rules in sources
    )
    return Exclusion(closures) if closures else None


def second_of(instant: datetime) -> int:
    past = instant - EPOCH
    return past.days * 86400 + past.seconds


def instant_of(second: int) -> datetime:
    """Return the time of a number of seconds since 1970."""
    return EPOCH + timedelta(0, second)
