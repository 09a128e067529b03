"""The loop that makes the runs of redrives: calls, policies and wake-ups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from schedd.core.ids import Id, JobId, RedriveId, ShardId
from schedd.core.jobs.definition import Overlap
from schedd.core.runs.model import Claim, LiveRun
from schedd.core.runs.redrive import OpenRedrive, RedriveLine
from schedd.dispatch.run_index import RunIndex
from schedd.sources.redrives import WHILE_FED, WITHOUT_WAKE_UP, RedriveLoop
from schedd.store.owner import OwnerStore
from schedkit.errors import Unavailable
from support.dispatching import SHELL, Definitions
from support.fake_of import fake_of
from support.owner_context import owner_context
from support.runs import owning, run

ETL, PING = run(1).job_id, run(2).job_id
OPEN = OpenRedrive(RedriveId(Id.from_int(1)), ShardId(0), (ETL, PING))
ELSEWHERE = OpenRedrive(RedriveId(Id.from_int(2)), ShardId(1), (ETL,))


@fake_of(OwnerStore)
@dataclass
class Rows:
    """Redrives that are open, and what is made of them."""

    open: list[OpenRedrive] = field(default_factory=list)
    makes: list[LiveRun] = field(default_factory=list)
    looks: list[Sequence[ShardId]] = field(default_factory=list)
    fed: list[OpenRedrive] = field(default_factory=list)
    lines: Mapping[JobId, Overlap | None] = field(default_factory=dict)
    claim: Claim | None = None
    away: bool = False

    async def redrives(self, shards: Sequence[ShardId]) -> list[OpenRedrive]:
        self.looks.append(shards)
        return self.open

    async def redrive(
        self,
        claim: Claim,
        wanted: Sequence[OpenRedrive],
        lines: Mapping[JobId, Overlap | None],
    ) -> list[LiveRun]:
        if self.away:
            raise Unavailable("the database is away")
        self.fed += wanted
        self.lines, self.claim = lines, claim
        return self.makes


@dataclass
class RecordedWakeUps:
    shards: list[ShardId] = field(default_factory=list)

    def runs_ready(self, shards: Sequence[ShardId]) -> None:
        self.shards += shards


class World:
    def __init__(self, *shards: int) -> None:
        self.rows, self.wake_ups = Rows(), RecordedWakeUps()
        self.definitions = Definitions(SHELL)
        self.run_index = RunIndex(owning(*shards))
        self.loop = RedriveLoop(
            owner_context(self.run_index, self.definitions, store=self.rows, wake_ups=self.wake_ups)
        )


@pytest.fixture
def world() -> World:
    return World(0)


async def test_the_owners_of_redriven_runs_are_woken_also_on_other_members(world: World) -> None:
    world.rows.open = [OPEN]
    world.rows.makes = [run(1, shard=7), run(2, shard=3), run(3, shard=7)]
    await world.loop.step()

    assert world.rows.fed == [OPEN]
    assert world.wake_ups.shards == [3, 7]
    assert not list(world.run_index.ready), "their owners find them, this one if they are its own"


async def test_redriven_runs_are_made_under_the_claim_of_the_redrives_shard(world: World) -> None:
    world.rows.open = [OPEN]
    await world.loop.step()

    assert world.rows.looks == [[0]]
    assert world.rows.claim is not None
    assert set(world.rows.claim.epochs) == {0}


async def test_redriven_runs_are_buffered_except_of_jobs_that_allow_overlap(world: World) -> None:
    world.definitions.jobs[ETL] = replace(SHELL, overlap=Overlap.SKIP)
    world.rows.open = [OPEN]
    await world.loop.step()

    assert world.rows.lines == {
        ETL: RedriveLine(1, Overlap.BUFFER_ALL, 1),
        PING: RedriveLine(1, None, None),
    }


async def test_another_members_redrive_is_left_to_it(world: World) -> None:
    world.rows.open = [ELSEWHERE]
    await world.loop.step()

    assert (world.rows.fed, world.wake_ups.shards) == ([], [])


async def test_a_member_without_shards_reads_no_redrives() -> None:
    world = World()

    assert await world.loop.step() == WITHOUT_WAKE_UP
    assert world.rows.looks == []


async def test_redrives_are_checked_often_while_runs_are_made(
    world: World,
) -> None:
    assert await world.loop.step() == WITHOUT_WAKE_UP
    world.rows.open = [OPEN]
    assert await world.loop.step() == WITHOUT_WAKE_UP
    assert world.wake_ups.shards == [], "no run was made, no owner is woken"
    world.rows.makes = [run(1, shard=7)]
    assert await world.loop.step() == WHILE_FED


async def test_definitions_are_read_again_for_each_step(world: World) -> None:
    """No member notifies this one of changes to jobs of others."""
    world.definitions.stale[ETL] = replace(SHELL, overlap=Overlap.ALLOW)
    world.definitions.jobs[ETL] = replace(SHELL, overlap=Overlap.CANCEL_OTHER)
    world.rows.open = [OPEN]
    await world.loop.step()

    assert world.rows.lines[ETL] == RedriveLine(1, None, 1)


async def test_an_unavailable_database_is_reported_to_the_loop_which_retries(world: World) -> None:
    world.rows.open, world.rows.away = [OPEN], True

    with pytest.raises(Unavailable):
        await world.loop.step()
