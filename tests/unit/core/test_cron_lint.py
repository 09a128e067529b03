"""Lint names rejected expressions, and valid ones that surprise people."""

from datetime import UTC, datetime

import pytest

from schedd.core.schedule.timetable.lint import LintLevel, lint

NOW = datetime(2026, 11, 22, tzinfo=UTC)


def rules(expression: str, zone: str = "UTC") -> dict[str, str]:
    return {one.rule: f"{one.problem} | {one.hint}" for one in lint(expression, zone, after=NOW)}


@pytest.mark.parametrize(
    "expression",
    [
        *("30 3 * * *", "H * * * *", "*/5 * * * *", "*/15 9-17 * * mon-fri", "17 4 L * *"),
        *("0 30 2 * * *", "@every 90s", "H H 1 * *", "5 0-30/10 * * * *", "3,33 * * * *"),
        *("0 0 12 * * *", "0 */5 * * * *", "0 0 12 ? * MON"),
    ],
)
def test_plain_schedules_have_no_findings(expression):
    assert rules(expression) == {}


@pytest.mark.parametrize(
    ("expression", "rule", "message"),
    [
        ("0 6 13 * 5", "either-day", "only one of them"),
        ("5 6 */5 * 1", "both-days", "must match both"),
        ("*/7 * * * *", "uneven-step", "starts again after 56, so the last step is 4, not 7"),
        ("H/7 * * * *", "uneven-step", "@every 7m"),
        ("3 */5 * * *", "uneven-step", "starts again after 20, so the last step is 4, not 5"),
        ("*/90 * * * *", "step-past-range", "@every 90m"),
        ("0-59/45 * * * *", "uneven-step", "last step is 15"),
        ("*/1 * * * *", "step-of-one", "write *"),
        ("5 1 31 * *", "short-months", "February, April, June, September, November"),
        ("5 1 30 2,3 *", "short-months", "run in February: day 30"),
        ("5 1 29 2 *", "rare", "next on 2028-02-29"),
        ("0 * * * *", "herd", "H * * * *"),
        ("@daily", "herd", "H 0 * * *"),
        (
            "* 2 * * *",
            "each-minute",
            "write 0 2 * * * (every day at 02:00; other fire times: not every min",
        ),
        ("0 0 12 ? * 2", "quartz-weekday", "on Tuesday at 12:00 | if you mean this, write 0 12"),
        ("0 0 9 ? * 2-6", "quartz-weekday", "write 0 9 * * 1-5 (Monday to Friday at 09:00)"),
        ("30 2 * * * *", "seconds-first", "the last * looks like a year | if you mean this, wri"),
        ("0 9 1-7 * 1", "either-day", "write 0 9 * * 1#1 (on the first Monday of every month"),
        ("0 9 8-21 * mon,fri", "either-day", "write 0 9 * * 1#2,1#3,5#2,5#3 ("),
        ("*/45 9-17 * * 1-5", "uneven-step", "list the values that you mean"),
        ("CRON_TZ=Etc/GMT+2 5 4 * * *", "zone-offset", "for UTC+2 write Etc/GMT-2"),
        ("CRON_TZ=MST 5 4 * * *", "zone-abbreviation", "America/Denver (other offsets: UTC−7 and"),
        ("0 12 * * ? *", "year-last", "write 0 12 * * * (every day at 12:00)"),
        ("*/5 * * * * *", "seconds-first", "every 5 seconds"),
        ("CRON_TZ=EST 5 4 * * *", "zone-abbreviation", "America/New_York"),
    ],
)
def test_a_surprising_expression_is_a_warning_with_a_rewrite(expression, rule, message):
    assert message in rules(expression)[rule]
    assert {one.level for one in lint(expression, after=NOW)} == {LintLevel.WARNING}


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("@reboot", "create the job with on_demand"),
        ("0 0 1 1 * 2027", "write 0 0 1 1 * with start: 2027-01-01"),
        ("0 22-2 * * *", "write 0 22-23,0-2 * * *"),
        ("0~30 * * * *", "write H(0-59) instead of 0~59"),
        ("0 0 31 2 *", "never matches"),
        ("CRON_TZ=PST 5 4 * * *", "write America/Los_Angeles"),
        ("61 * * * *", "61 is out of range"),
    ],
)
def test_a_rejected_expression_is_one_error_with_the_rewrite(expression, message):
    (found,) = lint(expression, after=NOW)
    assert found.level is LintLevel.ERROR
    assert message in f"{found.problem} {found.hint}"


def test_six_fields_with_a_final_star_get_a_hint_about_the_year():
    (found,) = lint("30 2 * * * *", after=NOW)
    assert found.level is LintLevel.WARNING
    assert found.problem.startswith("in six fields, the first is seconds: the job runs at ")
    assert found.problem.endswith("the last * looks like a year")
    assert found.hint == "if you mean this, write 30 2 * * * (every day at 02:30)"


def test_a_fixed_time_in_a_clock_change_is_explained():
    found = [one.problem for one in lint("30 2 * * *", "Europe/Berlin", after=NOW)]
    assert len(found) == 2
    assert "does not exist" in found[0]
    assert "runs once, at 03:00+02:00" in found[0]
    assert "comes twice" in found[1]
    assert "first pass" in found[1]
    assert rules("*/30 * * * *", "Europe/Berlin") == {}  # follows elapsed time: no finding


def test_a_stepped_time_in_a_gap_is_reported_as_without_a_run_that_day():
    spring, autumn = lint("*/30 2 * * *", "Europe/Berlin", after=NOW)
    assert "these times don't run, so no run on that day" in spring.problem
    assert "write 0,30 2 * * *" in spring.hint
    assert "other fire times: only on days of a clock change" in spring.hint
    assert "runs in both passes" in autumn.problem
    assert rules("*/30 * * * *", "Europe/Berlin") == {}
    (hours, *_) = lint("0 */2 * * *", "Europe/Berlin", after=NOW)
    assert "nothing runs" not in hours.problem


def test_advice_for_a_crontab_can_be_read_by_cron():
    (herd,) = lint("0 * * * *", after=NOW, seed="default/ping", crontab=True)
    assert herd.hint.startswith("to spread the load, write 43 * * * * (")


def test_an_even_interval_and_a_single_minute_are_offered_with_their_difference():
    found = [
        one for text in ("*/7 * * * *", "* 2 * * *", "0 * * * *") for one in lint(text, after=NOW)
    ]
    assert all(rewrite.difference for one in found for rewrite in one.rewrites)
    assert len(found) == 3
