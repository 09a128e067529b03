"""What is due when: heaps of keys by instant, one for each class, each key at most once.

Owners keep their near future in it: timers by due instant, retrying runs by the end of their
back-off. Putting a key again moves it; putting it where it is costs nothing, and what was moved or
forgotten leaves no more behind than half of its heap.

Of what is due at once the higher class comes first, by the same rule as of what waits for a worker
(`rank.rank`): a class is worth a minute of being due. What isn't due holds nothing up.
"""

import heapq
from collections.abc import Hashable, Iterator
from datetime import datetime
from typing import Generic, TypeVar

from schedd.core.dispatch.priority_order import rank

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_SLACK = 1_000


class Agenda(Generic[K, V]):
    """Values by key, in order of their instants."""

    def __init__(self) -> None:
        self._heaps: dict[float, list[tuple[datetime, int, K]]] = {}
        self._entries: dict[K, tuple[datetime, int, V, float]] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def put(self, key: K, at: datetime, value: V, priority: float = 0) -> None:
        """Have `value` come up at `at`; an earlier entry of the key is gone."""
        known = self._entries.get(key)
        if known is not None and known[0] == at and known[3] == priority:
            self._entries[key] = (at, known[1], value, priority)
            return
        self._count += 1
        self._entries[key] = (at, self._count, value, priority)
        heap = self._heaps.setdefault(priority, [])
        heapq.heappush(heap, (at, self._count, key))
        if len(heap) > 2 * len(self._entries) + _SLACK:
            self._heaps[priority] = heap = [
                (at, count, key)
                for key, (at, count, _, its) in self._entries.items()
                if its == priority
            ]
            heapq.heapify(heap)

    def get(self, key: K) -> tuple[datetime, V] | None:
        """When it comes up, and its value; None if it isn't there."""
        entry = self._entries.get(key)
        return None if entry is None else (entry[0], entry[2])

    def discard(self, key: K) -> V | None:
        """Forget the key; gives its value, None if it wasn't there."""
        entry = self._entries.pop(key, None)
        return None if entry is None else entry[2]

    def next_at(self, above: float | None = None) -> datetime | None:
        """The first instant, of the classes above this one alone; None where there is nothing."""
        return min((at for _, at in self._heads(above)), default=None)

    def class_due(self, now: datetime, above: float | None = None) -> float | None:
        """The class of what `pop_due` takes out next; None where nothing is due."""
        heads = {priority: at for priority, at in self._heads(above) if at <= now}
        return min(heads, key=lambda its: rank(its, heads[its]), default=None)

    def pop_due(self, now: datetime, limit: int, above: float | None = None) -> list[V]:
        """Take out what is due at `now`, at most `limit`, of the classes above this one alone: by
        class and age, soonest first, and all of one class. The rest waits for the next call.
        """

        def place(priority: float) -> float:
            return rank(priority, heads[priority])

        due: list[V] = []
        before: float | None = None
        heads = {priority: at for priority, at in self._heads(above) if at <= now}
        while heads and len(due) < limit:
            first = min(heads, key=place) if len(heads) > 1 else next(iter(heads))
            if first != before and before is not None:
                break
            before = first
            _, _, key = heapq.heappop(self._heaps[first])
            due.append(self._entries.pop(key)[2])
            at = self._head(first)
            if at is not None and at <= now:
                heads[first] = at
            else:
                del heads[first]
        return due

    def values(self) -> Iterator[V]:
        """All values, in no order."""
        return (value for _, _, value, _ in self._entries.values())

    def clear_where(self, keys: set[K]) -> None:
        """Forget these keys."""
        for key in keys:
            self._entries.pop(key, None)

    def _heads(self, above: float | None) -> Iterator[tuple[float, datetime]]:
        """Each class above this one that has something, with its first instant."""
        return (
            (priority, at)
            for priority in self._heaps
            if (above is None or priority > above) and (at := self._head(priority)) is not None
        )

    def _head(self, priority: float) -> datetime | None:
        """The first instant of this class; heads that were moved or forgotten go."""
        heap = self._heaps[priority]
        while heap:
            at, count, key = heap[0]
            entry = self._entries.get(key)
            if entry is not None and entry[1] == count:
                return at
            heapq.heappop(heap)
        return None
