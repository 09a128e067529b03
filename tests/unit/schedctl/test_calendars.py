"""`schedctl calendar`, calendars in manifests, and what commands on jobs say of them."""

from datetime import UTC, datetime

import pytest

from schedproto.v1 import calendar_service_pb2 as calendars
from schedproto.v1 import job_pb2
from schedproto.v1 import job_service_pb2 as jobs
from support.scripted import Refusal

OFF = calendars.Calendar(
    name="off", version=3, dates=["12-24", "12-25"], weekdays=["sun"], jobs=2, updated_by="me"
)
MANIFEST = """
kind: calendar
name: off
dates: [12-25]
weekdays: [sat, sun]
ranges: [{from: 2026-12-24, to: 2027-01-02}]
cron: "* 22-23 * * *"
time_zone: Europe/Riga
roll: next
---
name: etl
cron: "0 2 * * *"
exclude: {calendars: [off], cron: ["* * 1 1 *"]}
on_demand: false
shell: {argv: ["true"]}
"""


def as_given(request: calendars.ApplyCalendarRequest) -> calendars.Calendar:
    calendar = calendars.Calendar()
    calendar.CopyFrom(request.calendar)
    calendar.version = 1
    return calendar


@pytest.fixture
def manifest(home):
    file = home / "m.yaml"
    file.write_text(MANIFEST)
    return str(file)


async def test_calendars_are_listed_with_their_exclusions_and_users(ctl, member):
    member.say("ListCalendars", calendars.ListCalendarsResponse(calendars=[OFF]))
    ended = await ctl("calendar", "list")
    assert ended.lines[0].split() == ["NAME", "VERSION", "EXCLUDES", "ROLL", "JOBS", "UPDATED"]
    assert "off" in ended.lines[1]
    assert "sun, 2 dates" in ended.lines[1]
    ended = await ctl("calendar", "list", "-o", "json")
    assert (ended.data[0]["version"], ended.data[0]["jobs"]) == (3, 2)


async def test_a_calendar_is_created_from_flags_after_a_check(ctl, member):
    member.say("ApplyCalendar", as_given)
    ended = await ctl(
        *("calendar", "apply", "off", "--date", "12-25", "--weekday", "sat", "--roll", "next"),
        *("--range", "2026-12-24..2027-01-02", "--range", "2026-05-01", "--tz", "Europe/Riga"),
        *("--cron", "* 22 * * *"),
    )
    assert ended.code == 0, ended.err
    checked, stored = member.received("ApplyCalendar")
    assert (checked.validate_only, stored.validate_only) == (True, False)
    sent = stored.calendar
    assert (sent.name, sent.namespace, sent.time_zone) == ("off", "default", "Europe/Riga")
    assert [(getattr(one, "from"), one.to) for one in sent.ranges] == [
        ("2026-12-24", "2027-01-02"),
        ("2026-05-01", "2026-05-01"),
    ]
    assert (list(sent.dates), list(sent.weekdays)) == (["12-25"], ["sat"])
    assert (list(sent.cron), sent.roll) == (["* 22 * * *"], calendars.ROLL_NEXT)


async def test_a_dry_run_stores_no_calendar(ctl, member):
    member.say("ApplyCalendar", as_given)
    ended = await ctl("calendar", "apply", "off", "--weekday", "sat", "--dry-run")
    assert "nothing was stored" in ended.err
    assert [one.validate_only for one in member.received("ApplyCalendar")] == [True]


@pytest.mark.parametrize(
    "words", [[], ["off", "-f", "m.yaml"], ["-f", "m.yaml", "--date", "12-25"]]
)
async def test_apply_takes_a_name_or_files(ctl, member, words):
    ended = await ctl("calendar", "apply", *words)
    assert ended.code == 2
    assert "either NAME with options, or -f FILE" in ended.err
    assert not member.received("ApplyCalendar")


async def test_deleting_a_calendar_in_use_is_refused_with_its_users(ctl, member):
    refusal = Refusal("FAILED_PRECONDITION", "calendar 'off' is used by etl, b", "CALENDAR_IN_USE")
    member.say("DeleteCalendar", refusal)
    ended = await ctl("calendar", "delete", "off", "--yes")
    assert ended.code == 5
    assert "is used by etl, b" in ended.err


async def test_apply_stores_calendars_before_the_jobs_that_name_them(ctl, member, manifest):
    member.say("GetCalendar", Refusal("NOT_FOUND", "there is no calendar 'off'"))
    member.say("ApplyCalendar", as_given)
    member.say("GetJob", Refusal("NOT_FOUND", "there is no job 'etl'"))
    member.say("CreateJob", lambda request: request.job)
    ended = await ctl("apply", "-f", manifest)
    assert ended.code == 0, ended.err
    assert ended.lines == ["calendar off v1 created", "job etl created"]
    [_, stored] = member.received("ApplyCalendar")
    assert stored.calendar.roll == calendars.ROLL_NEXT
    [asked, made] = member.received("CreateJob")
    assert (asked.validate_only, list(asked.job.exclude.calendars)) == (True, [])
    assert list(made.job.exclude.calendars) == ["off"]
    assert list(made.job.exclude.cron) == ["* * 1 1 *"]


async def test_a_calendar_file_with_a_job_in_it_is_for_apply(ctl, member, manifest):
    ended = await ctl("calendar", "apply", "-f", manifest)
    assert ended.code == 2
    assert "expected a calendar, found a job" in ended.err


async def test_a_job_is_created_and_patched_with_its_exclusions(ctl, member):
    member.say("CreateJob", lambda request: request.job)
    ended = await ctl(
        *("job", "create", "etl", "--every", "30s", "--exclude-calendar", "off"),
        *("--exclude-cron", "* 22 * * *", "--", "true"),
    )
    assert ended.code == 0, ended.err
    [sent] = member.received("CreateJob")
    assert sent.job.exclude == job_pb2.Exclude(calendars=["off"], cron=["* 22 * * *"])
    member.say("GetJob", sent.job)
    member.say("UpdateJob", lambda request: request.job)
    ended = await ctl("job", "patch", "etl", "--exclude-calendar", "")
    assert ended.code == 0, ended.err
    asked = member.received("UpdateJob")[0]
    assert list(asked.update_mask.paths) == ["exclude.calendars"]
    assert not asked.job.exclude.calendars
    ended = await ctl("job", "patch", "etl", "--exclude-cron", "* 23 * * *")
    assert ended.code == 0, ended.err
    asked = member.received("UpdateJob")[-1]
    assert list(asked.update_mask.paths) == ["exclude.cron"]
    assert list(asked.job.exclude.cron) == ["* 23 * * *"]


async def test_the_excluded_instants_of_a_job_are_shown_when_asked_for(ctl, member):
    instant = jobs.ListNextInstantsResponse.Instant(excluded_by="calendar off v3")
    instant.scheduled_at.FromDatetime(datetime(2026, 12, 25, tzinfo=UTC))
    instant.due_at.FromDatetime(datetime(2026, 12, 25, tzinfo=UTC))
    member.say("ListNextInstants", jobs.ListNextInstantsResponse(instants=[instant]))
    member.say("GetJob", job_pb2.Job(name="etl"))
    ended = await ctl("job", "next", "etl", "--excluded")
    assert ended.lines[0].split() == ["SCHEDULED", "DUE", "EXCLUDED", "BY"]
    assert "calendar off v3" in ended.lines[1]
    assert member.received("ListNextInstants")[0].excluded
    ended = await ctl("job", "next", "etl")
    assert "EXCLUDED" not in ended.lines[0]


def test_cron_explain_leaves_out_excluded_times_and_reports_that(offline, manifest):
    words = ("cron", "explain", "0 9 * * *", "--tz", "Europe/Riga", "--after")
    ended = offline(
        *words, "2026-12-23T00:00:00Z", "--next", "2", "--calendar", manifest, "-o", "json"
    )
    assert ended.data["next"] == ["2026-12-23T09:00:00+02:00", "2027-01-04T09:00:00+02:00"]
    assert ended.data["notes"][0] == "2026-12-24 09:00:00+02:00 is excluded by calendar off."
    assert "6 more are excluded." in ended.data["notes"]
    ended = offline(*words, "2026-12-23T00:00:00Z", "--next", "1", "--exclude-cron", "* * 23 12 *")
    assert ended.lines[1] == "  2026-12-24 09:00:00+02:00  Thu"


def test_cron_explain_reports_a_wrong_exclusion(offline, home):
    ended = offline("cron", "explain", "0 9 * * *", "--exclude-cron", "@every 5s")
    assert (ended.code, len(ended.err.splitlines())) == (2, 3)
    file = home / "wrong.yaml"
    file.write_text("kind: calendar\nname: x\ndates: [2026-02-30]\n")
    ended = offline("cron", "explain", "0 9 * * *", "--calendar", str(file))
    assert ended.code == 2
    assert "wrong.yaml:1: dates[0]: '2026-02-30' isn't a valid date" in ended.err
