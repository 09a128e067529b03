"""Expressions in plain English, and the notes on clock changes."""

from datetime import UTC, datetime

import pytest

from schedd.core.schedule import cron
from schedd.core.schedule.cron import DstGap, DstOverlap, DstPolicy


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("3/5 * * * *", "every 5 minutes from minute 3"),
        ("0 * * * *", "every hour"),
        ("13 * * * *", "at minute 13 of every hour"),
        ("*/40 * * * *", "at minutes 0 and 40 of every hour"),
        ("0 */2 * * *", "every 2 hours"),
        ("0 9-17 * * *", "every hour from 09:00 to 17:59"),
        ("*/15 9-17 * * 1-5", "every 15 minutes from 09:00 to 17:59, Monday to Friday"),
        ("* 2 * * *", "every minute from 02:00 to 02:59"),
        ("30 2 * * *", "every day at 02:30"),
        ("30 2,14 * * *", "every day at 02:30 and 14:30"),
        ("15 30 2 * * *", "every day at 02:30:15"),
        ("* * * * * *", "every second"),
        ("*/10 * * * * *", "every 10 seconds"),
        ("30 * * * * *", "at second 30 of every minute"),
        ("0 9 * * 1-5", "Monday to Friday at 09:00"),
        ("0 9 * * mon,wed", "on Monday and Wednesday at 09:00"),
        ("0 9 * * 5-7", "Friday to Sunday at 09:00"),
        ("0 9 * * 5L", "on the last Friday of every month at 09:00"),
        ("0 9 * * 5#2", "on the second Friday of every month at 09:00"),
        ("0 9 L * *", "on the last day of every month at 09:00"),
        ("0 9 LW * *", "on the last weekday of every month at 09:00"),
        ("0 14 L-3 * *", "on the day 3 days before the last of every month at 14:00"),
        ("0 9 15W * *", "on the weekday nearest to day 15 of every month at 09:00"),
        ("0 9 1,15 * 5", "on days 1 and 15 of every month, or on Friday at 09:00"),
        ("0 0 31 2 mon", "on day 31 of February, or on Monday in February at 00:00"),
        ("0 0 1 2 mon#1", "on day 1 of February, or on the first Monday of February at 00:00"),
        ("0 0 30W 2 *", "on the weekday nearest to day 30 (or the last day) of February at 00:00"),
        (
            "0 9 */2 * 5",
            "on every 2nd day from day 1 of every month if that is also Friday at 09:00",
        ),
        ("0 0 1 * 0-6", "every day at 00:00"),
        ("0 0 1-31 * mon", "every day at 00:00"),
        ("0 0 1-31 2 mon", "every day in February at 00:00"),
        ("0 0 ? 2 mon", "on Monday in February at 00:00"),
        (
            "0 0 1 * */2",
            (
                "on day 1 of every month"
                " if that is also Tuesday, Thursday, Saturday or Sunday at 00:00"
            ),
        ),
        (
            "0 0 */10 * fri,mon#1",
            (
                "on every 10th day from day 1 of every month"
                " if that is also Friday or the first Monday of every month at 00:00"
            ),
        ),
        ("0 0 1 1,7 *", "on day 1 of January and July at 00:00"),
        ("0 0 * 1-3 *", "every day in January to March at 00:00"),
        ("@yearly", "on day 1 of January at 00:00"),
        ("@every 90s", "every 90 seconds, counted from 1970-01-01T00:00:00Z"),
        ("@every 2h", "every 2 hours, counted from 1970-01-01T00:00:00Z"),
    ],
)
def test_an_expression_is_described_in_words(expression: str, words: str) -> None:
    assert cron.describe(expression) == words


_DAYS_OF_MONTH = ("*", "?", "1", "31", "30,31", "1-31", "*/2", "*/31", "L", "LW", "30W", "1,L")
_DAYS_OF_WEEK = ("*", "?", "mon", "mon,wed", "mon-fri", "0-6", "*/2", "5L", "mon#5", "fri,mon#1")


@pytest.mark.slow
@pytest.mark.parametrize("of_month", _DAYS_OF_MONTH)
@pytest.mark.parametrize("of_week", _DAYS_OF_WEEK)
@pytest.mark.parametrize("month", ["*", "2", "4,6"])
def test_the_words_for_two_day_fields_match_the_fire_times(of_month, of_week, month) -> None:
    """Compare the words with the fire times of both fields together and of each alone."""
    if not (pair := _days(f"0 0 {of_month} {month} {of_week}")):
        return  # refused: it never matches, which test_cron_dialect looks at
    by_month = _days(f"0 0 {of_month} {month} *")
    by_week = _days(f"0 0 * {month} {of_week}")
    every = _days(f"0 0 * {month} *")
    words = cron.describe(f"0 0 {of_month} {month} {of_week}")
    if pair == every:
        assert words.startswith("every day")
    elif ", or " in words:
        assert pair == by_month | by_week
    elif " if that is also " in words:
        assert pair == by_month & by_week
    else:
        assert pair in (by_month, by_week)


_YEARS = (int(datetime(2023, 1, 1, tzinfo=UTC).timestamp()) - 1, 4 * 365 * 86400)
"""From when, and for how long: a leap year and its neighbours."""


def _days(expression: str) -> set[int]:
    """Return the fire times, in seconds since 1970; none if the expression is rejected."""
    begin, length = _YEARS
    try:
        return set(cron.parse(expression, seed="").seconds(begin, begin + length))
    except cron.CronError:
        return set()


def test_two_spellings_of_the_same_expression_have_the_same_words() -> None:
    assert cron.describe("0,15,30,45 * * * *") == cron.describe("*/15 * * * *")
    assert cron.describe("0 0 * * sun") == cron.describe("@weekly")


def test_an_explanation_has_words_instants_in_the_zone_and_notes() -> None:
    explained = cron.explain(
        "30 2 * * *", "Europe/Berlin", after=datetime(2024, 3, 30, 12, tzinfo=UTC), count=2
    )
    assert explained.expression == "30 2 * * *"
    assert explained.time_zone == "Europe/Berlin"
    assert explained.description == "every day at 02:30"
    assert [at.isoformat() for at in explained.instants] == [
        "2024-03-31T03:00:00+02:00",
        "2024-04-01T02:30:00+02:00",
    ]
    assert explained.notes[:2] == (
        (
            "2024-03-31: 02:30 does not exist in Europe/Berlin"
            " (clocks go forward from 02:00 to 03:00); runs once, at 03:00+02:00."
        ),
        (
            "2024-10-27: 02:30 comes twice in Europe/Berlin"
            " (clocks go back from 03:00 to 02:00); runs once, in the first pass (02:30+02:00)."
        ),
    )


@pytest.mark.parametrize(
    ("dst", "spring", "autumn"),
    [
        (DstPolicy(), "runs once, at 03:00+02:00.", "runs once, in the first pass (02:30+02:00)."),
        (
            DstPolicy(DstGap.SKIP, DstOverlap.SECOND),
            "this time doesn't run.",
            "runs once, in the second pass (02:30+01:00).",
        ),
        (
            DstPolicy(overlap=DstOverlap.BOTH),
            "runs once, at 03:00+02:00.",
            "runs twice, in the first pass (02:30+02:00) and the second pass (02:30+01:00).",
        ),
    ],
)
def test_notes_explain_each_policy(dst: DstPolicy, spring: str, autumn: str) -> None:
    parsed = cron.parse("30 2 * * *", zone="Europe/Berlin", seed="")
    notes = cron.notes(parsed, datetime(2024, 3, 1, tzinfo=UTC), dst)
    assert [note.split("; ")[1] for note in notes] == [spring, autumn]


def test_notes_explain_that_a_wildcard_follows_elapsed_time() -> None:
    parsed = cron.parse("*/30 * * * *", zone="Europe/Berlin", seed="")
    spring, autumn = cron.notes(parsed, datetime(2024, 3, 1, tzinfo=UTC))
    assert "02:00, 02:30 do not exist" in spring
    assert autumn.endswith("the schedule follows elapsed time and runs in both passes.")


def test_an_expression_without_clock_changes_has_no_notes() -> None:
    winter = datetime(2024, 1, 1, tzinfo=UTC)
    assert not cron.notes(cron.parse("0 12 * * *", zone="Europe/Berlin", seed=""), winter)
    assert not cron.notes(cron.parse("30 2 * * *", zone="Asia/Kathmandu", seed=""), winter)
    assert not cron.notes(cron.parse("@every 5m", zone="Europe/Berlin", seed=""), winter)


def test_an_explanation_names_the_job_of_its_hash() -> None:
    explained = cron.explain(
        "H 3 * * *", after=datetime(2024, 1, 1, tzinfo=UTC), count=1, seed="default/etl"
    )
    assert explained.notes == (
        "H is a hash of namespace and job name; these times use the hash of default/etl.",
    )
