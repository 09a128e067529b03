"""The herd of a crontab is found, named and spread; ten thousand schedules take seconds."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from schedd.core.schedule.compiled_schedule import CronSchedule, EverySchedule
from schedd.core.schedule.timetable.crontab import read_crontab
from schedd.core.schedule.timetable.flatten import flatten, spread
from schedd.core.schedule.timetable.load import TimetableEntry, collide, forecast, rows_of
from schedd.core.schedule.timetable.minutes import grid_over

START = datetime(2026, 11, 23, tzinfo=UTC)
WEEK = grid_over(START, timedelta(days=7))
SERVER = Path(__file__).parent / "crontabs" / "server"


def entry(name: str, *expressions: str) -> TimetableEntry:
    return TimetableEntry(name, f"test:{name}", CronSchedule(expressions))


def rows(*entries: TimetableEntry):
    found, wrong = rows_of(entries, WEEK)
    assert not wrong
    return found


def test_a_forecast_counts_runs_and_names_the_jobs_of_the_hottest_minute():
    found = forecast(
        rows(
            entry("hourly", "0 * * * *"), entry("nightly", "0 2 * * *"), entry("odd", "7 * * * *")
        ),
        WEEK,
        top=2,
    )
    assert found.total == 168 + 7 + 168
    first, second = found.hottest
    assert (first.at, first.starts, first.alike) == (START + timedelta(hours=2), 2, 7)
    assert [one.name for one, _ in first.entries] == ["hourly", "nightly"]
    assert second.starts == 1


def test_any_number_of_equal_minutes_is_counted():
    found = forecast(rows(entry("each", "* * * * *"), entry("night", "0 2 * * *")), WEEK, top=5)
    assert [(hot.starts, hot.alike) for hot in found.hottest] == [(2, 7), (1, 7 * 1440 - 7)]
    assert found.hottest[1].at == START


def test_seconds_count_for_each_run_in_their_minute():
    found = forecast(rows(entry("fast", "*/10 5 * * * *"), entry("slow", "5 * * * *")), WEEK)
    assert found.peak == 7
    assert [(one.name, starts) for one, starts in found.hottest[0].entries] == [
        ("fast", 6),
        ("slow", 1),
    ]


def test_collisions_are_of_the_same_second():
    same = rows(entry("a", "0 * * * *"), entry("b", "0,30 0 * * * *"), entry("c", "30 0 3 * * *"))
    found = collide(same, WEEK, allowed=1, limit=2)
    assert (found.instants, found.most) == (168 + 7, 2)
    assert found.worst[0].at == START
    assert [one.name for one in found.worst[0].entries] == ["a", "b"]
    assert collide(same, WEEK, allowed=2).instants == 0


def test_the_herd_of_a_real_crontab_is_flattened():
    entries = [
        TimetableEntry(
            line.name, str(line.number), CronSchedule((line.schedule,), line.zone or "UTC")
        )
        for line in read_crontab(SERVER.read_text()).lines
    ]
    found, wrong = rows_of(entries, WEEK)
    assert [one.entry.name for one in wrong] == ["warm-caches"]  # @reboot
    before = forecast(found, WEEK)
    flat = flatten(found, WEEK)
    assert flat.peak_before == before.peak == 40
    assert flat.peak_after <= 8
    moved = {move.entry.name: move for move in flat.moves}
    assert moved["console-cart-expire"].after == "H * * * *"
    assert "console-schedule-run" not in moved, "each minute: there is nothing to move"

    # The forecast is reached, with H and with the numbers that any cron reads.
    for written in ("after", "fixed"):
        changed = [
            entry(one.name, getattr(moved[one.name], written))
            if one.name in moved
            else TimetableEntry(one.name, "", one.schedule)
            for one in (row.entry for row in found)
        ]
        assert forecast(rows(*changed), WEEK).peak == flat.peak_after


def test_a_job_outside_of_the_herd_keeps_its_time():
    herd = [entry(f"h{n}", "0 * * * *") for n in range(30)]
    flat = flatten(rows(*herd, entry("payroll", "0 9 25 * *")), WEEK)
    assert "payroll" not in {move.entry.name for move in flat.moves}


def test_a_spread_crontab_is_unchanged():
    assert flatten(rows(entry("a", "3 * * * *"), entry("b", "H * * * *")), WEEK) is None
    assert flatten([], WEEK) is None


def test_intervals_of_the_herd_are_given_a_phase():
    herd = [TimetableEntry(f"e{n}", "", EverySchedule(timedelta(hours=1))) for n in range(20)]
    flat = flatten(rows(*herd), WEEK)
    assert flat.peak_before == 20
    assert flat.peak_after <= 4
    assert {move.number for move in flat.moves} == {-1}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("0 * * * *", "H * * * *"),
        ("@hourly", "H * * * *"),
        ("CRON_TZ=Europe/Riga @daily", "CRON_TZ=Europe/Riga H 0 * * *"),
        ("0 0 * * * *", "0 H * * * *"),
        ("*/15 * * * *", "H/15 * * * *"),
        ("0,30 8 * * mon", "H/30 8 * * mon"),
        ("0-59/20 * * * *", "H/20 * * * *"),
        ("* * * * *", None),
        ("*/7 * * * *", None),
        ("0,10 * * * *", None),
        ("H * * * *", None),
        ("@every 1h", None),
        ("61 * * * *", None),
    ],
)
def test_h_replaces_only_the_minute(before, after):
    assert spread(before) == after


@pytest.mark.parametrize(
    ("expression", "zone"),
    [
        ("*/15 2 * * *", "Europe/Berlin"),  # it follows elapsed time, and H/15 doesn't
        ("*/15 2 * * *", "UTC"),  # the zone of a crontab is that of its host
        ("0,30 2 * * *", "Australia/Lord_Howe"),  # half of it falls into a gap
    ],
)
def test_an_h_that_would_change_a_night_with_a_clock_change_isnt_suggested(expression, zone):
    assert spread(expression, zone, "default/job") is None


@pytest.mark.parametrize(
    ("expression", "zone", "spread_out"),
    [
        ("0 2 * * *", "Europe/Berlin", "H 2 * * *"),  # it falls into the gap
        ("0 3 * * *", "Europe/Berlin", "H 3 * * *"),  # the gap ends there
        ("0 1 * * *", "America/New_York", "H 1 * * *"),
        ("0 0 * * *", "Africa/Cairo", "H 0 * * *"),  # clocks go forward at midnight
        ("0 23 * * *", "Africa/Cairo", "H 23 * * *"),  # and back at midnight
        ("0 0 * * *", "America/Havana", "H 0 * * *"),
    ],
)
def test_a_nightly_job_gets_an_h_that_changes_no_night(expression, zone, spread_out):
    assert spread(expression, zone, "default/job") == spread_out


@pytest.mark.slow
def test_ten_thousand_schedules_over_a_week_take_seconds():
    kinds = ("0 * * * *", "0 {h} * * *", "*/5 * * * *", "{m} {h} * * mon-fri", "H * * * *")
    entries = [
        entry(f"job-{n}", kinds[n % len(kinds)].format(h=n % 24, m=n % 60)) for n in range(10_000)
    ]
    began = time.process_time()
    found = forecast(rows(*entries), WEEK)
    assert time.process_time() - began < 10
    assert found.peak > 4000
