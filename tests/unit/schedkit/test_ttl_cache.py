"""Values that are kept until their time to live ends."""

from __future__ import annotations

from itertools import count

from schedkit.ttl_cache import TTL, TtlCache


def test_a_value_is_made_once_within_its_ttl() -> None:
    at, made = 0.0, count()
    kept: TtlCache[str, tuple[str, int]] = TtlCache(lambda key: (key, next(made)), lambda: at)
    assert {kept.get("a") for _ in range(100)} == {("a", 0)}
    assert kept.get("b") == ("b", 1)
    at += 0.9 * TTL
    assert kept.get("a") == ("a", 0)


def test_an_expired_value_is_made_again() -> None:
    at, made = 0.0, count()
    kept: TtlCache[str, int] = TtlCache(lambda _: next(made), lambda: at)
    assert kept.get("a") == 0
    at += TTL
    assert [kept.get("a"), kept.get("a")] == [1, 1]
