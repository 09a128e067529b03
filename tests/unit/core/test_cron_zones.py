"""Zones as segments of constant offset, from the pinned tzdata alone."""

import zoneinfo
from datetime import UTC, datetime
from importlib import metadata

import pytest

from schedd.core.schedule import zones


def seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def test_the_time_zone_files_of_the_system_are_never_read() -> None:
    assert zoneinfo.TZPATH == ()


def test_the_version_is_that_of_the_package() -> None:
    year, number = metadata.version("tzdata").split(".")[:2]
    assert zones.tzdata_version() == f"{year}{chr(ord('a') + int(number) - 1)}"


def test_a_segment_contains_its_time_and_knows_its_neighbours() -> None:
    berlin = zones.zone("Europe/Berlin")
    summer = berlin.segment(seconds("2024-04-01"))
    assert summer.start == seconds("2024-03-31T01:00")
    assert (summer.before, summer.offset) == (3600, 7200)
    assert berlin.segment(summer.start - 1).end == summer.start


@pytest.mark.parametrize("name", ["Pacific/Apia", "America/Santiago", "America/New_York"])
def test_segments_are_never_cut_near_a_change_but_at_it(name: str) -> None:
    found = list(zones.zone(name).segments(seconds("1970-01-02"), seconds("2037-12-31")))
    changes = [one.start for one in found if one.before != one.offset]
    assert len(changes) > 20
    for one in found:
        near = [change for change in changes if 0 < abs(change - one.start) <= zones.NEAR]
        assert not near, "else a repeated hour would lie in two segments, and be seen in one"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "Europe/Riga",
        "America/New_York",
        "Australia/Lord_Howe",
        "Africa/Cairo",
        "America/Havana",
        "Pacific/Apia",
        "Africa/Casablanca",
        "Europe/Dublin",
        "Asia/Kathmandu",
        "UTC",
        "America/Boa_Vista",  # two changes within a week
        "Asia/Gaza",
        "Antarctica/Troll",
        "Europe/Simferopol",
        "Pacific/Kwajalein",
    ],
)
def test_segments_are_cut_at_each_change_of_the_offset(name: str) -> None:
    start, end = seconds("1970-01-02"), seconds("2037-12-31")
    zone, info = zones.zone(name), zoneinfo.ZoneInfo(name)

    def offset(second: int) -> float:
        delta = datetime.fromtimestamp(second, info).utcoffset()
        assert delta is not None
        return delta.total_seconds()

    at = start
    for segment in zone.segments(start, end):
        assert segment.start <= max(at, start + 1), "no hole before it"
        assert segment.offset == offset(max(segment.start, start))
        assert segment.offset == offset(min(segment.end, end) - 1)
        at = segment.end
    assert at > end
    for hour in range(start, end, 5 * 3600):
        assert zone.segment(hour).offset == offset(hour)


def test_utc_is_one_segment() -> None:
    utc = zones.zone("UTC")
    assert utc.segment(0) is utc.segment(seconds("2400-01-01"))


def test_an_unknown_zone_is_named_with_the_closest_one() -> None:
    with pytest.raises(zones.UnknownZone) as unknown:
        zones.zone("Europe/Viena")
    assert unknown.value.suggestion == "Europe/Vienna"


@pytest.mark.parametrize("name", sorted(zones.ABBREVIATIONS))
def test_each_place_of_an_abbreviation_uses_it(name: str) -> None:
    if name in ("CST6CDT", "EST5EDT", "MST7MDT", "PST8PDT", "MET"):
        (place,) = zones.ABBREVIATIONS[name]
        assert zones.offsets_of(place) == zones.offsets_of(name)
        return
    for place in zones.ABBREVIATIONS[name]:
        months = [datetime(2027, month, 1, tzinfo=UTC) for month in range(1, 13)]
        assert name in {at.astimezone(zones.zone(place).info).tzname() for at in months}


def test_a_suggested_zone_has_the_offset_that_the_name_states() -> None:
    for hours in range(-14, 15):
        for written in (f"GMT{hours:+d}", f"UTC{hours:+03d}:00", f"{hours:+d}"):
            if written in zoneinfo.available_timezones():
                continue
            with pytest.raises(zones.UnknownZone) as unknown:
                zones.zone(written)
            if suggestion := unknown.value.suggestion:
                assert zones.constant_offset(suggestion) == hours * 3600
