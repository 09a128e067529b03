"""Rates as people write them."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedkit.text.rate import parse, render

MILLISECOND = timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100/s", (100, timedelta(seconds=1))),
        ("100/m", (100, timedelta(minutes=1))),
        ("90/h", (90, timedelta(hours=1))),
        ("1/d", (1, timedelta(days=1))),
        ("3/30s", (3, timedelta(seconds=30))),
        ("1/1h30m", (1, timedelta(minutes=90))),
        (" 5 / m ", (5, timedelta(minutes=1))),
        ("2.5/s", (Fraction(5, 2), timedelta(seconds=1))),
    ],
)
def test_a_count_and_a_time_are_that_rate(text: str, rate: tuple[Fraction, timedelta]) -> None:
    assert parse(text) == rate


def test_a_bare_number_has_the_unit_that_its_reader_says_or_is_refused() -> None:
    assert parse(".5", bare="s") == (Fraction(1, 2), timedelta(seconds=1))
    with pytest.raises(ValueError, match="rate '100' needs a time, such as 100/s or 100/m"):
        parse("100")


@pytest.mark.parametrize(
    "text", ["", "/", "100/", "/m", "-3/s", "fast", "1e3/s", "5/5", "5/w", "5/m/s", "٣/s", "5/-1s"]
)
def test_what_has_two_readings_or_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"isn't a valid rate: write 100/s, 6/m or 90/h"):
        parse(text)


@pytest.mark.parametrize("text", ["0/s", "0.0/m", "5/0s"])
def test_a_rate_is_more_than_nothing_in_some_time(text: str) -> None:
    with pytest.raises(ValueError, match="must be more than 0"):
        parse(text)


@given(st.integers(1, 10_000), st.integers(1, 2 * 86_400_000))
def test_what_is_rendered_reads_as_the_same_rate(count: int, millis: int) -> None:
    assert parse(render(count, millis * MILLISECOND)) == (count, millis * MILLISECOND)


def test_rendering_names_a_unit_alone_where_it_is_one() -> None:
    assert render(100, timedelta(minutes=1)) == "100/m"
    assert render(1, timedelta(hours=24)) == "1/d"
    assert render(1, timedelta(minutes=90)) == "1/1h30m"
    assert render(1, timedelta(minutes=10)) == "1/10m"
