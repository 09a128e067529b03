"""Compute fire times from masks: matching local times, mapped to UTC by the DST rules (`dst`).

The fire times of an expression are a *set* that the rules define without a starting point.
`next_after` returns the smallest member greater than its argument. So the result doesn't depend on
where a search begins, several local times of one gap give one fire time, and the sequence is
strictly increasing.

All arithmetic is in whole seconds since 1970 UTC.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from schedd.core.schedule.cron import day_bits
from schedd.core.schedule.cron.day_bits import DAY
from schedd.core.schedule.cron.dialect import is_hashed, translate
from schedd.core.schedule.cron.dst import DEBIAN, DstPolicy, fixed_time_span, runs_after_gap
from schedd.core.schedule.cron.errors import CronError
from schedd.core.schedule.cron.expand import build
from schedd.core.schedule.cron.masks import Masks
from schedd.core.schedule.work_budget import spend
from schedd.core.schedule.zones import FIRST, LAST, NEAR, UnknownZone, Zone
from schedd.core.schedule.zones import zone as zone_of
from schedkit.records import dataclass

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
SECOND: Final = timedelta(seconds=1)


MOST_PASSED: Final = 250
"""Maximum number of clock changes that one search passes: some sixty years of any zone.

An expression whose times all fell into gaps until then (`30 2 * 3 7L` in Berlin, with SKIP) never
matches. No calendar date needs more than forty years to match, and years without a matching day are
skipped at once.
"""


PARSED: Final = 500
"""Approximate units of work (`core/schedule/work_budget`) to parse an expression."""


@dataclass(frozen=True, slots=True)
class CronExpression:
    """Either calendar `masks` in a `zone`, or `every`, an interval in seconds. `text`: as written.
    `wildcard`: its minute or hour begins with `*`, so it follows elapsed time over clock changes.
    """

    text: str
    zone: str
    wildcard: bool
    masks: Masks | None
    every: int = 0

    def next_after(self, instant: datetime, dst: DstPolicy = DEBIAN) -> datetime | None:
        """Return the first fire time after `instant` (aware), in UTC; None past the year 9987."""
        past = instant - EPOCH
        found = self.next_second(past.days * DAY + past.seconds, dst)
        return None if found is None else EPOCH + timedelta(0, found)

    def next_second(self, second: int, dst: DstPolicy = DEBIAN) -> int | None:
        """Return `next_after` in whole seconds since 1970 UTC."""
        if self.masks is None:
            return (second // self.every + 1) * self.every
        if second >= LAST:
            return None
        if second < FIRST:
            second = FIRST
        return _first_from(second + 1, self.masks, zone_of(self.zone), self.wildcard, dst)

    def seconds(self, after: int, until: int, dst: DstPolicy = DEBIAN) -> Iterator[int]:
        """Yield every fire time in (after, until], ascending."""
        found = self.next_second(after, dst)
        while found is not None and found <= until:
            yield found
            found = self.next_second(found, dst)

    def times_on_day(self, day: int, dst: DstPolicy = DEBIAN) -> int:
        """Return the fire times of a UTC day since 1970, as its bits (`day_bits`)."""
        start = day * DAY
        if self.masks is None:
            return day_bits.each(-start % self.every, self.every)
        found, masks = 0, self.masks
        for segment in zone_of(self.zone).segments(start - 1, start + DAY - 1):
            first, stop = segment.start, segment.end
            if not self.wildcard:
                first, stop = fixed_time_span(segment, dst)
                if start <= segment.start and runs_after_gap(segment, masks, dst):
                    found |= 1 << (segment.start - start)
            first, stop = max(first, start), min(stop, start + DAY)
            if first < stop:
                local = day_bits.window(masks.matches_on_day, first + segment.offset, stop - first)
                found |= local << (first - start)
        return found

    def count(self, after: int, until: int, dst: DstPolicy = DEBIAN) -> int:
        """Return how many fire times lie in (after, until], without a walk through them."""
        if self.masks is None:
            return until // self.every - after // self.every
        return day_bits.count(lambda day: self.times_on_day(day, dst), after, until)


def _first_from(
    second: int, masks: Masks, zone: Zone, wildcard: bool, dst: DstPolicy
) -> int | None:
    """Return the smallest member of the set that is not before `second`."""
    passed = 0
    while True:
        segment = zone.latest
        if not segment.start <= second < segment.end:
            segment = zone.segment(second)
        offset, end = segment.offset, segment.end
        if wildcard or segment.before == offset == segment.after:
            local = masks.next_local(second + offset)
        else:
            if second == segment.start and runs_after_gap(segment, masks, dst):
                return second
            start, end = fixed_time_span(segment, dst)
            local = masks.next_local(max(second, start) + offset)
        if local is None:
            return None
        found = local - offset
        if found < end:
            return found
        end, passed = segment.end, passed + 1
        spend(5)
        if passed > MOST_PASSED:
            return None
        if end - second > NEAR and found - NEAR > end:
            # Local time differs from UTC by less than a day either way. All offsets of a zone
            # differ from each other by less than two days. So no clock shows a matching time
            # between two days after `second` and two days before the next local match, whatever
            # changes happen.
            second = found - NEAR
            segment = zone.segment(second)
            found = local - segment.offset
            if found < segment.end and (wildcard or segment.after == segment.offset):
                return found
        else:
            second = end


def parse(expression: str, *, zone: str = "UTC", seed: str) -> CronExpression:
    """Parse like `rewrites.parse`, without the search for a rewrite of a rejected expression."""
    return _parse(expression, zone, seed if is_hashed(expression) else "")


@lru_cache(maxsize=8192)
def _parse(expression: str, zone: str, seed: str) -> CronExpression:
    spend(PARSED)
    translation = translate(expression, seed)
    name = translation.zone or zone
    try:
        zone_of(name)
    except UnknownZone as unknown:
        raise CronError("time_zone", f"unknown time zone {name!r}", unknown.hint) from None
    if translation.every:
        return CronExpression(expression, name, wildcard=True, masks=None, every=translation.every)
    wildcard = translation.fields[1].star or translation.fields[2].star
    return CronExpression(expression, name, wildcard, build(translation.fields))
