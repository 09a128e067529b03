"""Following the map: in which order shards are dropped, waited for, released and taken."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from schedd.cluster.ownership import Ownership
from schedd.cluster.shards import Shards
from schedd.cluster.tenure import LiveTenure, TenureOver
from schedd.core.cluster.membership import EMPTY_VIEW, ClusterView
from schedd.core.ids import Epoch, Id, ShardId, TenureId, Term, Timeline
from schedd.core.runs.model import Claim, ShardRow, Tenure
from schedkit.clock import utcnow
from support.fakes import FakeDatabase, FakeMembershipStore

ME, OTHER = TenureId(Id.from_int(1)), TenureId(Id.from_int(2))
MINE, ITS = ShardId(3), ShardId(4)


class World(FakeMembershipStore):
    """The rows, and one tenure that follows a map which gives it the shard MINE."""

    def __init__(self) -> None:
        super().__init__(FakeDatabase())
        for tenure in (ME, OTHER):
            self.rows.tenures[tenure] = Tenure(tenure, "m", utcnow())
        self.ownership = Ownership(ME, Timeline(1), lanes=2)
        self.view: ClusterView = replace(EMPTY_VIEW, term=Term(1), assigned={MINE: ME})
        self.trusted = True
        self.done: list[str] = []
        live = SimpleNamespace(
            ownership=self.ownership, view=lambda: self.view, trusted=lambda: self.trusted
        )
        self.shards = Shards(self, cast("LiveTenure", live))

    async def release(self, claim: Claim) -> None:
        self.done.append("released")
        await super().release(claim)

    def owner(self, shard: ShardId) -> TenureId | None:
        return self.rows.shards[shard].owner


@pytest.fixture
def world() -> World:
    return World()


async def test_a_shard_is_taken_as_the_map_says(world: World) -> None:
    await world.shards.step()
    assert world.ownership.epochs == {MINE: Epoch(1)}
    assert world.owner(MINE) == ME


async def test_a_shard_whose_row_names_another_owner_is_dropped(world: World) -> None:
    await world.shards.step()
    world.rows.shards[MINE] = ShardRow(MINE, OTHER, Epoch(9), Timeline(1))
    await world.shards.step()
    assert world.ownership.epochs == {}


async def test_a_shard_is_dropped_then_waited_for_then_released(world: World) -> None:
    """P1.1: nothing new is decided for it, and what is in flight ends, before it is free."""
    await world.shards.step()
    world.view = replace(world.view, assigned={MINE: OTHER})
    with world.ownership.in_flight(world.ownership.lane_of(MINE)):
        stepping = asyncio.create_task(world.shards.step())
        for _ in range(20):
            await asyncio.sleep(0)
        assert world.ownership.epochs == {}, "dropped at once"
        assert world.done == [], "its transaction is still in flight"
    await stepping
    assert world.done == ["released"]
    assert world.owner(MINE) is None


async def test_a_member_without_trust_takes_no_shards(world: World) -> None:
    """P1.7: a member that slept may have been fenced, and its view is old."""
    world.trusted = False
    await world.shards.step()
    assert world.owner(MINE) is None


async def test_trust_that_passes_while_others_are_released_takes_nothing(world: World) -> None:
    """P1.7: it is looked at after each wait."""
    world.view = replace(world.view, assigned={ITS: ME})
    await world.shards.step()
    world.view = replace(world.view, assigned={MINE: ME})

    async def slow(claim: Claim) -> None:
        world.trusted = False

    world.release = slow  # type: ignore[method-assign]  # its own, but slow
    await world.shards.step()
    assert world.owner(MINE) is None


async def test_a_tenure_whose_row_was_fenced_has_ended(world: World) -> None:
    """P2.5: its key would stand there for ever and do nothing."""
    world.rows.fence([ME])
    with pytest.raises(TenureOver):
        await world.shards.step()
