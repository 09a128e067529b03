"""An owner's statistics of its pools: usage, waiting runs, and slots that could run them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import cast

from schedd.core.cluster.statistics import PoolStats, QueueStats
from schedd.core.dispatch.placement import Need
from schedd.core.events import QueueStatsRead
from schedd.core.ids import JobId, ShardId
from schedd.core.jobs.definition import Match, Placement
from schedd.core.runs.model import Incarnation
from schedd.core.runs.pools import PoolKey, PoolUsage
from schedd.reconcile.queue_stats import QueueStatsLoop
from schedd.store.owner import OwnerStore
from schedd.store.reconcile.stats import StatisticsStore
from support.dispatching import SHELL, World
from support.fake_of import fake_of
from support.owner_context import owner_context
from support.runs import RecordingLine, run, worker

ETL, MAIL = PoolKey("default/etl"), PoolKey("default/mail")
ON_GPU = replace(SHELL, require=(Match("gpu", ("a100",)),))


@fake_of(OwnerStore, StatisticsStore)
@dataclass
class Rows:
    """The rows of the database."""

    stored: QueueStats
    usages: dict[PoolKey, PoolUsage] = field(default_factory=dict)
    asked: list[Sequence[ShardId]] = field(default_factory=list)

    async def read_queue_stats(self, shards: Sequence[ShardId]) -> QueueStats:
        self.asked.append(shards)
        return self.stored

    async def pools(self, pools: Collection[PoolKey]) -> dict[PoolKey, PoolUsage]:
        return {pool: self.usages[pool] for pool in pools if pool in self.usages}


def job(number: int) -> JobId:
    return run(number).job_id


async def found(world: World, rows: Rows) -> QueueStatsRead:
    reads: list[QueueStatsRead] = []
    context = owner_context(
        world.run_index,
        world.definitions,
        workers=world.workers,
        store=rows,
        emit=cast("list[object]", reads).append,
    )
    survey = QueueStatsLoop(context, cast("StatisticsStore", rows))
    await survey.step()
    [one] = reads
    return one


def attached(world: World, *workers: Incarnation) -> None:
    for one in workers:
        world.workers.granted(world.workers.attach(one, RecordingLine()), slots=0, received=0)


async def test_a_pool_has_as_many_slots_as_can_do_the_hardest_of_its_jobs() -> None:
    world = World()
    gpu = replace(worker(2, slots=2), labels={"gpu": "a100"})
    attached(world, worker(1, slots=8), gpu)
    easy, hard = job(1), job(2)
    world.definitions.jobs[hard] = ON_GPU
    rows = Rows(
        QueueStats({ETL: (easy, hard), MAIL: (easy,)}, 0, timedelta(0), 0),
        {
            ETL: PoolUsage(5, None, paused=False, running=3, recent=0),
            MAIL: PoolUsage(None, 9, paused=True, running=0, recent=0),
        },
    )
    world.run_index.ready.add([run(1), run(2)], Need("shell", pool=ETL))

    assert (await found(world, rows)).pools == (
        PoolStats(ETL, slots=2, limit=5, running=3, waiting=2, paused=False),
        PoolStats(MAIL, slots=10, limit=None, running=0, waiting=0, paused=True),
    )


async def test_a_pool_whose_jobs_match_no_worker_has_no_slots() -> None:
    world = World()
    attached(world, worker(1, slots=8))
    world.definitions.jobs[job(1)] = ON_GPU
    full = PoolUsage(5, None, paused=False, running=0, recent=0)
    rows = Rows(QueueStats({ETL: (job(1),)}, 0, timedelta(0), 0), {ETL: full})
    assert [pool.slots for pool in (await found(world, rows)).pools] == [0]


async def test_waiting_runs_count_except_those_for_one_worker_or_for_each() -> None:
    """Of submitted work there is no job to look at that would stay."""
    world = World()
    attached(world, worker(1, slots=8))
    usage = PoolUsage(None, None, paused=False, running=0, recent=0)
    rows = Rows(QueueStats({ETL: ()}, 0, timedelta(0), 0), {ETL: usage})
    world.run_index.ready.add([run(1)], Need("shell", worker="gone", pool=ETL))
    world.run_index.ready.add([run(2)], Need("shell", each=True, pool=ETL))
    world.run_index.ready.add([run(3)], Need("shell", require=ON_GPU.require, pool=MAIL))
    assert [pool.slots for pool in (await found(world, rows)).pools] == [8]
    world.run_index.ready.add([run(4)], Need("shell", require=ON_GPU.require, pool=ETL))
    assert [pool.slots for pool in (await found(world, rows)).pools] == [0]


async def test_a_drained_worker_has_no_slots_and_a_broadcast_counts_as_its_children() -> None:
    world = World()
    attached(world, worker(1, slots=8), worker(2, slots=4))
    world.workers.drained(["w1"])
    world.definitions.jobs[job(1)] = replace(SHELL, placement=Placement.BROADCAST)
    usage = PoolUsage(None, None, paused=False, running=0, recent=0)
    rows = Rows(QueueStats({ETL: (job(1),)}, 0, timedelta(0), 0), {ETL: usage})
    assert [pool.slots for pool in (await found(world, rows)).pools] == [4]


async def test_a_pool_deleted_meanwhile_is_left_out_and_the_backlog_is_reported() -> None:
    world = World()
    rows = Rows(QueueStats({ETL: ()}, 7, timedelta(seconds=90), 40))
    assert await found(world, rows) == QueueStatsRead((), 7, timedelta(seconds=90), 40)
    assert rows.asked == [sorted(world.run_index.ownership.epochs)]
