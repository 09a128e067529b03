"""Calendars by example: exclusions, invalid rules, and runs moved to other days."""

from datetime import UTC, datetime, timedelta
from time import process_time

import pytest

from schedd.core.ids import Id
from schedd.core.jobs.definition import CatchUp, CatchUpPolicy
from schedd.core.schedule import compiled_schedule
from schedd.core.schedule.calendars.exclusion import closed
from schedd.core.schedule.calendars.rules import (
    CalendarVersion,
    Exclude,
    Roll,
    Rules,
    WrongRules,
    check_expression,
    rules,
)
from schedd.core.schedule.compiled_schedule import (
    AtSchedule,
    CompiledSchedule,
    CronSchedule,
    EverySchedule,
    Occurrence,
    Schedule,
    ScheduleBounds,
)
from schedd.core.schedule.cron import CronError, DstGap, DstPolicy
from schedd.core.timers import fire_steps
from schedd.core.timers.cluster_pauses import Pause, Pauses
from schedd.core.timers.fire_plan import MergedTimes, PlannedRun

HOUR = timedelta(hours=1)
WEEKEND = ["sat", "sun"]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def compiled(
    when: str | Schedule, *calendars: Rules, cron: tuple[str, ...] = (), zone: str = "UTC"
) -> CompiledSchedule:
    if isinstance(when, str):
        when = CronSchedule((when,), zone)
    named = tuple(CalendarVersion(f"c{n}", n + 1, each) for n, each in enumerate(calendars))
    return compiled_schedule.compile(
        when, "", Id.from_int(1), ScheduleBounds(), Exclude(named, cron, zone)
    )


def nexts(of: CompiledSchedule, after: str, count: int) -> list[str]:
    found = of.instants_between(at(after), at(after) + timedelta(days=400), count)
    return [f"{one.nominal:%m-%d %H:%M}" for one in found]


# -- What a calendar says --


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ({}, "dates: the calendar excludes nothing"),
        ({"dates": ["2026-02-30"]}, r"dates\[0\]: '2026-02-30' isn't a valid date"),
        ({"dates": ["2026-01-01", "25.12."]}, r"dates\[1\]: '25.12.' isn't a valid date"),
        ({"dates": ["13-01"]}, r"dates\[0\]: '13-01' isn't a valid date"),
        ({"dates": ["9999-01-01"]}, "a year from 1970 to 8999"),
        ({"weekdays": ["s"]}, r"weekdays\[0\]: 's' isn't a valid day of the week"),
        ({"weekdays": [*WEEKEND, "mon", "tue", "wed", "thu", "fri"]}, "exclude every day"),
        (
            {"ranges": [("2026-12-24", "2026-12-01")]},
            "the end 2026-12-01 is before the start 2026-12-24",
        ),
        ({"ranges": [("12-24", "12-26")]}, "'12-24' isn't a valid date"),
        (
            {"ranges": [("2026-01-01", "2046-01-01")]},
            "give at most 3,660 days; to end a job for good, set `end` of the job",
        ),
        ({"cron": ["CRON_TZ=UTC * 9 * * *"]}, "has its own time zone"),
        ({"cron": ["0 0 31 2 *"]}, "never matches"),
        ({"dates": ["01-01"], "zone": "Europe/Brelin"}, "did you mean Europe/Berlin"),
        ({"dates": ["01-01"] * 5001}, "has 5,001 entries"),
    ],
)
def test_an_invalid_calendar_is_rejected(said, fault):
    with pytest.raises(WrongRules, match=fault):
        rules(**said)


def test_all_problems_are_reported_at_once():
    with pytest.raises(WrongRules) as wrong:
        rules(dates=["x", "01-01", "y"], weekdays=["z"], cron=["* * *"])
    fields = [fault.field for fault in wrong.value.faults]
    assert fields == ["dates[0]", "dates[2]", "weekdays[0]", "cron[0]"]


def test_days_are_read_in_any_spelling_and_adjacent_ranges_are_merged():
    found = rules(
        weekdays=["Sunday", "SAT"],
        ranges=[("2026-01-05", "2026-01-07"), ("2026-01-01", "2026-01-04")],
    )
    assert found.weekdays == 1 << 0 | 1 << 6
    assert len(found.ranges) == 1
    assert found.ranges[0][1] - found.ranges[0][0] == 6


@pytest.mark.parametrize("text", ["H 9 * * *", "@every 90s", "61 * * * *", "CRON_TZ=UTC 0 0 * * *"])
def test_an_expression_that_matches_no_time_is_rejected(text):
    with pytest.raises(CronError):
        check_expression(text)


# -- What is excluded --


def test_five_fields_exclude_whole_minutes_and_six_the_second():
    by_minute, by_second = (
        compiled("*/20 * * * * *", cron=("30 9 * * *",)),
        compiled("*/20 * * * * *", cron=("20 30 9 * * *",)),
    )
    after, until = at("2026-05-04T09:29:50"), at("2026-05-04T09:31:00")
    found = [f"{one.nominal:%M:%S}" for one in by_minute.instants_between(after, until, 9)]
    assert found == ["31:00"]
    found = [f"{one.nominal:%M:%S}" for one in by_second.instants_between(after, until, 9)]
    assert found == ["30:00", "30:40", "31:00"]


def test_a_date_without_a_year_recurs_yearly_and_29_february_in_leap_years():
    of = compiled("0 9 * * *", rules(dates=["02-29", "12-25"]))
    assert nexts(of, "2028-02-28T10:00", 1) == ["03-01 09:00"]
    assert nexts(of, "2027-12-24T10:00", 1) == ["12-26 09:00"]
    assert nexts(of, "2031-12-24T10:00", 1) == ["12-26 09:00"]
    # three 25ths of December, and one 29th of February
    assert of.count(at("2026-01-01T00:00"), at("2029-01-01T00:00")) == 3 * 365 + 1 - 4


def test_days_are_in_the_zone_of_the_calendar_or_of_the_job():
    new_year = rules(dates=["2026-01-01"])
    tokyo = rules(dates=["2026-01-01"], zone="Asia/Tokyo")
    berlin = compiled("0 20 * * *", new_year, zone="Europe/Berlin")
    assert nexts(berlin, "2025-12-31T00:00", 2) == ["12-31 19:00", "01-02 19:00"]
    abroad = compiled("0 20 * * *", tokyo, zone="Europe/Berlin")
    assert nexts(abroad, "2025-12-31T00:00", 1) == ["01-01 19:00"]


def test_exclusions_apply_to_intervals_and_to_fractions_of_a_second():
    of = compiled(EverySchedule(timedelta(milliseconds=1500)), cron=("0 0 9 * * *",))
    after = at("2026-05-04T08:59:59")
    found = of.instants_between(after, after + timedelta(seconds=4), 9)
    assert [f"{one.nominal:%S.%f}"[:4] for one in found] == ["01.5", "03.0"]


def test_the_first_calendar_that_excludes_a_time_is_named():
    of = compiled("0 9 * * *", rules(dates=["2026-05-04"]), rules(weekdays=["mon", "tue"]))
    assert of.excluded_by(at("2026-05-04T09:00")) == "calendar c0 v1"
    assert of.excluded_by(at("2026-05-05T09:00")) == "calendar c1 v2"
    assert of.excluded_by(at("2026-05-06T09:00")) == ""


def test_the_days_of_a_calendar_are_computed_once_for_all_jobs():
    said = rules(dates=["2026-05-04"], weekdays=WEEKEND)
    again = rules(dates=["2026-05-04"], weekdays=WEEKEND)
    first, second = compiled("0 9 * * *", said), compiled("17 * * * *", again)
    assert first.exclusion is not None
    assert second.exclusion is not None
    assert first.exclusion.closures[0].time is second.exclusion.closures[0].time
    assert closed(said, "UTC") is closed(again, "UTC")


def test_a_fully_excluded_schedule_has_no_next_time_and_says_so_soon():
    of = compiled("0 9 * * *", cron=("* 9 * * *",))
    assert of.next_after(at("2026-05-04T00:00")) is None
    assert of.excludes_all_after(at("2026-05-04T00:00"))
    assert not compiled("0 9 * * *").excludes_all_after(at("2026-05-04T00:00"))


# -- Rolling --


@pytest.mark.parametrize(
    ("roll", "expected"),
    [
        (Roll.NONE, ["05-15 09:00", "07-15 09:00"]),
        (Roll.NEXT, ["05-15 09:00", "06-17 09:00"]),
        (Roll.PREVIOUS, ["05-15 09:00", "06-12 09:00"]),
    ],
)
def test_a_run_on_an_excluded_day_moves_to_the_nearest_open_day(roll, expected):
    # 13 and 14 June 2026 are a weekend, 15 and 16 are excluded by their dates
    off = rules(dates=["2026-06-15", "2026-06-16"], weekdays=WEEKEND, roll=roll)
    assert nexts(compiled("0 9 15 * *", off), "2026-05-02T00:00", 2) == expected


def test_runs_moved_to_the_same_time_are_one_run():
    off = rules(weekdays=WEEKEND, roll=Roll.NEXT)
    assert nexts(compiled("0 9 * * sat,sun", off), "2026-05-01T00:00", 2) == [
        "05-04 09:00",
        "05-11 09:00",
    ]
    daily = compiled("0 9 * * *", off)
    assert nexts(daily, "2026-05-01T10:00", 2) == ["05-04 09:00", "05-05 09:00"]
    assert daily.count(at("2026-05-01T10:00"), at("2026-05-05T10:00")) == 2


def test_a_run_without_an_open_day_within_a_month_does_not_run():
    off = rules(ranges=[("2026-06-01", "2026-07-01")], roll=Roll.NEXT)
    assert nexts(compiled("0 9 1 * *", off), "2026-05-02T00:00", 2) == [
        "07-02 09:00",
        "08-01 09:00",
    ]
    off = rules(ranges=[("2026-06-01", "2026-07-02")], roll=Roll.NEXT)
    # 1 July still finds the 3rd; 1 June doesn't
    found = compiled("0 9 1 6 *", off).next_after(at("2026-05-02T00:00"))
    assert found is not None
    assert found.nominal == at("2027-06-01T09:00")


def test_an_interval_of_elapsed_time_is_not_moved():
    off = rules(weekdays=WEEKEND, roll=Roll.NEXT)
    assert nexts(compiled("*/30 9 * * sat", off), "2026-05-01T00:00", 1) == []
    hourly = compiled(EverySchedule(HOUR, timedelta(minutes=7)), off)
    assert nexts(hourly, "2026-05-01T23:30", 1) == ["05-04 00:07"]


def test_the_local_time_is_kept_over_a_clock_change():
    off = rules(dates=["2026-03-28"], roll=Roll.NEXT)
    berlin = compiled("30 2 28 3 *", off, zone="Europe/Berlin")
    assert nexts(berlin, "2026-03-01T00:00", 1) == ["03-29 01:00"], "02:30 falls into the gap"
    skips = CronSchedule(("30 2 28 3 *",), "Europe/Berlin", DstPolicy(gap=DstGap.SKIP))
    of = compiled(skips, off, zone="Europe/Berlin")
    assert nexts(of, "2026-03-01T00:00", 1) == ["03-30 00:30"], "the clock doesn't show it"


def test_a_single_time_is_moved_and_is_then_the_jobs_only_time():
    off = rules(weekdays=WEEKEND, roll=Roll.PREVIOUS)
    saturday = AtSchedule(at("2026-05-02T09:00:00.5"))
    of = compiled(saturday, off)
    assert of.first(at("2026-04-01T00:00")) == Occurrence(*[at("2026-05-01T09:00:00.5")] * 2)
    assert of.next_after(at("2026-05-01T09:00:00.5")) is None
    assert of.single == at("2026-05-02T09:00:00.5")
    kept = compiled(saturday, rules(weekdays=WEEKEND))
    assert kept.next_after(at("2026-04-01T00:00")) is None
    assert kept.following(at("2026-04-01T00:00")) == Occurrence(*[saturday.instant] * 2)


# -- One step of a timer --


def stepped(of: CompiledSchedule, since: str, now: str, policy: CatchUp) -> fire_steps.FirePlan:
    timer = of.following(at(since))
    assert timer is not None
    return fire_steps.plan(of, policy, timer.nominal, timer.due, at(now))


def row_of(times: MergedTimes) -> tuple[str, str, int]:
    reason = times.reason.value if times.reason else ""
    return f"{times.first:%d %H:%M}", reason or times.state.value, times.count


def test_the_newest_open_time_coalesces_older_ones_across_excluded_ones():
    of = compiled("*/10 * * * *", cron=("20-30 * * * *",))
    plan = stepped(of, "2026-05-04T00:00", "2026-05-04T02:25", CatchUp(window=2 * HOUR))
    assert [row_of(times) for times in plan.merged] == [
        ("04 00:10", "WINDOW", 1),
        ("04 00:20", "CALENDAR", 2),
        ("04 00:40", "COALESCED", 4),
        ("04 01:20", "CALENDAR", 2),
        ("04 01:40", "COALESCED", 3),
        ("04 02:20", "CALENDAR", 1),
    ]
    assert plan.fires == (PlannedRun(at("2026-05-04T02:10"), at("2026-05-04T02:10"), late=True),)
    assert {times.into for times in plan.merged if times.into} == {at("2026-05-04T02:10")}
    assert plan.next == Occurrence(at("2026-05-04T02:30"), at("2026-05-04T02:30"))


def test_each_row_names_its_calendar():
    of = compiled("0 * * * *", rules(dates=["2026-05-04"]), rules(weekdays=["mon", "tue"]))
    plan = stepped(of, "2026-05-03T23:30", "2026-05-06T00:00", CatchUp())
    assert [(row_of(times), times.excluded_by) for times in plan.merged] == [
        (("04 00:00", "CALENDAR", 24), "calendar c0 v1"),
        (("05 00:00", "CALENDAR", 24), "calendar c1 v2"),
    ]
    assert [fire.nominal for fire in plan.fires] == [at("2026-05-06T00:00")]


def test_catch_up_all_runs_only_the_open_times():
    of = compiled("*/10 * * * *", cron=("20-30 * * * *",))
    policy = CatchUp(CatchUpPolicy.ALL, 9 * HOUR)
    plan = stepped(of, "2026-05-04T00:00", "2026-05-04T01:05", policy)
    assert [f"{fire.nominal:%H:%M}" for fire in plan.fires] == ["00:10", "00:40", "00:50", "01:00"]
    assert [row_of(times) for times in plan.merged] == [("04 00:20", "CALENDAR", 2)]


@pytest.mark.slow
def test_a_step_through_very_many_borders_ends_early_and_continues_there():
    of = compiled("* * * * *", cron=("*/2 * * * *",))
    timer = of.following(at("2026-05-04T00:00"))
    rows = looks = 0
    while timer is not None and timer.due <= at("2026-05-07T00:00"):
        plan = fire_steps.plan(of, CatchUp(), timer.nominal, timer.due, at("2026-05-07T00:00"))
        rows += sum(times.count for times in plan.merged) + len(plan.fires)
        timer, looks = plan.next, looks + 1
    assert rows == 3 * 1440
    assert looks > 3


def test_an_excluded_time_within_a_cluster_pause_is_recorded_once():
    of = compiled("0 * * * *", cron=("* 2 * * *",))
    paused = Pauses(2, (Pause(at("2026-05-04T00:30"), "me", ended=at("2026-05-04T03:30")),))
    timer = of.following(at("2026-05-04T00:30"))
    assert timer is not None
    now = at("2026-05-04T04:00")
    found = []
    while timer is not None and timer.due <= now:
        plan = fire_steps.plan(of, CatchUp(), timer.nominal, timer.due, now, paused)
        found += [row_of(times) for times in plan.merged]
        found += [(f"{fire.nominal:%d %H:%M}", "fires", 1) for fire in plan.fires]
        timer = plan.next
    assert sorted(found) == [
        ("04 01:00", "PAUSED", 1),
        ("04 02:00", "CALENDAR", 1),
        ("04 03:00", "PAUSED", 1),
        ("04 04:00", "fires", 1),
    ]


def test_two_expressions_that_exclude_each_second_are_evaluated_quickly() -> None:
    """Rows of 43,200 edges are merged once, not for each day of the search."""
    exclude = Exclude(cron=("*/2 * * * * *", "1-59/2 * * * * *"), zone="UTC")
    each = CronSchedule(("* * * * * *",), "UTC", DstPolicy())
    compiled = compiled_schedule.compile(
        each, "default/j", Id.from_int(1), ScheduleBounds(), exclude
    )
    began = process_time()
    assert compiled.next_after(at("2026-05-04T09:00")) is None
    assert process_time() - began < 1.0


def alternating_calendars(when: str) -> tuple[Rules, Rules]:
    """Return two calendars that exclude the seconds of this time in turns."""
    return Rules(cron=(f"*/2 {when}",)), Rules(cron=(f"1-59/2 {when}",))


EACH_SECOND = EverySchedule(timedelta(seconds=1))
EVERY_5_S = CronSchedule(("*/5 * * * * *",), "UTC")
BERLIN_5_S = CronSchedule(("*/5 * * * * *",), "Europe/Berlin")
MINUTES = CronSchedule(("* * * * *",), "UTC")
ALL_BUT_DECEMBER = alternating_calendars("* * 1-11 *")


@pytest.mark.parametrize(
    ("when", "exclude", "after", "runs"),
    [
        (
            EACH_SECOND,
            alternating_calendars("0-49 * * * *"),
            "2026-05-04T09:00",
            "2026-05-04T09:50",
        ),
        (
            EACH_SECOND,
            alternating_calendars("* 0-17,19-23 * * *"),
            "2026-05-04T19:00",
            "2026-05-05T18:00",
        ),
        (MINUTES, ALL_BUT_DECEMBER, "2026-01-01T00:00", "2026-12-01T00:00"),
        (EVERY_5_S, ALL_BUT_DECEMBER, "2026-12-31T23:59:58", "2027-12-01T00:00"),
        (EVERY_5_S, ("*/5 * * * * mon-fri",), "2026-05-04T00:00", "2026-05-09T00:00"),
        (BERLIN_5_S, ("*/5 * * * * mon-fri",), "2026-10-25T23:00", "2026-10-30T23:00"),
        (BERLIN_5_S, ("*/5 * * * * sun",), "2026-10-24T22:00", "2026-10-25T23:00"),
        (
            EverySchedule(timedelta(seconds=7)),
            alternating_calendars("0-58 * * * *"),
            "2026-05-04T00:00",
            None,
        ),
        (
            EverySchedule(timedelta(milliseconds=1500)),
            alternating_calendars("0-58 * * * *"),
            "2026-05-04",
            None,
        ),
        (
            CronSchedule(("0 * * * *",), "UTC"),
            alternating_calendars("0-49 * * * *"),
            "2026-05-04",
            "never",
        ),
        (EACH_SECOND, alternating_calendars("* * * * *"), "2026-05-04T09:00", "never"),
    ],
)
def test_the_next_run_is_found_quickly_among_long_and_fine_exclusions(
    when: Schedule, exclude: tuple[Rules, Rules] | tuple[str], after: str, runs: str | None
) -> None:
    """A search holds the row of its shard; without a result the schedule ends without a
    message.
    """
    zone = when.zone if isinstance(when, CronSchedule) else "UTC"
    cron = [each for each in exclude if isinstance(each, str)]
    calendars = [each for each in exclude if isinstance(each, Rules)]
    of = compiled(when, *calendars, cron=tuple(cron), zone=zone)
    began = process_time()
    found = of.next_after(at(after))
    timer = of.following(at(after))
    newest = of.newest(at(after) - timedelta(days=400), at(after))
    assert process_time() - began < 1.0
    if runs is None:  # in the last minute of an hour, whenever the interval meets it
        assert found is not None
        walk = of.whole.walk_after(at(after))
        assert found == next(one for one in walk if one.nominal.minute == 59)
    elif runs == "never":
        assert (found, newest) == (None, None)
    else:
        assert found is not None
        assert found.nominal == at(runs)
        assert timer is not None
        assert timer.due < found.due, "what is accounted for together ends before it"
    if newest is not None:
        assert not of.excludes(newest)
        assert of.next_after(newest) == found


def test_catch_up_over_two_alternating_calendars_is_quick() -> None:
    """Otherwise each owner in turn would lose its lease over the job."""
    of = compiled(EACH_SECOND, *alternating_calendars("* 0-17,19-23 * * *"))
    timer = of.following(at("2026-05-04T19:00"))
    assert timer is not None
    policy = CatchUp(CatchUpPolicy.ALL, timedelta(hours=9))
    began = process_time()
    now = at("2026-05-04T23:00")
    first = fire_steps.plan(of, policy, timer.nominal, timer.nominal, now)
    assert process_time() - began < 0.5
    assert first.merged
    assert first.next is not None
    assert first.next.nominal > timer.nominal


def test_a_rarely_rolling_calendar_is_searched_only_around_its_days() -> None:
    """Times that may move onto a day are computed one by one, which is slow."""
    seldom = rules(dates=["02-29"], roll=Roll.NEXT)
    first, tenth = Rules(cron=("* * 1 * *",)), rules(ranges=[("2026-10-15", "2030-10-15")])
    many = tuple(f"{','.join(map(str, range(n, 60, 12)))} 0-19 1 * *" for n in range(12))
    of = compiled(CronSchedule((*many, "0 0 15 10 *"), "UTC"), seldom, first, tenth)
    began = process_time()
    found = of.next_after(at("2026-10-16T00:00"))
    assert process_time() - began < 2.0
    assert found is not None
    assert found.nominal == at("2031-10-15T00:00")


def test_a_run_that_rolls_far_is_found_in_any_zone_of_its_calendar() -> None:
    away = rules(ranges=[("2026-05-04", "2026-06-02")], zone="Pacific/Kiritimati", roll=Roll.NEXT)
    of = compiled("0 3 4 5 *", away, zone="Pacific/Midway")
    assert nexts(of, "2026-05-01T00:00", 1) == ["06-02 14:00"]


def test_a_schedule_open_every_other_minute_is_walked_and_counted_quickly() -> None:
    """The range alternates thousands of times between open and closed."""
    of = compiled("* * * * *", cron=("*/2 * * * *",))
    began = process_time()
    first, last = at("2025-01-01T00:00"), at("2025-04-01T00:00")
    found = of.instants_between(first, last, 10_001)
    assert len(found) == 10_001
    assert found[-1].nominal == first + timedelta(minutes=20_001)
    assert of.count(first, last) == 90 * 24 * 30
    assert process_time() - began < 1.0


@pytest.mark.parametrize("cut", [timedelta(0), timedelta(milliseconds=250)])
def test_times_between_seconds_are_counted_on_their_side_of_a_cut(cut: timedelta) -> None:
    every = EverySchedule(timedelta(seconds=1.5), timedelta(seconds=0.25))
    of = compiled(every, cron=("*/10 * * * * *",))
    start = at("2026-03-01T00:00")
    for second in range(12):
        after, until = start + timedelta(seconds=second) + cut, start + timedelta(seconds=20) + cut
        there = of.instants_between(after, until, 100)
        assert of.count(after, until) == len(there)
