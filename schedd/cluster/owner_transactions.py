"""Transactions of an owner's loops: grouped by lane, counted while in flight.

    items ──group by lane──→ one transaction a lane, all lanes at once ──→ answers

An owner's transaction has shards of one lane only (see `Ownership`). Shards that a transaction
finds lost are dropped here, so that no loop has to. After any wait, the trust window is checked
before the first effect. If trust ends between this check and COMMIT, the shard rows stop the write.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

from schedd.cluster.ownership import ExhaustedEpoch, Ownership
from schedd.core.events import Emit, ShardsLost
from schedd.core.ids import ShardId
from schedd.core.runs.model import Claim, OfShard
from schedkit.errors import Unavailable
from schedkit.records import dataclass

T = TypeVar("T", bound=OfShard)
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Failed(Generic[T]):
    """A lane's transaction that failed, or whose outcome is unknown."""

    items: list[T]
    error: Unavailable


class Transactor:
    def __init__(self, ownership: Ownership, trusted: Callable[[], bool], emit: Emit) -> None:
        self.ownership = ownership
        self.trusted = trusted
        """Whether this tenure may begin a transaction now."""
        self._emit = emit

    async def by_lane(
        self, items: Iterable[T], write: Callable[[Claim, Sequence[T]], Awaitable[A]]
    ) -> list[A | Failed[T]]:
        """Write the items of each lane in one transaction, all lanes at once. Return their
        answers. Items of shards that are no longer owned are left out. If a lane's database is
        unavailable, its answer is `Failed` with its items. The other lanes are written.
        """
        lanes: dict[int, list[T]] = defaultdict(list)
        epochs, count = self.ownership.epochs, self.ownership.lanes
        for item in items:
            if (shard := item.shard) in epochs:
                lanes[shard % count].append(item)
        if len(lanes) == 1:  # no task for it
            [(only, batch)] = lanes.items()
            return [await self._write(only, batch, write)]
        async with asyncio.TaskGroup() as group:
            started = [
                group.create_task(self._write(lane, batch, write), name=f"lane {lane}")
                for lane, batch in lanes.items()
            ]
        return [task.result() for task in started]

    async def rows(
        self, items: Iterable[T], write: Callable[[Claim, Sequence[T]], Awaitable[Sequence[A]]]
    ) -> list[A]:
        """Write like `by_lane`, and return the rows of all lanes. Raises the first lane's error."""
        answers = await self.by_lane(items, write)
        found: list[A] = []
        for answer in answers:
            if isinstance(answer, Failed):
                raise answer.error
            found.extend(answer)
        return found

    def lost(self, shards: frozenset[ShardId], step: str) -> None:
        if shards:
            self._emit(ShardsLost(shards, step))
            self.ownership.drop(shards)

    async def _write(
        self, lane: int, batch: list[T], write: Callable[[Claim, Sequence[T]], Awaitable[A]]
    ) -> A | Failed[T]:
        if not self.trusted():
            return Failed(
                batch,
                Unavailable(
                    "nothing was written, because this member's lease in etcd may have expired:"
                    " another member may own its shards now"
                ),
            )
        with self.ownership.in_flight(lane):
            try:
                return await write(self.ownership.claim({item.shard for item in batch}), batch)
            except ExhaustedEpoch as exhausted:
                self.lost(frozenset({exhausted.shard}), "sequence numbers")
                return Failed(batch, exhausted)
            except Unavailable as error:
                return Failed(batch, error)
