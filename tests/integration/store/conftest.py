"""A world in a migrated database of its own, which is quick to make."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from support.store import START, World


@pytest.fixture
async def world(dsn: str) -> AsyncIterator[World]:
    async with World.at(dsn) as made:
        yield made


@pytest.fixture
def partition(world: World) -> None:
    """The days of the first runs have partitions, as in a cluster; else they are in `runs_default`,
    where each assignment is decided by the general statement.
    """
    world.make_partitions([START.date(), START.date() + timedelta(days=1)])
