"""Local times: an `at` without an offset, and an interval that is aligned to a local time."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from random import Random

import pytest

from almanac import walker
from almanac.trials import ZONES
from schedd.core.ids import Id
from schedd.core.schedule import compiled_schedule, local_times
from schedd.core.schedule.compiled_schedule import (
    AtSchedule,
    CompiledSchedule,
    EverySchedule,
    ScheduleBounds,
)
from schedd.core.schedule.cron import ScheduleError

WEEK = timedelta(weeks=1)
JOB = Id.from_int(7)


def every(interval: timedelta, anchor: str, zone: str, **more: timedelta) -> CompiledSchedule:
    found = EverySchedule(interval, anchor=datetime.fromisoformat(anchor), zone=zone, **more)
    return compiled_schedule.compile(found, "default/job", JOB)


def starts(compiled: CompiledSchedule, after: str, count: int) -> list[str]:
    found = compiled.instants_between(
        datetime.fromisoformat(after), datetime(2099, 1, 1, tzinfo=UTC), count
    )
    return [f"{one.nominal:%Y-%m-%dT%H:%MZ}" for one in found]


def test_every_second_tuesday_keeps_the_clock_time_across_a_change() -> None:
    compiled = every(2 * WEEK, "2026-01-06T09:00:00", "Europe/Berlin")
    assert starts(compiled, "2026-03-10T00:00:00Z", 4) == [
        "2026-03-17T08:00Z",
        "2026-03-31T07:00Z",
        "2026-04-14T07:00Z",
        "2026-04-28T07:00Z",
    ]
    assert starts(compiled, "2025-12-20T00:00:00Z", 1) == ["2025-12-23T08:00Z"], "both ways"


def test_other_intervals_are_elapsed_time_from_the_anchor() -> None:
    compiled = every(timedelta(hours=36), "2026-03-28T09:00:00", "Europe/Berlin")
    assert starts(compiled, "2026-03-28T00:00:00Z", 3) == [
        "2026-03-28T08:00Z",
        "2026-03-29T20:00Z",
        "2026-03-31T08:00Z",
    ]


def test_a_time_in_a_gap_runs_after_it_and_a_repeated_one_runs_once() -> None:
    compiled = every(timedelta(days=1), "2026-01-01T02:30:00", "Europe/Berlin")
    assert starts(compiled, "2026-03-28T12:00:00Z", 2) == ["2026-03-29T01:00Z", "2026-03-30T00:30Z"]
    assert starts(compiled, "2026-10-24T12:00:00Z", 2) == ["2026-10-25T00:30Z", "2026-10-26T01:30Z"]


@pytest.mark.parametrize(
    ("make", "field", "problem"),
    [
        (
            lambda: every(WEEK, "2026-03-29T02:30:00", "Europe/Berlin"),
            "anchor",
            "2026-03-29T01:30:00+01:00 or 2026-03-29T03:30:00+02:00",
        ),
        (
            lambda: every(WEEK, "2026-10-25T02:30:00", "Europe/Berlin"),
            "anchor",
            "2026-10-25T02:30:00+02:00 or 2026-10-25T02:30:00+01:00",
        ),
        (lambda: every(WEEK, "2026-01-06T09:00:00", ""), "anchor", "time_zone is missing"),
        (lambda: every(WEEK, "2026-01-06T09:00:00", "GMT+2"), "time_zone", "write Etc/GMT-2"),
        (
            lambda: every(WEEK, "2026-01-06T09:00:00", "UTC", phase=timedelta(hours=1)),
            "anchor",
            "combined with a phase",
        ),
    ],
)
def test_an_ambiguous_local_time_is_rejected_with_both_readings(
    make, field: str, problem: str
) -> None:
    with pytest.raises(ScheduleError) as refusal:
        make()
    assert refusal.value.field == field
    assert problem in str(refusal.value)


def test_a_local_at_is_read_in_its_zone() -> None:
    local = local_times.parse_local_time("2026-12-24T18:00:00", "at")
    compiled = compiled_schedule.compile(AtSchedule(local, "Europe/Berlin"), "", JOB)
    assert compiled.single == datetime(2026, 12, 24, 17, tzinfo=UTC)
    gap = datetime(2026, 3, 29, 2, 30)  # noqa: DTZ001
    with pytest.raises(ScheduleError, match="2026-03-29T01:30:00\\+01:00 or 2026-03-29T03:30"):
        compiled_schedule.compile(AtSchedule(gap, "Europe/Berlin"), "", JOB)
    for text in ("2026-12-24", "2026-12-24T18:00:00Z", "2026-02-30T18:00:00", "soon", "9" * 999):
        with pytest.raises(ScheduleError, match="isn't a local time"):
            local_times.parse_local_time(text, "at")


def _walked(walk: walker.Walk, anchor: datetime, days: int) -> list[int]:
    """Return the times of an interval of days, read off local clocks minute by minute."""
    first = (anchor.date() - date(1970, 1, 1)).days
    found = set()
    for day in walk.days:
        if (day - first) % days:
            continue
        clock = day * 1440 + anchor.hour * 60 + anchor.minute
        if clock in walk.shown:
            found.add(walk.shown[clock][0] * 60)
        else:
            found.update(real * 60 for real, skipped in walk.gaps if clock in skipped)
    return sorted(at for at in found if walk.start < at <= walk.end)


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
def test_an_interval_of_days_matches_a_walk_through_real_time(zone: str) -> None:
    random = Random(f"anchors/{zone}")
    changes = walker.changes(zone) or (1_900_000_000,)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    for _ in range(12):
        start = random.choice(changes) - random.randint(0, 5 * 86400)
        walk = walker.walk(zone, start, start + 7 * 86400)
        days = random.choice((1, 1, 2, 3))
        time = f"{random.randint(0, 4):02}:{random.choice(('00', '30'))}"
        anchor = datetime.fromisoformat(f"2026-01-{random.randint(1, 28):02}T{time}")
        found = EverySchedule(timedelta(days=days), anchor=anchor, zone=zone)
        compiled = compiled_schedule.compile(found, "", JOB, ScheduleBounds())
        low, high = epoch + timedelta(seconds=walk.start), epoch + timedelta(seconds=walk.end)
        instants = [
            int(one.nominal.timestamp()) for one in compiled.instants_between(low, high, 99)
        ]
        assert instants == _walked(walk, anchor, days), (anchor, days, start)
        assert all(one < following for one, following in pairwise(instants))
        assert compiled.count(low, high) == len(instants)
        for at in instants:
            asked = epoch + timedelta(seconds=at - random.randint(1, 40000))
            following = compiled.next_after(asked)
            assert following is not None
            assert int(following.nominal.timestamp()) <= at
            bits = compiled.instants.times_on_day(at // 86400)
            assert bits >> at % 86400 & 1


def test_an_interval_begins_and_ends_with_the_calendar() -> None:
    compiled = every(WEEK, "2026-01-06T09:00:00", "Europe/Berlin")
    assert compiled.next_after(datetime(9988, 1, 1, tzinfo=UTC)) is None
    assert compiled.next_after(datetime(1, 1, 2, tzinfo=UTC)) is not None
