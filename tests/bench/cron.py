"""Measure how many scheduled times one core computes per second, and how fast errors are found.

    next        CronExpression.next_after: computes a datetime from the previous datetime, without
                a cache between two calls. Offsets of the time zone are already known
    seconds     next_second: the same with whole seconds, without datetimes
    occurrence  CompiledSchedule.next_after: also applies start, end and jitter, as members do
    excluding   CompiledSchedule.next_after of a job that excludes two calendars: weekends, and
                dates and nights
    bulk        CronExpression.seconds: all scheduled times of a time range
    no offset   CronExpression.next_after, with no known offset of the time zone
    refused     parsing of expressions that never match, without a cache; the slowest expression

Rates are per second of CPU time of one core: the median of all repetitions. Each expression has the
same number of calls. The output has one JSON line for each measurement.
"""

import json
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from statistics import median
from time import process_time

from bench.numbers import plain_parser, positive
from schedd.core.ids import Id
from schedd.core.schedule import compiled_schedule, cron, zones
from schedd.core.schedule.calendars.rules import CalendarVersion, Exclude, rules
from schedd.core.schedule.cron import CronExpression, dialect, expand, expression
from schedd.core.schedule.zones import tzdata_version

EXPRESSIONS = (
    "* * * * *",
    "*/5 * * * *",
    "17 * * * *",
    "30 2 * * *",
    "0,30 1-3 * * *",
    "0 9 * * mon-fri",
    "0 */6 1,15 * *",
    "0 0 L * *",
    "0 9 * * 5#2",
    "*/20 * * * * *",
)
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe")
IMPOSSIBLE = ("0 0 31 2 *", "0 0 31 4,6,9,11 *", "0 0 */31 2,4 mon#5", "* * * 30,31 2 ?")
WEEKENDS = CalendarVersion("weekends", 1, rules(weekdays=["sat", "sun"]))
HOLIDAYS = CalendarVersion(
    "holidays", 1, rules(dates=["01-01", "05-01", "12-25", "2026-04-03"], cron=["* 4 * * *"])
)
START = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())

Ask = Callable[[CronExpression, int], None]


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return the exit code."""
    parser = plain_parser("bench.cron", __doc__)
    parser.add_argument(
        "--runs",
        type=positive,
        default=5,
        help="repetitions of each measurement; the median is printed",
    )
    parser.add_argument(
        "--questions",
        type=positive,
        default=2000,
        help="computed times for each pair of expression and time zone",
    )
    options = parser.parse_args(arguments)
    asked: dict[str, tuple[Ask, int]] = {
        "next": (_next, options.questions),
        "seconds": (_seconds, options.questions),
        "occurrence": (_occurrence, options.questions),
        "excluding": (_excluding, options.questions),
        "bulk": (_bulk, options.questions),
        "no offset": (_no_offset, max(1, options.questions // 20)),
    }
    for name, (ask, questions) in asked.items():
        rates = sorted(_rate(ask, questions) for _ in range(options.runs))
        _print(name, round(median(rates)), "a second", [round(rate) for rate in rates])
    slowest = sorted(max(_refusal(text) for text in IMPOSSIBLE) for _ in range(options.runs))
    times_ms = [round(each * 1000, 2) for each in slowest]
    _print("refused", round(median(slowest) * 1000, 2), "ms", times_ms)
    return 0


def _rate(ask: Ask, questions: int) -> float:
    """Return computed times per second of CPU. A first pass loads all offsets of the time zone."""
    parsed = [cron.parse(text, zone=zone, seed="") for text in EXPRESSIONS for zone in ZONES]
    for one in parsed:
        ask(one, questions)
    began = process_time()
    for one in parsed:
        ask(one, questions)
    return len(parsed) * questions / (process_time() - began)


def _next(one: CronExpression, questions: int) -> None:
    at: datetime | None = datetime.fromtimestamp(START, UTC)
    for _ in range(questions):
        assert at is not None
        at = one.next_after(at)


def _seconds(one: CronExpression, questions: int) -> None:
    at: int | None = START
    for _ in range(questions):
        assert at is not None
        at = one.next_second(at)


def _occurrence(one: CronExpression, questions: int) -> None:
    compiled = compiled_schedule.compile(
        compiled_schedule.CronSchedule((one.text,), one.zone), "", Id.from_int(1)
    )
    at = datetime.fromtimestamp(START, UTC)
    for _ in range(questions):
        found = compiled.next_after(at)
        assert found is not None
        at = found.nominal


def _excluding(one: CronExpression, questions: int) -> None:
    exclude = Exclude((WEEKENDS, HOLIDAYS), zone=one.zone)
    when = compiled_schedule.CronSchedule((one.text,), one.zone)
    compiled = compiled_schedule.compile(
        when, "", Id.from_int(1), compiled_schedule.ScheduleBounds(), exclude
    )
    at = datetime.fromtimestamp(START, UTC)
    for _ in range(questions):
        found = compiled.next_after(at)
        assert found is not None
        at = found.nominal


def _bulk(one: CronExpression, questions: int) -> None:
    left = questions
    for _ in one.seconds(START, zones.LAST):
        left -= 1
        if not left:
            return


def _no_offset(one: CronExpression, questions: int) -> None:
    at: datetime | None = datetime.fromtimestamp(START, UTC)
    zone = zones.zone(one.zone)
    for _ in range(questions):
        assert at is not None
        zone._blocks.clear()
        zone.latest = zones._NO_TIME
        at = one.next_after(at)


def _refusal(text: str) -> float:
    """Return seconds of CPU until an expression that never matches is rejected."""
    expression._parse.cache_clear()
    expand.build.cache_clear()
    began = process_time()
    with suppress(cron.CronError):
        cron.parse(text, seed="")
    return process_time() - began


def _print(name: str, value: float, unit: str, runs: list[float]) -> None:
    line = {
        "bench": "cron",
        "what": name,
        "median": value,
        "unit": unit,
        "runs": runs,
        "python": platform.python_version(),
        "tzdata": tzdata_version(),
        "dialect": dialect.DIALECT,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
