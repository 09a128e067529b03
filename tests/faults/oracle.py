"""The due instants of a job, reckoned without the product, by docs/semantics.

    due(Schedule(cron="30 2 * * *", zone="Europe/Riga"), after, until) → seconds of the epoch

Invariants
- Nothing of the product is imported. cronsim reads the fields and judges the days; minutes are
  walked one by one, and what the clocks of a zone do is asked of zoneinfo.
- The answer for (a, c] is the answer for (a, b] and that for (b, c]: no search, no state.

The rules for changes of the clock are in docs/semantics/time-zones-and-dst.md:

A *wildcard* job (minute or hour field begins with `*`) follows real time. A *fixed-time* job whose
time falls into the gap runs once at the first instant after the gap (`gap="skip"`: not at all); one
in the repeated hour runs at its first pass (`overlap="second"`, `"both"`).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from itertools import product
from math import ceil, floor
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from faults.history import Schedule

MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
DAY = timedelta(days=1)
HALF = 0.0005
"""Half of the least difference between two instants."""


class Unjudgeable(Exception):
    """A schedule that this oracle doesn't know (`H`, `15W`): a test must not use it."""


def due(schedule: Schedule, after: float, until: float) -> list[float]:
    """The nominal instants in (after, until], ascending, `start` and `end` (inclusive) applied."""
    if schedule.end is not None:
        until = min(until, schedule.end)
    if after >= until:
        return []
    if schedule.cron is not None:
        found = _cron(schedule, after, until)
    elif schedule.every is not None:
        found = _every(schedule.every, schedule.phase, after, until)
    else:
        found = [] if schedule.at is None else [schedule.at]
    first = schedule.start
    return [at for at in found if after < at <= until and (first is None or at >= first)]


def is_due(schedule: Schedule, instant: float) -> bool:
    """Whether this is a nominal instant of the schedule, to the millisecond."""
    return bool(due(schedule, instant - HALF, instant + HALF))


def _every(interval: float, phase: float, after: float, until: float) -> list[float]:
    first = floor((after - phase) / interval) + 1
    last = floor((until - phase) / interval)
    return [phase + n * interval for n in range(first, last + 1)]


def _cron(schedule: Schedule, after: float, until: float) -> list[float]:
    fields = _fields(schedule.cron or "")
    zone = ZoneInfo(schedule.zone)
    if fields.parts[1].startswith("*") or fields.parts[2].startswith("*"):
        return list(_wildcard(fields, zone, after, until))
    return sorted(set(_fixed(fields, zone, schedule, after, until)))


@cache
def _fields(expression: str) -> CronSim:
    text = MACROS.get(expression, expression).replace("?", "*")
    try:
        return CronSim(text, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise Unjudgeable(f"{expression!r}: {error}") from error


def _wildcard(fields: CronSim, zone: ZoneInfo, after: float, until: float) -> Iterator[float]:
    """Each second of real time whose local reading matches."""
    days: dict[date, bool] = {}
    for minute in range(floor(after / 60) * 60, floor(until) + 1, 60):
        local = datetime.fromtimestamp(minute, zone)
        if local.minute not in fields.minutes or local.hour not in fields.hours:
            continue
        day = local.date()
        if day not in days:
            days[day] = _matches_day(fields, day)
        if days[day]:
            yield from (float(minute + second) for second in sorted(fields.seconds))


def _fixed(
    fields: CronSim, zone: ZoneInfo, schedule: Schedule, after: float, until: float
) -> Iterator[float]:
    """Each local time of the days around, brought to the instants at which it runs."""
    day = datetime.fromtimestamp(after, zone).date() - 2 * DAY
    last = datetime.fromtimestamp(until, zone).date() + DAY
    while day <= last:
        if _matches_day(fields, day):
            midnight = datetime.combine(day, time())
            for clock in product(fields.hours, fields.minutes, fields.seconds):
                yield from _instants(midnight + _length(*clock), zone, schedule)
        day += DAY


def _instants(local: datetime, zone: ZoneInfo, schedule: Schedule) -> Iterator[float]:
    first = local.replace(tzinfo=zone, fold=0)
    second = local.replace(tzinfo=zone, fold=1)
    before, behind = first.utcoffset(), second.utcoffset()
    assert before is not None
    assert behind is not None
    if before == behind:
        yield first.timestamp()
    elif before < behind:  # the clocks go forward over it
        if schedule.gap == "run_after":
            yield _change_between(second.timestamp(), first.timestamp(), zone)
    else:
        if schedule.overlap in ("first", "both"):
            yield first.timestamp()
        if schedule.overlap in ("second", "both"):
            yield second.timestamp()


def _change_between(low: float, high: float, zone: ZoneInfo) -> float:
    """The first whole second of the new offset, given one change in [low, high]."""
    new = datetime.fromtimestamp(high, zone).utcoffset()
    early, late = ceil(low), floor(high)
    while early < late:
        middle = (early + late) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == new:
            late = middle
        else:
            early = middle + 1
    return float(late)


def _matches_day(fields: CronSim, day: date) -> bool:
    return day.month in fields.months and bool(fields.match_day(day))


def _length(hours: int, minutes: int, seconds: int) -> timedelta:
    return timedelta(hours=hours, minutes=minutes, seconds=seconds)
