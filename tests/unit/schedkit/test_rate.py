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


def test_a_bare_number_has_the_readers_default_unit_or_is_rejected() -> None:
    assert parse(".5", bare="s") == (Fraction(1, 2), timedelta(seconds=1))
    with pytest.raises(
        ValueError, match="rate '100' has no time: write for example 100/s or 100/m"
    ):
        parse("100")


@pytest.mark.parametrize(
    "text", ["", "/", "100/", "/m", "-3/s", "fast", "1e3/s", "5/5", "5/w", "5/m/s", "٣/s", "5/-1s"]
)
def test_an_ambiguous_or_invalid_text_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"isn't a valid rate: write 100/s, 6/m or 90/h"):
        parse(text)


@pytest.mark.parametrize("text", ["0/s", "0.0/m", "5/0s"])
def test_a_rate_is_positive_with_a_positive_time(text: str) -> None:
    with pytest.raises(ValueError, match="give a count and a time above 0"):
        parse(text)


@given(st.integers(1, 10_000), st.integers(1, 2 * 86_400_000))
def test_a_rendered_rate_reads_as_the_same_rate(count: int, millis: int) -> None:
    assert parse(render(count, millis * MILLISECOND)) == (count, millis * MILLISECOND)


def test_rendering_omits_a_count_of_one_unit() -> None:
    assert render(100, timedelta(minutes=1)) == "100/m"
    assert render(1, timedelta(hours=24)) == "1/d"
    assert render(1, timedelta(minutes=90)) == "1/1h30m"
    assert render(1, timedelta(minutes=10)) == "1/10m"
