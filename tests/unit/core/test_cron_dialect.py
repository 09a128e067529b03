"""The cron dialect: accepted expressions, their meaning, and messages of rejected ones."""

import time
from datetime import UTC, datetime

import pytest

from schedd.core.schedule import cron
from schedd.core.schedule.cron import CronError

JANUARY = datetime(2026, 1, 1, tzinfo=UTC)


def days(expression: str, count: int = 6, seed: str = "") -> list[str]:
    """Return the next local days of an expression, as month-day."""
    return [f"{at:%m-%d}" for at in _next(expression, count, seed)]


def times(expression: str, count: int = 6, seed: str = "") -> list[str]:
    return [f"{at:%H:%M:%S}" for at in _next(expression, count, seed)]


def _next(expression: str, count: int, seed: str) -> list[datetime]:
    at, found = JANUARY, []
    for _ in range(count):
        after = cron.parse(expression, seed=seed).next_after(at)
        assert after is not None
        found.append(at := after)
    return found


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("*/20 * * * *", ["00:20:00", "00:40:00", "01:00:00", "01:20:00"]),
        ("5/20 * * * *", ["00:05:00", "00:25:00", "00:45:00", "01:05:00"]),
        ("59/15 * * * *", ["00:59:00", "01:59:00", "02:59:00", "03:59:00"]),
        ("7-7 * * * *", ["00:07:00", "01:07:00", "02:07:00", "03:07:00"]),
        ("50-51/15 * * * *", ["00:50:00", "01:50:00", "02:50:00", "03:50:00"]),
        ("*/90 * * * *", ["01:00:00", "02:00:00", "03:00:00", "04:00:00"]),
        ("1,3-5,3 0 * * *", ["00:01:00", "00:03:00", "00:04:00", "00:05:00"]),
        ("*,5 * * * *", ["00:01:00", "00:02:00", "00:03:00", "00:04:00"]),
        ("15 30 4 * * *", ["04:30:15", "04:30:15", "04:30:15", "04:30:15"]),
        ("*/25 * * * * *", ["00:00:25", "00:00:50", "00:01:00", "00:01:25"]),
        ("@hourly", ["01:00:00", "02:00:00", "03:00:00", "04:00:00"]),
        ("@daily", ["00:00:00"] * 4),
        ("@midnight", ["00:00:00"] * 4),
        ("@every 90s", ["00:01:30", "00:03:00", "00:04:30", "00:06:00"]),
        ("@every 1h30m", ["01:30:00", "03:00:00", "04:30:00", "06:00:00"]),
        ("  0   1-3  * * * ", ["01:00:00", "02:00:00", "03:00:00", "01:00:00"]),
    ],
)
def test_an_expression_matches_its_times(expression: str, expected: list[str]) -> None:
    assert times(expression, 4) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 9 * * mon", ["01-05", "01-12", "01-19"]),
        ("0 9 * * MON-Wed", ["01-05", "01-06", "01-07"]),
        ("0 9 * * 7", ["01-04", "01-11", "01-18"]),
        ("0 9 * * 0", ["01-04", "01-11", "01-18"]),
        ("0 9 * * 5-7", ["01-02", "01-03", "01-04"]),
        ("0 9 * * 1-7/2", ["01-02", "01-04", "01-05"]),
        ("0 9 * * 0-7", ["01-01", "01-02", "01-03"]),
        ("0 9 * jan,mar 1", ["01-05", "01-12", "01-19"]),
        ("0 9 L * *", ["01-31", "02-28", "03-31"]),
        ("0 9 L-3 * *", ["01-28", "02-25", "03-28"]),
        ("0 14 L-3 * *", ["01-28", "02-25", "03-28"]),
        ("0 9 L-30 * *", ["01-01", "03-01", "05-01"]),
        ("0 9 L-28 2 *", ["02-01", "02-01", "02-01"]),
        ("0 9 L-1,L,1 * *", ["01-01", "01-30", "01-31"]),
        ("0 9 L-0 * *", ["01-31", "02-28", "03-31"]),
        ("0 9 LW * *", ["01-30", "02-27", "03-31"]),
        ("0 9 15W * *", ["01-15", "02-16", "03-16"]),
        ("0 9 w15 * *", ["01-15", "02-16", "03-16"]),
        ("0 9 1W 2,8 *", ["02-02", "08-03", "02-01"]),
        ("0 9 31W 2 *", ["02-27", "02-26", "02-29"]),
        ("0 9 * * 5#2", ["01-09", "02-13", "03-13"]),
        ("0 9 * * fri#5", ["01-30", "05-29", "07-31"]),
        ("0 9 * * 5L", ["01-30", "02-27", "03-27"]),
        ("0 9 * * L5", ["01-30", "02-27", "03-27"]),
        ("0 9 * * friL", ["01-30", "02-27", "03-27"]),
        ("0 9 * * 7L", ["01-25", "02-22", "03-29"]),
        ("0 9 15W,L,3 * *", ["01-03", "01-15", "01-31"]),
        ("0 9 * * 5#1,5#3,mon", ["01-02", "01-05", "01-12"]),
        ("0 9 ? * 2", ["01-06", "01-13", "01-20"]),
        ("0 9 13 * ?", ["01-13", "02-13", "03-13"]),
        ("0 0 29 2 *", ["02-29", "02-29", "02-29"]),
        ("@weekly", ["01-04", "01-11", "01-18"]),
        ("@monthly", ["02-01", "03-01", "04-01"]),
        ("@yearly", ["01-01", "01-01", "01-01"]),
        ("@annually", ["01-01", "01-01", "01-01"]),
    ],
)
def test_an_expression_matches_its_days(expression: str, expected: list[str]) -> None:
    assert days(expression, 3) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 9 13 * 5", ["01-02", "01-09", "01-13"]),  # neither begins with a star: either
        ("0 9 */10 * 5", ["05-01", "07-31", "08-21"]),  # a star: both
        ("0 9 13 * */5", ["02-13", "03-13", "09-13"]),
        ("0 9 1-31 * 5", ["01-01", "01-02", "01-03"]),  # all days, but no star
        ("0 9 ? * 5", ["01-02", "01-09", "01-16"]),
    ],
)
def test_both_day_fields_must_match_if_one_begins_with_a_star(
    expression: str, expected: list[str]
) -> None:
    assert days(expression, 3) == expected


def test_a_leap_day_on_a_monday_is_found_decades_ahead() -> None:
    found = cron.parse("0 0 29 2 */7,1", seed="").next_after(datetime(2077, 1, 1, tzinfo=UTC))
    assert found == datetime(2088, 2, 29, tzinfo=UTC)
    found = cron.parse("0 0 */28 2 1#5", seed="").next_after(datetime(2049, 1, 1, tzinfo=UTC))
    assert found == datetime(2072, 2, 29, tzinfo=UTC)


class TestHash:
    def test_h_gives_each_job_its_own_time_that_never_changes(self) -> None:
        # Stored schedules depend on these values: never adapt them to the code.
        assert times("H H * * *", 1, "default/nightly-etl") == ["13:12:00"]
        assert times("H * * * *", 1, "default/ping") == ["00:43:00"]
        assert times("H H * * * *", 1, "team-a/report") == ["00:08:04"]
        assert days("0 0 H * *", 2, "default/monthly") == ["01-18", "02-18"]

    def test_h_stays_in_its_range(self) -> None:
        for number in range(200):
            masks = cron.parse("H(10-19) H(0-2) H H(6-7) H", seed=f"default/{number}").masks
            assert masks is not None
            assert masks.minute.bit_count() == 1
            assert 10 <= masks.minute.bit_length() - 1 <= 19
            assert masks.hour in (1, 2, 4)
            assert 1 <= masks.day_of_month.bit_length() - 1 <= 28, "each month has the day"
            assert masks.month in (1 << 6, 1 << 7)
            assert masks.day_of_week in [1 << day for day in range(7)]

    def test_an_h_with_a_step_begins_within_the_first_step(self) -> None:
        starts = set()
        for number in range(300):
            masks = cron.parse("H/15 H(1-10)/4 * * *", seed=f"default/{number}").masks
            assert masks is not None
            minutes = [value for value in range(60) if masks.minute >> value & 1]
            assert minutes == list(range(minutes[0], 60, 15))
            assert len(minutes) == 4
            starts.add(minutes[0])
            hours = [value for value in range(24) if masks.hour >> value & 1]
            assert hours == list(range(hours[0], 11, 4))
            assert 1 <= hours[0] <= 4
        assert starts == set(range(15)), "every minute of the step gets its share"

    @pytest.mark.slow
    def test_fields_are_hashed_separately(self) -> None:
        pairs = {tuple(times("H H * * * *", 1, f"ns/{number}")) for number in range(500)}
        assert len(pairs) > 300

    def test_h_is_not_a_wildcard_without_a_step(self) -> None:
        assert not cron.parse("H H(0-3) * * *", seed="a/b").wildcard
        assert cron.parse("H/5 * * * *", seed="a/b").wildcard


@pytest.mark.parametrize(
    ("expression", "wildcard"),
    [
        ("* * * * *", True),
        ("*/5 2 * * *", True),
        ("30 */2 * * *", True),
        ("30 2 * * *", False),
        ("30 0-23 * * *", False),
        ("* 30 2 * * *", False),  # the second doesn't count
        ("@hourly", True),
        ("@daily", False),
    ],
)
def test_a_wildcard_is_a_star_at_the_beginning_of_minute_or_hour(
    expression: str, wildcard: bool
) -> None:
    assert cron.parse(expression, seed="").wildcard is wildcard


def test_a_zone_in_the_expression_has_priority_over_the_jobs() -> None:
    parsed = cron.parse("CRON_TZ=Asia/Kathmandu 0 6 * * *", zone="Europe/Riga", seed="")
    assert parsed.zone == "Asia/Kathmandu"
    assert parsed.next_after(JANUARY) == datetime(2026, 1, 1, 0, 15, tzinfo=UTC)


def test_parsing_is_cached_by_expression_zone_and_for_h_the_seed() -> None:
    assert cron.parse("1 2 * * *", seed="a/b") is cron.parse("1 2 * * *", seed="c/d")
    assert cron.parse("1 2 * * *", seed="a") is not cron.parse("1 2 * * *", zone="EST", seed="a")
    assert cron.parse("H 2 * * *", seed="a/b") is cron.parse("H 2 * * *", seed="a/b")


@pytest.mark.parametrize(
    ("expression", "field", "problem", "hint"),
    [
        ("", "expression", "is empty", "five fields"),
        ("* * * *", "expression", "4 fields", "five:"),
        ("* * * * * * * *", "expression", "8 fields", "six: seconds first"),
        ("60 * * * *", "minute", "60 is out of range", "0-59"),
        ("* 24 * * *", "hour", "24 is out of range", "0-23"),
        ("* * 0 * *", "day of month", "0 is out of range", "1-31"),
        ("* * 32 * *", "day of month", "32 is out of range", "1-31"),
        ("* * * 13 *", "month", "13 is out of range", "jan-dec"),
        ("* * * * 8", "day of week", "8 is out of range", "0 and 7 are Sunday"),
        ("* * * * * 8", "day of week", "8 is out of range", "0-7"),
        ("61 * * * * *", "second", "61 is out of range", "0-59"),
        ("-1 * * * *", "minute", "'-1' isn't valid in this field", "0-59"),
        ("1.5 * * * *", "minute", "'1.5' isn't valid in this field", "0-59"),
        ("²  * * * *", "minute", "'²' isn't valid in this field", "0-59"),
        ("99999999999999999999 * * * *", "minute", "out of range", "0-59"),
        ("*/0 * * * *", "minute", "the step of '*/0' is out of range", "1 to 9999"),
        ("* * * * monday", "day of week", "'monday'", "write the name as mon"),
        ("* * * * foo", "day of week", "'foo' isn't valid in this field", "sun-sat"),
        ("* * * january *", "month", "'january'", "write the name as jan"),
        ("1,,2 * * * *", "minute", "empty entry", "comma"),
        ("1, 2 * * * *", "second", "empty entry", "comma"),
        ("* 22-2 * * *", "hour", "the range 22-2 isn't valid", "write * 22-23,0-2 * * *"),
        (
            "* 22-4/3 * * *",
            "hour",
            "isn't valid: its end is before its start",
            "write * 22,1,4 * * *",
        ),
        ("* 23-0 * * *", "hour", "isn't valid: its end is before its start", "write * 23,0 * * *"),
        ("* * * nov-feb *", "month", "nov-feb isn't valid", "write * * * 11-12,1-2 *"),
        ("* * * * fri-mon", "day of week", "fri-mon isn't valid", "write * * * * 5-6,0-1"),
        ("* * * * fri-sun", "day of week", "fri-sun isn't valid", "write * * * * 5-7"),
        ("@reboot", "expression", "@reboot isn't supported", "trigger"),
        ("@fortnightly", "expression", "'@fortnightly' isn't a known macro", "@weekly"),
        ("@every", "expression", "@every needs exactly one duration", "1h30m"),
        ("@every 5", "expression", "the duration '5' of @every isn't valid", "@every 5s"),
        ("@every 500ms", "expression", "the duration '500ms' of @every isn't valid", "@every 5s"),
        ("@every 0s", "expression", "at least 1s", "90s"),
        ("0 0 1 1 * 2030", "year", "a year field isn't supported", "end: 2030-12-31T23:59:59Z"),
        ("0 0 0 1 1 * 2030", "year", "seconds first and a year last", "write 0 0 1 1 * with start"),
        ("0 0 0 1 1 ? *", "year", "looks like Quartz", "write 0 0 1 1 * ("),
        ("* * L-31 * *", "day of month", "L-31 never matches", "L-1 to L-30"),
        ("* * L-x * *", "day of month", "'L-X' isn't supported", "L-3"),
        ("* * 15-L * *", "day of month", "'15-L' isn't supported", "write * * 15-31 * *"),
        ("* * * * L", "day of week", "L must follow a day of the week", "5L"),
        ("* * * * 5#6", "day of week", "is out of range", "1 to 5"),
        ("* * * * 5#0", "day of week", "is out of range", "1 to 5"),
        ("* * 40W * *", "day of month", "40 is out of range", "1-31"),
        (
            "H(10-5) * * * *",
            "minute",
            "isn't valid: its end is before its start",
            "with the lower value",
        ),
        ("H(0-90) * * * *", "minute", "90 is out of range", "0-59"),
        ("TZ=UTC * * * * *", "time_zone", "TZ= isn't supported", "write CRON_TZ=UTC * * * * *"),
        ("CRON_TZ=Europe/Berln * * * * *", "time_zone", "Europe/Berln", "did you mean Europe/Be"),
        ("CRON_TZ= * * * * *", "time_zone", "has no time zone", "CRON_TZ=Europe/Berlin"),
        ("1," * 600 + "1 * * * *", "expression", " characters", "1024"),
    ],
)
def test_a_rejected_expression_names_the_field_the_problem_and_the_rewrite(
    expression: str, field: str, problem: str, hint: str
) -> None:
    with pytest.raises(CronError) as refusal:
        cron.parse(expression, seed="")
    assert refusal.value.field == field
    assert problem in refusal.value.problem
    assert hint in refusal.value.hint


@pytest.mark.parametrize(
    "expression",
    [
        "0 0 31 2 *",
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "0 0 30,31 2 ?",
        "0 0 L-29 2 *",
        "0 0 L-30 4,6 *",
        "0 0 */30 2 1#5",
        "0 0 */31 2,4 mon#5",
        "* * * 30,31 2 ?",
    ],
)
def test_an_expression_that_never_matches_is_refused_at_once(expression: str) -> None:
    began = time.process_time()
    with pytest.raises(CronError, match="never matches"):
        cron.parse(expression, seed="")
    assert time.process_time() - began < 0.010, "by looking at masks, not by searching"


@pytest.mark.parametrize(
    ("zone", "hint"),
    [
        ("Europe/Berln", "did you mean Europe/Berlin?"),
        ("europe/berlin", "did you mean Europe/Berlin?"),
        ("Berlin", "did you mean Europe/Berlin?"),
        ("New York", "did you mean America/New_York?"),
        ("America/NewYork", "did you mean America/New_York?"),
        ("../../etc/passwd", "an IANA name"),
        ("", "an IANA name"),
    ],
)
def test_an_unknown_zone_is_refused_with_the_likely_one(zone: str, hint: str) -> None:
    with pytest.raises(CronError) as refusal:
        cron.parse("0 0 * * *", zone=zone, seed="")
    assert refusal.value.field == "time_zone"
    assert hint in refusal.value.hint


@pytest.mark.parametrize(
    ("zone", "hint"),
    [
        ("GMT+2", "Etc/GMT+2 means UTC−2; for UTC+2 write Etc/GMT-2, or a city"),
        ("GMT-5", "Etc/GMT-5 means UTC+5; for UTC−5 write Etc/GMT+5, or a city"),
        ("GMT+10", "Etc/GMT+10 means UTC−10; for UTC+10 write Etc/GMT-10, or a city"),
        ("UTC+2", "for UTC+2 write Etc/GMT-2"),
        ("+02:00", "for UTC+2 write Etc/GMT-2"),
        ("UTC+5:30", "for UTC+5:30 write Asia/Kolkata"),
        ("GMT+25", "no zone is always UTC+25"),
        ("PDT", "an abbreviation isn't a zone: write America/Los_Angeles"),
        ("AEST", "write Australia/Brisbane or Australia/Sydney"),
        ("CET-1CEST", "write Europe/Berlin"),
        ("XST", "an IANA name"),
    ],
)
def test_a_zone_is_never_suggested_with_another_offset(zone: str, hint: str) -> None:
    with pytest.raises(CronError) as refusal:
        cron.parse("0 0 * * *", zone=zone, seed="")
    assert hint in refusal.value.hint


@pytest.mark.parametrize(
    ("expression", "problem", "hint"),
    [
        (
            "0 15 10 ? * 6L 2026-2030",
            "looks like Quartz",
            (
                "write 15 10 * * 5L with start: 2026-01-01T00:00:00+01:00 and end: "
                "2030-12-31T23:59:59+01:00 (on the last Friday of every month at 10:15)"
            ),
        ),
        ("0 0 9 ? * 2-6 *", "day 1 is Sunday", "write 0 9 * * 1-5 (Monday to Friday"),
        ("0 0 9 ? * L *", "looks like Quartz", "write 0 9 * * 6 (on Saturday"),
        ("0 0 9 ? * 6#3 2027", "looks like Quartz", "write 0 9 * * 5#3 with start: 2027-01-01"),
        (
            "45 12 * * TUE,THU *",
            "in six fields, the first is seconds",
            "write 45 12 * * 2,4 (on Tue",
        ),
        ("0 9 * * 1-5 2026,2028", "in six fields, the first is seconds", "aren't consecutive"),
        ("cron(0 10 * * ? *)", "an AWS expression", "write 0 10 * * * (every day at 10:00)"),
        ("cron(0 10 ? * 2-6 *)", "an AWS expression", "write 0 10 * * 1-5 (Monday to Fri"),
        ("rate(5 minutes)", "AWS expression", "@every 5m (every 5 minutes, counted from 1970"),
        (
            "at(2026-12-24T18:00:00)",
            "AWS expression",
            "write at: 2026-12-24T18:00:00 and time_zone",
        ),
        (
            "0 4 * * 1-5 Europe/Paris",
            "ends with a time zone",
            "write CRON_TZ=Europe/Paris 0 4 * * 1-5",
        ),
        ("0 4 * * 1-5 Europe/Pariss", "ends with a time zone", "did you mean Europe/Paris?"),
        ("TZ=Asia/Tokyo 0 4 * * *", "TZ= isn't supported", "write CRON_TZ=Asia/Tokyo 0 4 * * *"),
        ("59 23 $ * *", "$ isn't a day", "write 59 23 L * * (on the last day"),
        ("*5 * * * *", "*5 isn't valid in this field", "write */5 * * * * (every 5 minutes)"),
        ("0 9 * * MON–FRI", "U+2013", "write 0 9 * * MON-FRI"),
        ("∗/5 * * * *", "U+2217", "write */5 * * * *"),
        ('"0 4 * * *"', "has quotes", "write 0 4 * * *"),
        ("30 2 * * * root /bin/x", "a line of a crontab: 'root /bin/x'", "write 30 2 * * *"),
        ("@daily /bin/x", "a line of a crontab: '/bin/x'", "write @daily"),
    ],
)
def test_other_dialects_are_rejected_with_a_verified_rewrite(
    expression: str, problem: str, hint: str
) -> None:
    with pytest.raises(CronError) as refusal:
        cron.parse(expression, zone="Europe/Berlin", seed="")
    assert problem in refusal.value.problem
    assert hint in refusal.value.hint


@pytest.mark.parametrize(
    "expression",
    [
        "0 0 9 ? * MON,6L *",  # Quartz doesn't define L in a list
        "0 0 9 L-3W * ? *",
        "cron(0 9 ? * L *)",
        "0 0 9 31W * ? *",  # dialects differ in shorter months
    ],
)
def test_an_ambiguous_expression_is_rejected_without_a_rewrite(expression: str) -> None:
    with pytest.raises(CronError) as refusal:
        cron.parse(expression, seed="")
    assert not refusal.value.rewrites


def test_a_search_for_a_rewrite_takes_bounded_time() -> None:
    terms = ",".join(f"{day}#{week}" for day in range(1, 8) for week in range(1, 6))
    for expression in (
        f"0 0 9 * * {terms} 2026-2100",
        f"0 0 9 {','.join(f'{day}W' for day in range(1, 29))} * ? 2027",
        "0 " * 500,
        f"0 0 9 ? * {'2,' * 400}2 *",
    ):
        began = time.process_time()
        with pytest.raises(CronError):
            cron.parse(expression, zone="Europe/Berlin", seed="")
        assert time.process_time() - began < 0.1, expression


@pytest.mark.parametrize("expression", ["0 0 */31 * mon#2", "0 0 */30 2 monL"])
def test_two_day_fields_that_never_match_together_are_reported(expression: str) -> None:
    with pytest.raises(CronError, match="a day must match both day fields, and no day"):
        cron.parse(expression, seed="")
