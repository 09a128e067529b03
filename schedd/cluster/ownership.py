"""The shards that this member owns now, and the claims of its transactions.

One value, written by the loop that follows the leader's map (`shards.py`) and read by all others.
Ownership here is only permission to try. Every transaction proves it by locking the shard rows
(docs/protocol-rules.md, P1.1), and passes the shards that it finds lost to `drop`.

Each lane of the database's thread pool has its own shards. So two transactions of one owner never
wait for each other's shard rows.
"""

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
        self.epochs: Mapping[ShardId, Epoch] = MappingProxyType(self._epochs)
        """A view of the epoch of each shard that is owned now."""
        self._sequences: Counter[tuple[ShardId, Epoch]] = Counter()
        self._in_flight: dict[int, set[object]] = {lane: set() for lane in range(lanes)}
        self._ended = asyncio.Event()
        self._listeners: list[Callable[[frozenset[ShardId], frozenset[ShardId]], None]] = []

    def listen(self, listener: Callable[[frozenset[ShardId], frozenset[ShardId]], None]) -> None:
        """Call `listener(gained, dropped)` at each change, in the loop's thread."""
        self._listeners.append(listener)

    def gain(self, taken: Mapping[ShardId, Epoch]) -> None:
        self._epochs.update(taken)
        self._notify_listeners(frozenset(taken), frozenset())

    def drop(self, shards: Iterable[ShardId]) -> None:
        """Decide nothing more for these shards. See `wait_for_transactions` for those in flight."""
        gone = frozenset(shard for shard in shards if self._epochs.pop(shard, None) is not None)
        self._notify_listeners(frozenset(), gone)

    def _notify_listeners(self, gained: frozenset[ShardId], dropped: frozenset[ShardId]) -> None:
        if gained or dropped:
            for listener in self._listeners:
                listener(gained, dropped)

    def lane_of(self, shard: ShardId) -> int:
        return shard % self.lanes

    def claim(self, shards: Iterable[ShardId]) -> Claim:
        """Return the claim of one transaction: those of `shards` that are still owned."""
        owned = {shard: self._epochs[shard] for shard in sorted(set(shards) & set(self._epochs))}
        return Claim(self.tenure, self.timeline, owned)

    def sequencer(self, claim: Claim) -> Callable[[ShardId], Token]:
        """Return a function that gives the next fencing token of each shard of the claim.

        Call that function under the shards' row locks, in the thread of their lane. The row locks
        prove that the claim's epochs are current, even if shards were gained or dropped here
        meanwhile. Each shard has one lane, so two calls for one shard never overlap. The function
        raises ExhaustedEpoch when an epoch has no sequence numbers left.
        """
        ats = {shard: (shard, epoch) for shard, epoch in claim.epochs.items()}

        def next_token(shard: ShardId) -> Token:
            at = ats[shard]
            sequence = self._sequences[at] + 1
            if sequence > SEQUENCES:
                raise ExhaustedEpoch(shard)
            self._sequences[at] = sequence
            return token_of(at[1], sequence)

        return next_token

    def is_busy(self, lane: int) -> bool:
        """Return whether a transaction of the lane is in flight: another one would wait for it."""
        return bool(self._in_flight[lane])

    @contextmanager
    def in_flight(self, lane: int) -> Iterator[None]:
        """Count a transaction of the lane while it runs, so that a release can wait for it."""
        transaction = object()
        self._in_flight[lane].add(transaction)
        try:
            yield
        finally:
            self._in_flight[lane].discard(transaction)
            self._ended.set()

    async def wait_for_transactions(self, shards: Iterable[ShardId]) -> None:
        """Wait until no transaction that may write for these shards is in flight.

        Call `drop` first: later transactions can't name dropped shards. So it is enough to wait for
        the transactions that are in flight now; a busy lane always has some. A transaction of
        unknown outcome may still commit later. That does no harm: a release doesn't raise the
        epoch, and the next takeover raises it under the row's lock.
        """
        lanes = {self.lane_of(shard) for shard in shards}
        now = {lane: set(self._in_flight[lane]) for lane in lanes}
        while any(now[lane] & self._in_flight[lane] for lane in lanes):
            self._ended.clear()
            await self._ended.wait()


class ExhaustedEpoch(Unavailable):
    """The shard's epoch has no sequence numbers left: the shard has to be taken again."""

    def __init__(self, shard: ShardId) -> None:
        super().__init__(f"shard {shard} has used all fencing tokens of its epoch")
        self.shard = shard
