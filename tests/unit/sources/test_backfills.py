"""The loop that makes the runs of backfills: who is asked, when, and what becomes of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from schedd.core.ids import BackfillId, Id, ShardId
from schedd.core.runs.model import Claim, LiveRun
from schedd.core.timers.backfill import OpenBackfill
from schedd.dispatch.run_index import RunIndex
from schedd.sources import backfills
from schedd.sources.backfills import LINGERS, WHILE_FED, WITHOUT_WAKE_UP, Backfills
from schedd.store.owner import OwnerStore
from schedkit.errors import Unavailable
from support.fake_of import fake_of
from support.owner_context import owner_context
from support.runs import owning, run

OPEN = OpenBackfill(BackfillId(Id.from_int(1)), run(1).job_id, ShardId(0))
ELSEWHERE = OpenBackfill(BackfillId(Id.from_int(2)), run(2).job_id, ShardId(1))


@fake_of(OwnerStore)
@dataclass
class Rows:
    """Backfills with room, and what is made of them."""

    open: list[OpenBackfill] = field(default_factory=list)
    makes: list[LiveRun] = field(default_factory=list)
    looks: list[Sequence[ShardId]] = field(default_factory=list)
    fed: list[OpenBackfill] = field(default_factory=list)
    away: bool = False

    async def backfills(self, shards: Sequence[ShardId]) -> list[OpenBackfill]:
        self.looks.append(shards)
        return self.open

    async def feed(self, claim: Claim, wanted: Sequence[OpenBackfill]) -> list[LiveRun]:
        if self.away:
            raise Unavailable("the database is away")
        self.fed += wanted
        return self.makes


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows = Rows()
        self.run_index = RunIndex(owning(0))
        self.loop = Backfills(owner_context(self.run_index, store=self.rows))
        self.notifications = 0
        self.now = 100.0
        self.loop.on_ready(self.ready)
        monkeypatch.setattr(backfills, "boottime", lambda: self.now)

    def ready(self) -> None:
        self.notifications += 1

    async def step(self) -> float:
        pause = await self.loop.step()
        self.now += pause
        return pause


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


async def test_runs_of_a_backfill_enter_the_run_index_and_dispatch_is_notified(
    world: World,
) -> None:
    world.rows.open, world.rows.makes = [OPEN], [run(1)]
    await world.step()

    assert world.rows.fed == [OPEN]
    assert [one.key for one in world.run_index.ready] == [run(1).key]
    assert world.notifications == 1


async def test_another_members_backfill_is_left_to_it(world: World) -> None:
    world.rows.open = [ELSEWHERE]
    await world.step()

    assert (world.rows.fed, world.notifications) == ([], 0)


async def test_backfills_are_checked_often_while_one_is_open_and_for_a_while_after(
    world: World,
) -> None:
    assert await world.step() == WITHOUT_WAKE_UP
    world.rows.open = [OPEN]
    assert await world.step() == pytest.approx(WHILE_FED)

    world.rows.open = []
    pauses = [await world.step() for _ in range(LINGERS)]
    assert pauses == [*[pytest.approx(WHILE_FED)] * (LINGERS - 1), WITHOUT_WAKE_UP]


async def test_wake_ups_of_other_jobs_cost_no_read_each(world: World) -> None:
    await world.loop.step()
    for _ in range(10):
        world.now += WHILE_FED / 100
        assert 0 < await world.loop.step() < WHILE_FED

    assert len(world.rows.looks) == 1


async def test_an_unavailable_database_is_reported_to_the_loop_which_retries(world: World) -> None:
    world.rows.open, world.rows.away = [OPEN], True

    with pytest.raises(Unavailable):
        await world.step()
