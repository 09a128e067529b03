"""Release items at a limited rate, in turn by host.

    item ─▶ none waits, and burst left? ─▶ released at once
              no: waits ─▶ rate × TICK of them each TICK, the oldest of each host in turn

A host with many items delays its own items only.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from schedkit.clock import boottime

T = TypeVar("T")

TICK: Final = 0.02
FREE_A_TICK: Final = 100
"""Items released in one tick that don't count against the rate: more would block the loop."""


class LimitedTurns(Generic[T]):
    """The waiting items of one kind; they are distinct.

    `rate`: items a second. `burst`: items at once after a quiet time. `release` is called with each
    item that waited, and returns whether that item counts against the rate.
    """

    def __init__(self, rate: float, burst: int, release: Callable[[T], bool]) -> None:
        self._rate, self._most_burst, self._release = rate, burst, release
        self._by_host: OrderedDict[str, dict[T, None]] = OrderedDict()
        """By host, the host whose turn is next first; each in order of arrival."""
        self._count = 0
        self._burst, self._counted_at = float(burst), boottime()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return self._count

    def take_burst(self) -> bool:
        """Return whether an item may go at once; it then counts against the burst."""
        if self._count:
            return False
        now = boottime()
        self._burst = min(self._most_burst, self._burst + (now - self._counted_at) * self._rate)
        self._counted_at = now
        if self._burst < 1:
            return False
        self._burst -= 1
        return True

    def add(self, host: str, item: T) -> None:
        self._by_host.setdefault(host, {})[item] = None
        self._count += 1
        if self._timer is None:
            self._set_timer()

    def discard(self, host: str, item: T) -> None:
        """Remove an item, if it still waits."""
        if item in (waiting := self._by_host.get(host, {})):
            self._remove(host, waiting, item)

    def displace(self, host: str) -> T | None:
        """Remove and return the newest item of the host that has most of them, in favor of an item
        of this host. None: no other host would still have as many items as this one.
        """
        if self._count == len(self._by_host):  # one of each
            return None
        most = max(self._by_host, key=lambda each: len(self._by_host[each]))
        waiting = self._by_host[most]
        if len(waiting) <= len(self._by_host.get(host, {})) + 1:
            return None
        newest = next(reversed(waiting))
        self._remove(most, waiting, newest)
        return newest

    def clear(self) -> None:
        """Remove all items, unreleased."""
        self._by_host.clear()
        self._count = 0

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK, self._release_some)

    def _release_some(self) -> None:
        self._timer = None
        counted, free = round(self._rate * TICK), FREE_A_TICK
        try:
            while self._count and counted and free:
                if self._release(self._pop_next()):
                    counted -= 1
                else:
                    free -= 1
        finally:
            self._counted_at = boottime()  # these items took the rate of this time
            if self._count:
                self._set_timer()

    def _pop_next(self) -> T:
        host, waiting = next(iter(self._by_host.items()))
        item = next(iter(waiting))
        self._remove(host, waiting, item)
        if host in self._by_host:
            self._by_host.move_to_end(host)
        return item

    def _remove(self, host: str, waiting: dict[T, None], item: T) -> None:
        del waiting[item]
        self._count -= 1
        if not waiting:
            del self._by_host[host]
