"""A world in a migrated database of its own, which is quick to make."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest
from psycopg2.extensions import connection

from support.databases import copied
from support.postgres import ScratchServer
from support.store import START, World


@pytest.fixture
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    database = "partition" if "partition" in request.fixturenames else "dsn"
    async with World.at(request.getfixturevalue(database)) as made:
        yield made


@pytest.fixture(scope="session")
def partitioned(server: ScratchServer, template: str) -> str:
    name = "partitioned"
    days = [START.date(), START.date() + timedelta(days=1)]
    World(server.create_database(name, template=template)).make_partitions(days)
    return name


@pytest.fixture
def partition(server: ScratchServer, partitioned: str, superuser: connection) -> Iterator[str]:
    """The days of the first runs have partitions, as in a cluster; else they are in `runs_default`,
    where each assignment is decided by the general statement.
    """
    with copied(server, superuser, partitioned) as dsn:
        yield dsn
