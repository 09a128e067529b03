"""What is due when: a heap of keys by instant, each key at most once.

Owners keep their near future in it: timers by due instant, retrying runs by the end of their
back-off. Putting a key again moves it; putting it where it is costs nothing, and what was moved or
forgotten leaves no more behind than half of the heap.
"""

import heapq
from collections.abc import Hashable, Iterator
from datetime import datetime
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_SLACK = 1_000


class Agenda(Generic[K, V]):
    """Values by key, in order of their instants."""

    def __init__(self) -> None:
        self._heap: list[tuple[datetime, int, K]] = []
        self._entries: dict[K, tuple[datetime, int, V]] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def put(self, key: K, at: datetime, value: V) -> None:
        """Have `value` come up at `at`; an earlier entry of the key is gone."""
        known = self._entries.get(key)
        if known is not None and known[0] == at:
            self._entries[key] = (at, known[1], value)
            return
        self._count += 1
        self._entries[key] = (at, self._count, value)
        heapq.heappush(self._heap, (at, self._count, key))
        if len(self._heap) > 2 * len(self._entries) + _SLACK:
            self._heap = [(at, count, key) for key, (at, count, _) in self._entries.items()]
            heapq.heapify(self._heap)

    def discard(self, key: K) -> V | None:
        """Forget the key; gives its value, None if it wasn't there."""
        entry = self._entries.pop(key, None)
        return None if entry is None else entry[2]

    def next_at(self) -> datetime | None:
        """The first instant, None when empty."""
        self._trim()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: datetime, limit: int) -> list[V]:
        """Take out what is due at `now`, soonest first, at most `limit`."""
        due: list[V] = []
        while len(due) < limit:
            self._trim()
            if not self._heap or self._heap[0][0] > now:
                break
            _, _, key = heapq.heappop(self._heap)
            due.append(self._entries.pop(key)[2])
        return due

    def values(self) -> Iterator[V]:
        """All values, in no order."""
        return (value for _, _, value in self._entries.values())

    def clear_where(self, keys: set[K]) -> None:
        """Forget these keys."""
        for key in keys:
            self._entries.pop(key, None)

    def _trim(self) -> None:
        """Drop heads that were moved or forgotten."""
        while self._heap:
            _, count, key = self._heap[0]
            entry = self._entries.get(key)
            if entry is not None and entry[1] == count:
                return
            heapq.heappop(self._heap)
