"""Which shards this member owns right now, and the claims that its transactions stand on.

One value, written by the loop that follows the leader's map (`shards.py`), read by all others.
Owning here is only permission to try: every transaction proves it again by locking the shard rows
(docs/protocol-rules.md, P1.1), and tells `drop` which shards it found gone.

Each lane of the database's thread pool keeps to its own shards, so two transactions of one owner
never wait for each other's shard rows.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from schedd.core.ids import SEQUENCES, Epoch, ShardId, TenureId, Timeline, Token, token_of
from schedd.core.runs.model import Claim
from schedkit.errors import Unavailable


class Ownership:
    """The owned shards of one tenure, with their epochs, sequences and transactions in flight."""

    def __init__(self, tenure: TenureId, timeline: Timeline, lanes: int) -> None:
        self.tenure = tenure
        self.timeline = timeline
        self.lanes = lanes
        self._epochs: dict[ShardId, Epoch] = {}
        self._sequences: Counter[tuple[ShardId, Epoch]] = Counter()
        self._in_flight: dict[int, set[object]] = {lane: set() for lane in range(lanes)}
        self._ended = asyncio.Event()
        self._listeners: list[Callable[[frozenset[ShardId], frozenset[ShardId]], None]] = []

    @property
    def epochs(self) -> Mapping[ShardId, Epoch]:
        """Shard → epoch, for those owned now."""
        return MappingProxyType(self._epochs)

    def listen(self, listener: Callable[[frozenset[ShardId], frozenset[ShardId]], None]) -> None:
        """Call `listener(gained, dropped)` at each change, in the loop's thread."""
        self._listeners.append(listener)

    def gain(self, taken: Mapping[ShardId, Epoch]) -> None:
        """These shards were taken, with these new epochs."""
        self._epochs.update(taken)
        self._tell(frozenset(taken), frozenset())

    def drop(self, shards: Iterable[ShardId]) -> None:
        """Decide nothing more for these. Transactions in flight may still end: see `settle`."""
        gone = frozenset(shard for shard in shards if self._epochs.pop(shard, None) is not None)
        self._tell(frozenset(), gone)

    def _tell(self, gained: frozenset[ShardId], dropped: frozenset[ShardId]) -> None:
        if gained or dropped:
            for listener in self._listeners:
                listener(gained, dropped)

    def lane_of(self, shard: ShardId) -> int:
        """The lane that writes for this shard."""
        return shard % self.lanes

    def shards_of(self, lane: int) -> list[ShardId]:
        """The owned shards of one lane, ascending."""
        return sorted(shard for shard in self._epochs if shard % self.lanes == lane)

    def claim(self, shards: Iterable[ShardId]) -> Claim:
        """What one transaction says it owns: those of `shards` that are still owned."""
        owned = {shard: self._epochs[shard] for shard in sorted(set(shards) & set(self._epochs))}
        return Claim(self.tenure, self.timeline, owned)

    def sequencer(self, claim: Claim) -> Callable[[ShardId], Token]:
        """What gives the next fencing token of each shard of a claim.

        To be called under the shards' row locks, from their lane's thread: the rows prove that the
        claim's epochs are still the present ones, whatever was gained or dropped here meanwhile,
        and one lane a shard means that no two calls for one shard overlap. Raises ExhaustedEpoch
        when an epoch has no sequence numbers left.
        """

        def next_token(shard: ShardId) -> Token:
            at = (shard, claim.epochs[shard])
            if self._sequences[at] >= SEQUENCES:
                raise ExhaustedEpoch(shard)
            self._sequences[at] += 1
            return token_of(at[1], self._sequences[at])

        return next_token

    @contextmanager
    def in_flight(self, lane: int) -> Iterator[None]:
        """Around each transaction of a lane, so that a release can wait for it."""
        transaction = object()
        self._in_flight[lane].add(transaction)
        try:
            yield
        finally:
            self._in_flight[lane].discard(transaction)
            self._ended.set()

    async def settle(self, shards: Iterable[ShardId]) -> None:
        """Return when no transaction that may write for these shards is in flight: when those of
        now have ended, for later ones can't name what was dropped. A busy lane never rests.

        Call `drop` first. What a transaction of unknown outcome does later is no matter: the
        release raises nothing, and the next taking raises the epoch under the row's lock.
        """
        lanes = {self.lane_of(shard) for shard in shards}
        now = {lane: set(self._in_flight[lane]) for lane in lanes}
        while any(now[lane] & self._in_flight[lane] for lane in lanes):
            self._ended.clear()
            await self._ended.wait()


class ExhaustedEpoch(Unavailable):
    """The shard's epoch has no sequence numbers left: the shard has to be taken again."""

    def __init__(self, shard: ShardId) -> None:
        super().__init__(f"shard {shard} has used all sequence numbers of its epoch")
        self.shard = shard
