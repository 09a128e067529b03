"""Durations as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedkit.text.duration import parse, render


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("250ms", timedelta(milliseconds=250)),
        ("90s", timedelta(seconds=90)),
        ("5m", timedelta(minutes=5)),
        ("1h30m", timedelta(hours=1, minutes=30)),
        ("2d", timedelta(days=2)),
        ("1d2h3m4s5ms", timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=5)),
        ("0s", timedelta(0)),
        (" 10s ", timedelta(seconds=10)),
    ],
)
def test_a_text_with_units_is_that_duration(text: str, duration: timedelta) -> None:
    assert parse(text) == duration


def test_a_bare_number_is_rejected_because_its_unit_is_unknown() -> None:
    with pytest.raises(ValueError, match="'90' needs a unit, such as 90s"):
        parse("90")


@pytest.mark.parametrize(
    "text",
    ["", " ", "-5s", "1.5h", "5 m", "30m1h", "1h1h", "1y", "s", "1H", "٣s", "1h30", "5s\n5s"],
)
def test_an_ambiguous_or_invalid_text_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"valid duration|needs a unit"):
        parse(text)


def test_a_duration_longer_than_python_holds_is_rejected() -> None:
    with pytest.raises(ValueError, match="too long"):
        parse("999999999999999d")


@given(st.integers(min_value=0, max_value=10**14))
def test_a_rendered_duration_reads_as_the_same_duration(millis: int) -> None:
    duration = timedelta(milliseconds=millis)
    assert parse(render(duration)) == duration


def test_rendering_uses_the_greatest_units_that_fit() -> None:
    assert render(timedelta(seconds=5400)) == "1h30m"
    assert render(timedelta(0)) == "0s"


def test_a_negative_duration_is_never_rendered() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        render(timedelta(seconds=-1))
