"""An index by due time: one heap per priority class, each key at most once.

Owners keep timers in it by due time, and retrying runs by the end of their backoff.

Invariants
- Values that are put together have one entry in a heap, however many they are.
- Putting a key again moves it. Putting it alone at the same place costs nothing.
- At most about half of the keys in heaps are stale (moved or discarded); then all are rebuilt.
- Due entries come out by the order of the ready queue (`priority_order.rank`): one class higher is
  worth one minute of age. Entries that aren't due block nothing.
"""

import heapq
from collections.abc import Collection, Hashable, Iterator, KeysView, Sequence
from datetime import UTC, datetime
from itertools import repeat
from operator import itemgetter
from typing import Final, Generic, TypeVar

from schedd.core.dispatch.priority_order import rank

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_SLACK = 1_000
NEVER: Final = datetime.max.replace(tzinfo=UTC)
KEPT: Final = 0
"""Number of an entry that isn't in a heap."""


class DueIndex(Generic[K, V]):
    """Values by key, in order of their due times."""

    def __init__(self) -> None:
        self._heaps: dict[float, list[tuple[datetime, int, list[K]]]] = {}
        """Keys of one entry are in reverse: the first is popped from the end."""
        self._entries: dict[K, tuple[datetime, int, V, float]] = {}
        self._count = 0
        self._queued = 0
        """Number of keys in heaps, stale ones too."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def put(self, key: K, at: datetime, value: V, priority: float = 0) -> None:
        """Add `value`, due at `at`, and replace the key's earlier entry."""
        known = self._entries.get(key)
        if known is not None and known[0] == at and known[3] == priority and known[1] != KEPT:
            self._entries[key] = (at, known[1], value, priority)
        else:
            self.put_all([key], at, [value], priority)

    def put_all(
        self, keys: Sequence[K], at: datetime, values: Sequence[V], priority: float = 0
    ) -> None:
        """Add values with the same due time, in this order, and replace those of their keys."""
        self._count += 1
        entries = zip(repeat(at), repeat(self._count), values, repeat(priority))
        self._entries.update(zip(keys, entries, strict=True))
        heapq.heappush(self._heaps.setdefault(priority, []), (at, self._count, [*reversed(keys)]))
        self._queued += len(keys)
        if self._queued > 2 * len(self._entries) + _SLACK:
            self._rebuild()

    def keep_all(self, keys: Sequence[K], values: Sequence[V]) -> None:
        """Add values that don't come up, and replace the earlier entries of their keys."""
        entries = zip(repeat(NEVER), repeat(KEPT), values, repeat(0.0))
        self._entries.update(zip(keys, entries, strict=True))

    def get(self, key: K) -> tuple[datetime, V] | None:
        """Return the key's due time and value; None: the key isn't in the index."""
        entry = self._entries.get(key)
        return None if entry is None else (entry[0], entry[2])

    def discard(self, key: K) -> V | None:
        """Remove the key and return its value; None: the key isn't in the index."""
        entry = self._entries.pop(key, None)
        return None if entry is None else entry[2]

    def next_at(self, above: float | None = None) -> datetime | None:
        """Return the first due time, only of classes above `above`; None: there is no entry."""
        return min((at for _, at in self._heads(above)), default=None)

    def class_due(self, now: datetime, above: float | None = None) -> float | None:
        """Return the class of the next entry of `pop_due`; None: nothing is due."""
        heads = {priority: at for priority, at in self._heads(above) if at <= now}
        return min(heads, key=lambda its: rank(its, heads[its]), default=None)

    def pop_due(self, now: datetime, limit: int, above: float | None = None) -> list[V]:
        """Remove and return at most `limit` values that are due at `now`, only of classes above
        `above`. All are of the class that is first by rank, soonest first. Other classes follow in
        later calls.
        """
        heads = {priority: at for priority, at in self._heads(above) if at <= now}
        if not heads:
            return []
        first = min(heads, key=lambda its: rank(its, heads[its]))
        others = min((rank(its, at) for its, at in heads.items() if its != first), default=None)
        due: list[V] = []
        heap, entries = self._heaps[first], self._entries
        while heap and len(due) < limit:
            at, count, keys = heap[0]
            if at > now or (others is not None and rank(first, at) > others):
                break
            before = len(keys)
            while keys and len(due) < limit:
                key = keys.pop()
                entry = entries.get(key)
                if entry is not None and entry[1] == count:
                    del entries[key]
                    due.append(entry[2])
            self._queued -= before - len(keys)
            if not keys:
                heapq.heappop(heap)
        return due

    def keys(self) -> KeysView[K]:
        return self._entries.keys()

    def missing(self, keys: set[K]) -> set[K]:
        """Return those of these keys that aren't in the index."""
        return keys.difference(self._entries)

    def values(self) -> list[V]:
        """Return all values, in no order."""
        return [*map(itemgetter(2), self._entries.values())]

    def clear_where(self, keys: Collection[K]) -> None:
        for key in keys:
            self._entries.pop(key, None)

    def _rebuild(self) -> None:
        """Build the heaps without stale keys."""
        alike: dict[tuple[float, datetime, int], list[K]] = {}
        for key, (at, count, _, its) in reversed(self._entries.items()):
            if count != KEPT:
                alike.setdefault((its, at, count), []).append(key)
        self._heaps = {}
        for (its, at, count), keys in alike.items():
            self._heaps.setdefault(its, []).append((at, count, keys))
        for heap in self._heaps.values():
            heapq.heapify(heap)
        self._queued = sum(map(len, alike.values()))

    def _heads(self, above: float | None) -> Iterator[tuple[float, datetime]]:
        """Return the non-empty classes above `above`, each with its first due time."""
        return (
            (priority, at)
            for priority in self._heaps
            if (above is None or priority > above) and (at := self._head(priority)) is not None
        )

    def _head(self, priority: float) -> datetime | None:
        """Return the first due time of a class; None: it is empty. Stale heads are removed."""
        heap = self._heaps[priority]
        while heap:
            at, count, keys = heap[0]
            while keys:
                entry = self._entries.get(keys[-1])
                if entry is not None and entry[1] == count:
                    return at
                keys.pop()
                self._queued -= 1
            heapq.heappop(heap)
        return None
