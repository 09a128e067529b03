"""Sets of scheduled times: a union of cron expressions, an interval, or one time.

Each set answers two questions without a starting point. Which time is the next after a given time?
How many times lie between two given times? `compiled_schedule` adds bounds, jitter and validation.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final, Protocol

from schedd.core.schedule.cron import DEBIAN, EPOCH, CronExpression, DstPolicy, day_bits
from schedd.core.schedule.cron.dst import instants_of
from schedd.core.schedule.cron.expression import SECOND
from schedd.core.schedule.work_budget import spend
from schedd.core.schedule.zones import FIRST, LAST, NEAR
from schedd.core.schedule.zones import zone as zone_of
from schedkit.records import dataclass

_MILLISECOND: Final = timedelta(milliseconds=1)


class Instants(Protocol):
    """A set of scheduled times."""

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the smallest time greater than `instant`."""
        ...

    def times_on_day(self, day: int) -> int:
        """Return the times of a UTC day since 1970 as its bits (`core/schedule/cron/day_bits`).

        A second with several times has one bit.
        """
        ...

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many times lie in (after, until], without a walk through them."""
        ...


@dataclass(frozen=True, slots=True)
class CronInstants:
    """The union of expressions, maybe of none: a time that several name counts once."""

    expressions: tuple[CronExpression, ...]
    dst: DstPolicy

    def next_after(self, instant: datetime) -> datetime | None:
        if len(self.expressions) == 1:
            return self.expressions[0].next_after(instant, self.dst)
        spend(4 * len(self.expressions))
        found = [expression.next_after(instant, self.dst) for expression in self.expressions]
        return min((nominal for nominal in found if nominal is not None), default=None)

    def times_on_day(self, day: int) -> int:
        found = 0
        spend(10 * len(self.expressions))
        for expression in self.expressions:
            found |= expression.times_on_day(day, self.dst)
        return found

    def count(self, after: datetime, until: datetime) -> int:
        low, high = (after - EPOCH) // SECOND, (until - EPOCH) // SECOND
        if len(self.expressions) == 1:
            return self.expressions[0].count(low, high, self.dst)
        return day_bits.count(self.times_on_day, low, high)


@dataclass(frozen=True, slots=True)
class EveryInstants:
    """Each `interval` since 1970 UTC, moved by `phase`."""

    interval: timedelta
    phase: timedelta

    def next_after(self, instant: datetime) -> datetime | None:
        try:
            return self._time_of(self._index(instant) + 1)
        except OverflowError:
            return None

    def times_on_day(self, day: int) -> int:
        start = EPOCH + timedelta(day)
        first = -((start - EPOCH - self.phase) // -self.interval)  # the first not before `start`
        begin = (self._time_of(first) - start) // _MILLISECOND
        return _seconds_of(begin, self.interval // _MILLISECOND)

    def count(self, after: datetime, until: datetime) -> int:
        return self._index(until) - self._index(after)

    def _index(self, instant: datetime) -> int:
        """Return the number of the last time that isn't after `instant`."""
        return (instant - EPOCH - self.phase) // self.interval

    def _time_of(self, index: int) -> datetime:
        return EPOCH + self.phase + self.interval * index


@dataclass(frozen=True, slots=True)
class DailyInstants:
    """Each `days` days at the local time of `anchor` (seconds since 1970 on the clock of `zone`).

    A local time that the clocks skip counts at the first moment after the gap, one that comes twice
    in its first pass, as fixed times of cron. Time `n` never decreases as `n` grows.
    """

    days: int
    anchor: int
    zone: str

    def next_after(self, instant: datetime) -> datetime | None:
        second = (instant - EPOCH) // SECOND
        if not FIRST < second < LAST:
            return None if second > 0 else self.next_after(EPOCH + (FIRST + NEAR) * SECOND)
        found = self._second_of(self._index(second) + 1)
        number = self._index(second) + 2
        while found <= second:  # two days start at once where a calendar skips one
            found, number = self._second_of(number), number + 1
        return None if found >= LAST else EPOCH + found * SECOND

    def times_on_day(self, day: int) -> int:
        start, found = day * day_bits.DAY, 0
        number = self._index(start - 1) + 1
        while (second := self._second_of(number)) < start + day_bits.DAY:
            found |= 1 << (second - start)
            number += 1
        return found

    def count(self, after: datetime, until: datetime) -> int:
        low, high = (max(FIRST + NEAR, (at - EPOCH) // SECOND) for at in (after, until))
        return day_bits.count(self.times_on_day, low, high)

    def _index(self, second: int) -> int:
        """Return the number of the last time that isn't after `second`."""
        local = second + zone_of(self.zone).segment(second).offset
        number = (local - self.anchor) // (self.days * day_bits.DAY) + 1
        while self._second_of(number) > second:
            number -= 1
        return number

    def _second_of(self, number: int) -> int:
        """Return time `number`, in seconds since 1970 UTC."""
        local = self.anchor + number * self.days * day_bits.DAY
        return instants_of(local, zone_of(self.zone), DEBIAN)[0]


@dataclass(frozen=True, slots=True)
class OneInstant:
    instant: datetime

    def next_after(self, instant: datetime) -> datetime | None:
        return self.instant if self.instant > instant else None

    def times_on_day(self, day: int) -> int:
        at, second = divmod((self.instant - EPOCH) // SECOND, day_bits.DAY)
        return 1 << second if at == day else 0

    def count(self, after: datetime, until: datetime) -> int:
        return int(after < self.instant <= until)


@lru_cache(maxsize=64)
def _seconds_of(first: int, step: int) -> int:
    """Return the seconds of a day that hold `first` and every `step` ms after it, as bits."""
    spend(day_bits.DAY * 1000 // step // 5)
    if step % 1000 == 0 and first < day_bits.DAY * 1000:
        return day_bits.each(first // 1000, step // 1000)
    return day_bits.of_seconds(at // 1000 for at in range(first, day_bits.DAY * 1000, step))


def newest(
    next_after: Callable[[datetime], datetime | None], after: datetime, until: datetime
) -> datetime | None:
    """Return the greatest time of a set in (after, until], without a walk: the search goes back
    from `until` in growing steps, then halves the remaining span.
    """

    def reached(low: datetime) -> datetime | None:
        found = next_after(low)
        return found if found is not None and found <= until else None

    spend(100)
    step = SECOND
    low, high = until - step, until
    while low > after and not reached(low):
        step, high = step * 2, low
        low = until - step
    nominal = reached(max(low, after))
    while nominal and (following := reached(nominal)):
        middle = following + (high - following) / 2
        if later := reached(middle):
            nominal = later
        else:
            nominal, high = following, middle
    return nominal
