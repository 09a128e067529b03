"""The two clocks."""

from __future__ import annotations

from datetime import timedelta

from schedkit.clock import boottime, utcnow


def test_boot_time_never_goes_back() -> None:
    readings = [boottime() for _ in range(1000)]
    assert readings == sorted(readings)


def test_the_instant_shown_to_people_is_in_utc() -> None:
    assert utcnow().utcoffset() == timedelta(0)
