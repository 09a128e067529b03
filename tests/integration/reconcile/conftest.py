"""A world in a migrated database of its own, which is quick to make."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from support.store import World


@pytest.fixture
async def world(dsn: str) -> AsyncIterator[World]:
    async with World.at(dsn) as made:
        yield made
