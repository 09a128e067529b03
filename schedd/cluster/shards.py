"""The shards of one tenure: taken and released as the leader's map says, proved by their rows.

    rows + map + own view ──plan──→ lost     the row has another owner or epoch: drop
                                    leaving  ours, but not by the map: drop, wait, release
                                    wanted   ours by the map, or by a row unknown here: take

Each step reads all rows, so the same three actions correct any earlier problem: a lost answer, a
restored database, a moved job that raised the epoch. A row that is ours unexpectedly is taken over
again first. If the map names another member, the next step releases it.

Invariants
- A shard is dropped before its transactions are awaited, and released after. No new decision is
  made for a shard that leaves.
- A tenure belongs to one timeline of the database. On another one, a new tenure takes all shards.
- While the earlier owner still holds a shard, the member retries soon (50 ms, growing to 1 s). A
  handover takes milliseconds; fencing may take longer.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from schedd.cluster.tenure import LiveTenure, TenureOver
from schedd.core.ids import Epoch, ShardId, TenureId
from schedd.core.runs.model import ShardRow
from schedd.store.cluster.membership import MembershipStore
from schedkit import failpoints
from schedkit.backoff import Backoff
from schedkit.records import dataclass
from schedkit.tasks import Loop

log = logging.getLogger(__name__)

CHECK_EVERY: Final = 1.0

BEFORE_TAKE = failpoints.awaited("take.before")
AFTER_TAKE = failpoints.awaited("take.after_commit")
AFTER_RELEASE = failpoints.awaited("release.after_commit")


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """The changes of one step, by shard. `wanted`: the epochs seen in the rows."""

    lost: frozenset[ShardId]
    leaving: frozenset[ShardId]
    wanted: dict[ShardId, Epoch]


def plan(
    tenure: TenureId,
    rows: Iterable[ShardRow],
    mine: Collection[ShardId],
    owned: Mapping[ShardId, Epoch],
) -> ShardPlan:
    """Compare the rows with the map (`mine`) and with this tenure's view (`owned`)."""
    rows = list(rows)
    held = {row.id for row in rows if row.owner == tenure and owned.get(row.id) == row.epoch}
    return ShardPlan(
        lost=frozenset(owned.keys() - held),
        leaving=frozenset(held.difference(mine)),
        wanted={
            row.id: row.epoch
            for row in rows
            if row.id not in held and (row.id in mine or row.owner == tenure)
        },
    )


class Shards:
    def __init__(self, store: MembershipStore, live: LiveTenure) -> None:
        self._store = store
        self._live = live
        self._ownership = live.ownership
        self._asking = Backoff(initial=0.05, maximum=1.0)
        backoff = Backoff(initial=0.1, maximum=1.0)
        self.loop = Loop("shards", self.step, interval=CHECK_EVERY, backoff=backoff)
        live.ownership.listen(self._changed)

    def wake(self) -> None:
        self._asking.reset()
        self.loop.wake()

    async def step(self) -> float | None:
        """Follow the map once. Return seconds until the next try if a shard can't be taken yet.
        Raises TenureOver: the tenure may take no shards any more.
        """
        ownership = self._ownership
        rows, unfenced = await self._store.read_shards_of(ownership.tenure)
        if not self._live.trusted():
            return None
        mine = self._live.view().map.shards_of_tenure(ownership.tenure)
        todo = plan(ownership.tenure, rows, mine, ownership.epochs)
        ownership.drop(todo.lost)
        await self._release(todo.leaving)
        taken = await self._take_over_shards(todo.wanted) if todo.wanted else 0
        if not unfenced:  # it could never own shards
            raise TenureOver(
                "the leader has recorded this member as lost; the member joins the cluster again"
            )
        if taken < len(todo.wanted):
            return self._asking.next()
        self._asking.reset()
        return None

    def _changed(self, _gained: frozenset[ShardId], dropped: frozenset[ShardId]) -> None:
        if dropped:
            self.loop.wake()

    async def _release(self, shards: Collection[ShardId]) -> None:
        if not shards:
            return
        claim = self._ownership.claim(shards)
        self._ownership.drop(shards)
        await self._ownership.wait_for_transactions(shards)
        await self._store.release(claim)
        await AFTER_RELEASE()
        log.info("%d shards released", len(shards))

    async def _take_over_shards(self, seen: dict[ShardId, Epoch]) -> int:
        await BEFORE_TAKE()
        if not self._live.trusted():
            return 0
        ownership = self._ownership
        taken = await self._store.take_shards(ownership.tenure, ownership.timeline, seen)
        await AFTER_TAKE()
        ownership.gain(taken)
        if taken:
            log.info("%d shards taken over, %d not yet free", len(taken), len(seen) - len(taken))
        return len(taken)
