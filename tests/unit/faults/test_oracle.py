"""The oracle of the faults' checker, against cronsim and against instants reckoned by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.history import Schedule
from faults.oracle import Unjudgeable, due, is_due

AGREED_ZONES = (
    "UTC",
    "Europe/Riga",
    "America/New_York",
    "Africa/Casablanca",
    "Europe/Dublin",
    "Asia/Kathmandu",
)
"""Where cronsim itself keeps Debian's rule."""


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def on_the_wall(schedule: Schedule, day: str) -> list[str]:
    """The instants of one local day as its clocks show them, with their offset."""
    zone = ZoneInfo(schedule.zone)
    begin = datetime.fromisoformat(day).replace(tzinfo=zone)
    end = begin + timedelta(days=1)
    found = due(schedule, begin.timestamp() - 1e-3, end.timestamp() - 1)
    return [datetime.fromtimestamp(one, zone).strftime("%H:%M%z") for one in found]


def test_every_is_aligned_to_the_epoch() -> None:
    assert due(Schedule(every=90), 100, 400) == [180, 270, 360]
    assert due(Schedule(every=90, phase=7), 100, 300) == [187, 277]


def test_the_start_is_exclusive_and_the_end_is_inclusive() -> None:
    assert due(Schedule(every=10), 10, 30) == [20, 30]
    assert due(Schedule(every=10, start=20, end=30), 0, 100) == [20, 30]
    assert due(Schedule(at=42), 41.9, 42) == [42]
    assert due(Schedule(at=42), 42, 100) == []
    assert due(Schedule(), 0, 1e6) == []


def test_six_fields_begin_with_seconds() -> None:
    assert due(Schedule(cron="*/20 * * * * *"), 0, 60) == [20, 40, 60]
    assert due(Schedule(cron="5 1 0 * * *"), 0, 86_400) == [65]


@pytest.mark.parametrize(
    ("schedule", "day", "wall"),
    [
        (Schedule(cron="30 3 * * *", zone="Europe/Riga"), "2026-03-29", ["04:00+0300"]),
        (Schedule(cron="15,45 3 * * *", zone="Europe/Riga"), "2026-03-29", ["04:00+0300"]),
        (Schedule(cron="30 3 * * *", zone="Europe/Riga", gap="skip"), "2026-03-29", []),
        (Schedule(cron="30 3 * * *", zone="Europe/Riga"), "2026-10-25", ["03:30+0300"]),
        (
            Schedule(cron="30 3 * * *", zone="Europe/Riga", overlap="both"),
            "2026-10-25",
            ["03:30+0300", "03:30+0200"],
        ),
        (
            Schedule(cron="30 3 * * *", zone="Europe/Riga", overlap="second"),
            "2026-10-25",
            ["03:30+0200"],
        ),
        (Schedule(cron="10 2 * * *", zone="Australia/Lord_Howe"), "2026-10-04", ["02:30+1100"]),
        (Schedule(cron="0 0 * * *", zone="Africa/Cairo"), "2026-04-24", ["01:00+0300"]),
        (
            Schedule(cron="*/30 3 * * *", zone="Europe/Riga"),
            "2026-10-25",
            ["03:00+0300", "03:30+0300", "03:00+0200", "03:30+0200"],
        ),
        (Schedule(cron="*/30 3 * * *", zone="Europe/Riga"), "2026-03-29", []),
    ],
)
def test_a_schedule_has_the_expected_times_on_days_with_a_clock_change(
    schedule: Schedule, day: str, wall: list[str]
) -> None:
    assert on_the_wall(schedule, day) == wall


def test_a_run_of_a_skipped_day_is_due_on_the_next_day() -> None:
    schedule = Schedule(cron="0 9 30 12 *", zone="Pacific/Apia")
    found = due(schedule, at("2011-12-01T00:00Z"), at("2012-01-31T00:00Z"))
    assert found == [at("2011-12-31T00:00+14:00")]


field = st.sampled_from
expressions = st.builds(
    "{} {} {} {} {}".format,
    field(["*", "0", "*/7", "15,45", "10-20/5", "59"]),
    field(["*", "0", "2", "3", "1-4", "*/6", "0,23"]),
    field(["*", "1", "*/2", "L", "28-31"]),
    field(["*", "3", "10", "3,10", "*/4"]),
    field(["*", "mon", "0", "6-7", "5L", "1#2"]),
)


@settings(deadline=None, max_examples=60)
@given(
    expressions,
    st.sampled_from(AGREED_ZONES),
    st.integers(int(at("2024-01-01T00:00Z")), int(at("2027-01-01T00:00Z"))),
)
def test_the_oracle_agrees_with_cronsim(expression: str, zone: str, second: int) -> None:
    begin = datetime.fromtimestamp(second, UTC)
    end = begin + timedelta(days=20)
    theirs = []
    for found in CronSim(expression, begin.astimezone(ZoneInfo(zone))):
        if found > end:
            break
        theirs.append(found.timestamp())
    ours = due(Schedule(cron=expression, zone=zone), begin.timestamp(), end.timestamp())
    assert ours == sorted(set(theirs))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 500_000), min_size=2, max_size=5).map(sorted), expressions)
def test_times_of_adjacent_ranges_are_those_of_the_whole_range(
    cuts: list[int], expression: str
) -> None:
    schedule = Schedule(cron=expression, zone="America/New_York")
    base = at("2026-10-30T00:00Z")
    parts = [
        instant
        for low, high in pairwise(cuts)
        for instant in due(schedule, base + low, base + high)
    ]
    assert parts == due(schedule, base + cuts[0], base + cuts[-1])


def test_an_instant_is_due_or_not() -> None:
    schedule = Schedule(cron="30 2 * * *", zone="Europe/Riga")
    assert is_due(schedule, at("2026-06-01T02:30+03:00"))
    assert not is_due(schedule, at("2026-06-01T02:30+02:00"))


@pytest.mark.parametrize("expression", ["H 2 * * *", "0 0 15W * *", "CRON_TZ=UTC 0 0 * * *"])
def test_an_unsupported_expression_is_rejected(expression: str) -> None:
    with pytest.raises(Unjudgeable):
        due(Schedule(cron=expression), 0, 100)
