"""Lint names what is refused, and what does as it says and surprises people."""

from datetime import UTC, datetime

import pytest

from schedd.core.timetable import Level, lint

NOW = datetime(2026, 11, 22, tzinfo=UTC)


def rules(expression: str, zone: str = "UTC") -> dict[str, str]:
    return {one.rule: f"{one.problem} | {one.hint}" for one in lint(expression, zone, after=NOW)}


@pytest.mark.parametrize(
    "expression",
    [
        *("30 3 * * *", "H * * * *", "*/5 * * * *", "*/15 9-17 * * mon-fri", "17 4 L * *"),
        *("0 30 2 * * *", "@every 90s", "H H 1 * *", "5 0-30/10 * * * *", "3,33 * * * *"),
    ],
)
def test_nothing_is_said_of_plain_schedules(expression):
    assert rules(expression) == {}


@pytest.mark.parametrize(
    ("expression", "rule", "told"),
    [
        ("0 6 13 * 5", "either-day", "either is enough"),
        ("5 6 */5 * 1", "both-days", "must match as well"),
        ("*/7 * * * *", "uneven-step", "begins anew after 56, so the last step is 4 and not 7"),
        ("H/7 * * * *", "uneven-step", "@every 7m"),
        ("3 */5 * * *", "uneven-step", "begins anew after 20, so the last step is 4 and not 5"),
        ("*/90 * * * *", "step-past-range", "@every 90m"),
        ("0-59/45 * * * *", "uneven-step", "last step is 15"),
        ("*/1 * * * *", "step-of-one", "write *"),
        ("5 1 31 * *", "short-months", "February, April, June, September, November"),
        ("5 1 30 2,3 *", "short-months", "February: nothing"),
        ("5 1 29 2 *", "rare", "next 2028-02-29"),
        ("0 * * * *", "herd", "H * * * *"),
        ("@daily", "herd", "H 0 * * *"),
        ("* 2 * * *", "each-minute", "for once write 0 2 * * *"),
        ("0 0 12 ? * 2", "quartz-weekday", "on Tuesday at 12:00"),
        ("0 12 * * ? *", "year-last", "leave the year out: 0 12 * * ?"),
        ("*/5 * * * * *", "seconds-first", "every 5 seconds"),
        ("CRON_TZ=EST 5 4 * * *", "zone-abbreviation", "America/New_York"),
    ],
)
def test_what_surprises_is_a_warning_with_what_to_write(expression, rule, told):
    assert told in rules(expression)[rule]
    assert {one.level for one in lint(expression, after=NOW)} == {Level.WARNING}


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("@reboot", "use on_demand"),
        ("0 0 1 1 * 2027", "write 0 0 1 1 * with start: 2027-01-01"),
        ("0 22-2 * * *", "write 22-23,0-2"),
        ("0~30 * * * *", "H(0-59) for 0~59"),
        ("0 0 31 2 *", "never matches"),
        ("CRON_TZ=PST 5 4 * * *", "write America/Los_Angeles"),
        ("61 * * * *", "61 is out of range"),
    ],
)
def test_what_is_refused_is_one_error_with_the_rewrite(expression, told):
    (found,) = lint(expression, after=NOW)
    assert found.level is Level.ERROR
    assert told in f"{found.problem} {found.hint}"


def test_a_fixed_time_in_a_change_of_the_clock_says_what_will_happen():
    found = [one.problem for one in lint("30 2 * * *", "Europe/Berlin", after=NOW)]
    assert len(found) == 2
    assert "does not exist" in found[0]
    assert "runs once, at 03:00+02:00" in found[0]
    assert "comes twice" in found[1]
    assert "first pass" in found[1]
    assert rules("*/30 * * * *", "Europe/Berlin") == {}  # follows elapsed time: no surprise
