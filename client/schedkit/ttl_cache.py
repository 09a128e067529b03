"""A cache with a time to live (TTL) for values that many callers read, such as metrics."""

import time
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

TTL: Final = 1.0
"""Seconds: shorter than the interval of any reader of metrics."""


class TtlCache(Generic[K, V]):
    """Caches `make(key)` for TTL. For few keys only: each value is kept until it is replaced.
    `now`: returns seconds of a clock that doesn't go back.
    """

    def __init__(self, make: Callable[[K], V], now: Callable[[], float] = time.monotonic) -> None:
        self._make, self._now = make, now
        self._made: dict[K, tuple[float, V]] = {}

    def get(self, key: K) -> V:
        """Return the value, computed again if it is older than TTL."""
        kept = self._made.get(key)
        if kept is None or self._now() >= kept[0] + TTL:
            kept = self._made[key] = (self._now(), self._make(key))
        return kept[1]
