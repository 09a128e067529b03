"""A migrated database for each test, and sessions on it that may wait for one another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from schedd.store import migrate
from support.postgres import ScratchServer, scratch_postgres
from support.sessions import Postgres


@pytest.fixture(scope="session")
def server() -> Iterator[ScratchServer]:
    with scratch_postgres() as scratch:
        yield scratch


@pytest.fixture(scope="session")
def template(server: ScratchServer) -> str:
    """Name of a migrated database to copy."""
    migrate.upgrade(server.create_database("facts_template"))
    return "facts_template"


@pytest.fixture
def postgres(server: ScratchServer, template: str) -> Iterator[Postgres]:
    dsn = server.create_database(template=template)
    with ExitStack() as stack:
        yield Postgres(dsn, stack)
    server.drop_database(dsn)
