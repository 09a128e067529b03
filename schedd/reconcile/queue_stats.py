"""Statistics of owned shards, for people who watch the cluster: pools and lateness.

All jobs of a pool are in its shard (`core/runs/pools`), so one owner knows the whole pool. A
limited number of its jobs is examined, by cached definitions; of submitted runs, only waiting ones.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from schedd.core.cluster.statistics import PoolStats, capacity
from schedd.core.dispatch.placement import asked_of_worker
from schedd.core.events import QueueStatsRead
from schedd.core.ids import JobId
from schedd.core.runs.pools import PoolKey, PoolUsage
from schedd.dispatch.owner_context import OwnerContext, OwnerPart
from schedd.runtime.definition_texts import CachedDefinition
from schedd.store.reconcile.stats import StatisticsStore
from schedkit.tasks import Loop

LOOK_EVERY: Final = 15.0
"""Seconds between two readings: the usual interval of metrics scrapes."""


class QueueStatsLoop(OwnerPart):
    def __init__(self, context: OwnerContext, statistics_store: StatisticsStore) -> None:
        super().__init__(context)
        self._statistics_store = statistics_store
        self.loop = Loop("queue stats", self.step, interval=LOOK_EVERY)
        self._run_index.ownership.listen(lambda _gained, _dropped: self.loop.wake())

    async def step(self) -> None:
        """Run one round."""
        shards = sorted(self._run_index.ownership.epochs)
        stock = await self._statistics_store.read_queue_stats(shards)
        usages = await self._store.pools(stock.pools) if stock.pools else {}
        jobs = {job for each in stock.pools.values() for job in each}
        known = await self._definition_cache.newest(jobs)
        pools = tuple(self._pools(stock.pools, usages, known))
        self._emit(QueueStatsRead(pools, stock.overdue, stock.behind, stock.backfill))

    def _pools(
        self,
        pools: Mapping[PoolKey, Collection[JobId]],
        usages: Mapping[PoolKey, PoolUsage],
        known: Mapping[JobId, CachedDefinition],
    ) -> Iterator[PoolStats]:
        waiting, there = self._run_index.ready.of_pools(), self._workers.present()
        ready = [need for need in self._run_index.ready.needs if not (need.each or need.worker)]
        for key, jobs in pools.items():
            if (usage := usages.get(key)) is None:
                continue  # deleted meanwhile
            needs = [asked_of_worker(known[job].definition) for job in jobs if job in known]
            slots = capacity(there, [*needs, *(need for need in ready if need.pool == key)])
            rest = usage.running, waiting[key], usage.paused
            yield PoolStats(key, slots, usage.limit, *rest)
