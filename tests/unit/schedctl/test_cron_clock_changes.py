"""`schedctl cron explain` on days on which clocks change, for each policy."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"

BACK = [("30 2 * * *", BERLIN, "2026-10-25"), ("30 1 * * *", NEW_YORK, "2026-11-01")]
FORWARD = [("30 2 * * *", BERLIN, "2026-03-29"), ("30 2 * * *", NEW_YORK, "2026-03-08")]


@pytest.fixture
def explain(offline):
    """The local times of one day by `cron explain`, with their offsets; and the day's note."""

    def asked(expression, zone, day, *flags):
        midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone))
        before = datetime.fromtimestamp(midnight.timestamp() - 1, midnight.tzinfo)
        ended = offline(
            *("cron", "explain", expression, "--tz", zone, "--after", before.isoformat()),
            *("--next", "100", "-o", "json", *flags),
        )
        assert ended.code == 0, ended.err
        times = [at[11:16] + at[19:] for at in ended.data["next"] if at.startswith(day)]
        notes = [note.partition(": ")[2] for note in ended.data["notes"] if note.startswith(day)]
        return times, "".join(notes)

    return asked


@pytest.mark.parametrize(("expression", "zone", "day"), BACK)
def test_a_fixed_time_runs_once_when_clocks_go_back(explain, expression, zone, day):
    times, note = explain(expression, zone, day)
    summer = {BERLIN: "02:30+02:00", NEW_YORK: "01:30-04:00"}[zone]
    assert times == [summer]
    assert f"comes twice in {zone}" in note
    assert note.endswith(f"runs once, in the first pass ({summer}).")


@pytest.mark.parametrize(("expression", "zone", "day"), BACK)
def test_croniter_alone_would_run_it_twice(expression, zone, day):
    start = datetime.fromisoformat(f"{day}T00:00").replace(tzinfo=ZoneInfo(zone))
    found = croniter(expression, start)
    assert [f"{found.get_next(datetime):%F}" for _ in range(2)] == [day, day]


@pytest.mark.parametrize(("expression", "zone", "day"), FORWARD)
def test_a_fixed_time_runs_once_when_clocks_go_forward(explain, expression, zone, day):
    times, note = explain(expression, zone, day)
    after = {BERLIN: "03:00+02:00", NEW_YORK: "03:00-04:00"}[zone]
    assert times == [after]
    assert f"02:30 does not exist in {zone} (clocks go forward from 02:00 to 03:00)" in note
    assert note.endswith(f"runs once, at {after}.")


def test_half_past_one_is_an_ordinary_time_where_two_is_skipped(explain):
    assert explain("30 1 * * *", NEW_YORK, "2026-03-08") == (["01:30-05:00"], "")


@pytest.mark.parametrize("flag", ["first", "second", "both"])
@pytest.mark.parametrize(("expression", "zone", "day"), BACK)
def test_explain_names_each_policy_of_a_repeated_hour(explain, expression, zone, day, flag):
    first, second = {
        BERLIN: ("02:30+02:00", "02:30+01:00"),
        NEW_YORK: ("01:30-04:00", "01:30-05:00"),
    }[zone]
    times, note = explain(expression, zone, day, "--dst-overlap", flag)
    assert (times, note.partition("; ")[2]) == {
        "first": ([first], f"runs once, in the first pass ({first})."),
        "second": ([second], f"runs once, in the second pass ({second})."),
        "both": (
            [first, second],
            f"runs twice, in the first pass ({first}) and the second pass ({second}).",
        ),
    }[flag]


@pytest.mark.parametrize(("expression", "zone", "day"), FORWARD)
def test_a_gap_may_be_skipped(explain, expression, zone, day):
    times, note = explain(expression, zone, day, "--dst-gap", "skip")
    assert times == []
    assert note.endswith("; this time doesn't run.")


@pytest.mark.parametrize(
    "flags", [(), ("--dst-gap", "skip"), ("--dst-overlap", "second"), ("--dst-overlap", "both")]
)
def test_each_half_hour_runs_on_elapsed_time_whatever_the_policy(explain, flags):
    back, note = explain("*/30 * * * *", BERLIN, "2026-10-25", *flags)
    assert len(back) == 50, "a day of 25 hours"
    assert back[3:8] == ["01:30+02:00", "02:00+02:00", "02:30+02:00", "02:00+01:00", "02:30+01:00"]
    assert note.endswith("the schedule follows elapsed time and runs in both passes.")
    forward, note = explain("*/30 * * * *", BERLIN, "2026-03-29", *flags)
    assert len(forward) == 46, "a day of 23 hours"
    assert forward[2:5] == ["01:00+01:00", "01:30+01:00", "03:00+02:00"]
    assert note.endswith("the schedule follows elapsed time: these times don't run.")
