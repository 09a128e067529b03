"""Expressions on the days of clock changes, as tables of local times."""

from datetime import UTC, datetime, timedelta

import pytest

from schedd.core.schedule import cron
from schedd.core.schedule.cron import DstGap, DstOverlap, DstPolicy
from schedd.core.schedule.zones import zone as zone_of

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"


def on(
    expression: str, zone: str, day: str, dst: DstPolicy = cron.DEBIAN, *, days: int = 1
) -> list[str]:
    """Return the times within local days as local times with offset, like 02:30+01:00."""
    info = zone_of(zone).info
    start = datetime.fromisoformat(day).replace(tzinfo=info)
    end = (datetime.fromisoformat(day) + timedelta(days=days)).replace(tzinfo=info)
    parsed = cron.parse(expression, zone=zone, seed="")
    at = parsed.next_after(start - timedelta(seconds=1), dst)
    found = []
    while at is not None and at < end:
        found.append(at.astimezone(info).isoformat(timespec="minutes")[11:])
        at = parsed.next_after(at, dst)
    return found


class TestFixedTimes:
    """Berlin skips 02:00-03:00 on 2024-03-31 and repeats it on 2024-10-27."""

    def test_a_time_in_the_gap_runs_once_right_after_it(self) -> None:
        assert on("30 2 * * *", BERLIN, "2024-03-31") == ["03:00+02:00"]
        assert on("30 2 * * *", NEW_YORK, "2024-03-10") == ["03:00-04:00"]

    def test_several_times_in_the_gap_run_once_together(self) -> None:
        assert on("0,15,30 2 * * *", BERLIN, "2024-03-31") == ["03:00+02:00"]
        assert on("* 30 2 * * *", BERLIN, "2024-03-31") == ["03:00+02:00"]

    def test_a_time_in_the_gap_and_one_at_its_end_run_once(self) -> None:
        assert on("0 2,3 * * *", BERLIN, "2024-03-31") == ["03:00+02:00"]
        assert on("30 2,3 * * *", BERLIN, "2024-03-31") == ["03:00+02:00", "03:30+02:00"]

    def test_a_time_in_the_gap_may_be_skipped(self) -> None:
        skip = DstPolicy(gap=DstGap.SKIP)
        assert on("30 2 * * *", BERLIN, "2024-03-31", skip) == []
        assert on("0 2,3 * * *", BERLIN, "2024-03-31", skip) == ["03:00+02:00"]

    def test_a_repeated_time_runs_once_at_its_first_pass(self) -> None:
        assert on("30 2 * * *", BERLIN, "2024-10-27") == ["02:30+02:00"]
        assert on("30 1 * * *", NEW_YORK, "2024-11-03") == ["01:30-04:00"]

    @pytest.mark.parametrize(
        ("overlap", "expected"),
        [
            (DstOverlap.FIRST, ["01:45+02:00", "02:00+02:00", "02:45+02:00", "03:00+01:00"]),
            (DstOverlap.SECOND, ["01:45+02:00", "02:00+01:00", "02:45+01:00", "03:00+01:00"]),
            (
                DstOverlap.BOTH,
                [
                    "01:45+02:00",
                    "02:00+02:00",
                    "02:45+02:00",
                    "02:00+01:00",
                    "02:45+01:00",
                    "03:00+01:00",
                ],
            ),
        ],
    )
    def test_the_job_chooses_the_pass_of_a_repeated_time(
        self, overlap: DstOverlap, expected: list[str]
    ) -> None:
        found = on("0,45 1-3 * * *", BERLIN, "2024-10-27", DstPolicy(overlap=overlap))
        assert found[1:-1] == expected

    def test_other_days_are_unchanged(self) -> None:
        assert on("30 2 * * *", BERLIN, "2024-03-30", days=3) == [
            "02:30+01:00",
            "03:00+02:00",
            "02:30+02:00",
        ]
        assert on("30 2 * * *", BERLIN, "2024-10-26", days=3) == [
            "02:30+02:00",
            "02:30+02:00",
            "02:30+01:00",
        ]

    def test_a_range_of_all_hours_is_still_fixed(self) -> None:
        assert on("30 0-23 * * *", BERLIN, "2024-10-27").count("02:30+02:00") == 1
        assert len(on("30 0-23 * * *", BERLIN, "2024-10-27")) == 24


class TestWildcards:
    def test_every_half_hour_follows_elapsed_time(self) -> None:
        assert on("*/30 * * * *", BERLIN, "2024-03-31")[2:6] == [
            "01:00+01:00",
            "01:30+01:00",
            "03:00+02:00",
            "03:30+02:00",
        ]
        assert on("*/30 * * * *", BERLIN, "2024-10-27")[3:9] == [
            "01:30+02:00",
            "02:00+02:00",
            "02:30+02:00",
            "02:00+01:00",
            "02:30+01:00",
            "03:00+01:00",
        ]

    def test_times_in_a_gap_do_not_run(self) -> None:
        assert on("*/30 2 * * *", BERLIN, "2024-03-31") == []
        assert on("30 */2 * * *", BERLIN, "2024-03-31")[:2] == ["00:30+01:00", "04:30+02:00"]

    def test_policies_do_not_affect_wildcards(self) -> None:
        for dst in (
            DstPolicy(DstGap.SKIP, DstOverlap.SECOND),
            DstPolicy(DstGap.RUN_AFTER, DstOverlap.FIRST),
        ):
            assert len(on("*/30 * * * *", BERLIN, "2024-10-27", dst)) == 50
            assert len(on("*/30 * * * *", BERLIN, "2024-03-31", dst)) == 46

    def test_an_interval_ignores_clock_changes(self) -> None:
        assert len(on("@every 30m", BERLIN, "2024-10-27")) == 50


class TestOddZones:
    def test_lord_howe_shifts_by_half_an_hour(self) -> None:
        zone = "Australia/Lord_Howe"
        assert on("15 2 * * *", zone, "2024-10-06") == ["02:30+11:00"]
        assert on("15,45 2 * * *", zone, "2024-10-06") == ["02:30+11:00", "02:45+11:00"]
        assert on("45 1 * * *", zone, "2024-04-07") == ["01:45+11:00"]
        assert on("15 1 * * *", zone, "2024-04-07") == ["01:15+11:00"]
        assert on("*/15 1 * * *", zone, "2024-04-07") == [
            "01:00+11:00",
            "01:15+11:00",
            "01:30+11:00",
            "01:45+11:00",
            "01:30+10:30",
            "01:45+10:30",
        ]

    def test_cairo_and_havana_skip_midnight(self) -> None:
        assert on("0 0 * * *", "Africa/Cairo", "2024-04-26") == ["01:00+03:00"]
        assert on("30 0 * * *", "America/Havana", "2024-03-10") == ["01:00-04:00"]
        assert on("* * * * *", "America/Havana", "2024-03-10")[0] == "01:00-04:00"

    def test_cairo_and_havana_repeat_the_hour_around_midnight(self) -> None:
        assert on("30 23 * * *", "Africa/Cairo", "2024-10-31") == ["23:30+03:00"]
        assert on("30 0 * * *", "America/Havana", "2024-11-03") == ["00:30-04:00"]
        assert on(
            "30 0 * * *", "America/Havana", "2024-11-03", DstPolicy(overlap=DstOverlap.SECOND)
        ) == ["00:30-05:00"]

    def test_apia_has_no_30_december_2011(self) -> None:
        zone = "Pacific/Apia"
        assert on("30 2 * * *", zone, "2011-12-29", days=3) == [
            "02:30-10:00",
            "00:00+14:00",
            "02:30+14:00",
        ]
        assert on("0 0 * * *", zone, "2011-12-29", days=3) == ["00:00-10:00", "00:00+14:00"]
        assert on("0 12 30 12 *", zone, "2011-12-29", days=3) == ["00:00+14:00"]
        assert on("* * 30 12 *", zone, "2011-12-29", days=3) == []
        assert on("0 12 30 12 *", zone, "2011-12-29", DstPolicy(gap=DstGap.SKIP), days=3) == []

    def test_a_repeated_hour_is_complete_at_any_boundary_of_zone_segments(self) -> None:
        """Found by the walk: 2014-04-05T13:07:12Z is a multiple of 2^21 s, in an hour that Apia
        repeats; as 1973-03-11T02:01:36Z, one of 2^25 s, is in one that Santiago repeats.
        """
        second = DstPolicy(overlap=DstOverlap.SECOND)
        assert on("7 3 * * *", "Pacific/Apia", "2014-04-06", second) == ["03:07+13:00"]
        assert on("0 23 * * *", "America/Santiago", "1973-03-10", second) == ["23:00-04:00"]
        for zone, day in (("Pacific/Apia", "2014-04-06"), ("America/Santiago", "1973-03-10")):
            assert len(on("0,5,59 0-23 * * *", zone, day)) == 72
            assert len(on("0,5,59 0-23 * * *", zone, day, second)) == 72

    def test_dublin_calls_its_winter_time_daylight_saving(self) -> None:
        assert on("30 1 * * *", "Europe/Dublin", "2024-03-31") == ["02:00+01:00"]
        assert on("30 1 * * *", "Europe/Dublin", "2024-10-27") == ["01:30+01:00"]

    def test_casablanca_goes_back_for_ramadan(self) -> None:
        assert on("30 2 * * *", "Africa/Casablanca", "2024-03-10") == ["02:30+01:00"]
        assert on("30 2 * * *", "Africa/Casablanca", "2024-04-14") == ["03:00+01:00"]

    def test_kathmandu_is_a_quarter_off(self) -> None:
        assert on("0 6 * * *", "Asia/Kathmandu", "2026-01-01") == ["06:00+05:45"]


def test_a_search_from_within_the_gap_or_overlap_gives_the_same_instants() -> None:
    parsed = cron.parse("30 2 * * *", zone=BERLIN, seed="")
    for day in ("2024-03-31", "2024-10-27"):
        start = datetime.fromisoformat(f"{day}T00:00:00+00:00")
        full = [start + timedelta(minutes=minute) for minute in range(-180, 300)]
        nexts = {parsed.next_after(at) for at in full}
        assert len(nexts) == 2, "the instant of the day, and the next day's"


def test_microseconds_are_after_their_second() -> None:
    parsed = cron.parse("* * * * * *", seed="")
    at = datetime.fromisoformat("2026-01-01T00:00:00.999999+00:00")
    assert parsed.next_after(at) == datetime.fromisoformat("2026-01-01T00:00:01+00:00")


@pytest.mark.parametrize("zone", ["UTC", BERLIN, "Pacific/Apia"])
def test_the_first_and_last_years_cause_no_error(zone: str) -> None:
    parsed = cron.parse("0 0 * * *", zone=zone, seed="")
    assert parsed.next_after(datetime.max.replace(tzinfo=UTC)) is None
    assert parsed.next_after(datetime(9999, 12, 31, tzinfo=UTC)) is None
    assert parsed.next_after(datetime.min.replace(tzinfo=UTC)) is not None
    found = cron.explain("0 0 * * *", zone, after=datetime(9987, 1, 1, tzinfo=UTC), count=400)
    assert len(found.instants) < 400
