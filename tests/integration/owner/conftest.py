"""A migrated database for each test, and a world in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from schedd.store import migrate
from support.postgres import ScratchServer, scratch_postgres
from support.store import World


@pytest.fixture(scope="session")
def server() -> Iterator[ScratchServer]:
    with scratch_postgres() as scratch:
        yield scratch


@pytest.fixture(scope="session")
def template(server: ScratchServer) -> str:
    """Name of a migrated database to copy."""
    dsn = server.create_database("owner_template")
    migrate.upgrade(dsn)
    return "owner_template"


@pytest.fixture
def dsn(server: ScratchServer, template: str) -> Iterator[str]:
    made = server.create_database(template=template)
    yield made
    server.drop_database(made)


@pytest.fixture
async def world(dsn: str) -> AsyncIterator[World]:
    async with World.at(dsn) as made:
        yield made
