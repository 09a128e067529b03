"""A migrated database for each test that asks for one: fixtures, for all tests.

`server`   the session's PostgreSQL, started by the first who asks
`template` the name of a migrated database in it, made once and copied (25 ms, not a second)
`dsn`      a copy for one test
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from schedd.store.schema import migrate
from support.postgres import ScratchServer, scratch_postgres


@pytest.fixture(scope="session")
def server() -> Iterator[ScratchServer]:
    with scratch_postgres() as scratch:
        yield scratch


@pytest.fixture(scope="session")
def template(server: ScratchServer) -> str:
    name = "migrated"
    migrate.upgrade(server.create_database(name))
    return name


@pytest.fixture
def dsn(server: ScratchServer, template: str) -> Iterator[str]:
    made = server.create_database(template=template)
    yield made
    server.drop_database(made)
