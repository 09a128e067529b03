"""What many ask for at once is made once."""

from __future__ import annotations

from itertools import count

from schedkit.ttl_cache import MOMENT, Momentary


def test_within_a_moment_it_is_made_once_of_each_key() -> None:
    at, made = 0.0, count()
    kept: Momentary[str, tuple[str, int]] = Momentary(lambda key: (key, next(made)), lambda: at)
    assert {kept.of("a") for _ in range(100)} == {("a", 0)}
    assert kept.of("b") == ("b", 1)
    at += 0.9 * MOMENT
    assert kept.of("a") == ("a", 0)


def test_past_its_moment_it_is_made_anew() -> None:
    at, made = 0.0, count()
    kept: Momentary[str, int] = Momentary(lambda _: next(made), lambda: at)
    assert kept.of("a") == 0
    at += MOMENT
    assert [kept.of("a"), kept.of("a")] == [1, 1]
