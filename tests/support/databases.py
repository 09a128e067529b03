"""A migrated database for each test that asks for one: fixtures, for all tests.

`server`   the session's PostgreSQL, started by the first who asks
`template` the name of a migrated database in it, which is copied
`dsn`      a copy for one test

Copies are made and removed in one session: a session of its own takes 5 ms, half of a copy's time.
The template has no partitions for days after tomorrow: each one has a dozen files to copy, and each
session reads its definition. `make test` has whole clusters for all partitions.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from psycopg2.extensions import connection

from schedctl.dev.servers import postgres
from schedd.store.schema.partitions import DAYS_AHEAD, name_of
from support.postgres import ScratchServer, scratch_postgres


@pytest.fixture(scope="session")
def server() -> Iterator[ScratchServer]:
    with scratch_postgres() as scratch:
        yield scratch


@pytest.fixture(scope="session")
def template(server: ScratchServer) -> str:
    name = "template"
    dsn = server.create_migrated(name)
    today = datetime.now(UTC).date()
    later = [name_of(today + timedelta(days)) for days in range(2, DAYS_AHEAD + 1)]
    server.execute(f"DROP TABLE IF EXISTS {', '.join(later)}", dsn)
    return name


@pytest.fixture(scope="session")
def superuser(server: ScratchServer) -> Iterator[connection]:
    with postgres.connect(server.admin_dsn) as session:
        yield session


_numbers = itertools.count(1)


@pytest.fixture
def dsn(server: ScratchServer, template: str, superuser: connection) -> Iterator[str]:
    with copied(server, superuser, template) as dsn:
        yield dsn


@contextmanager
def copied(server: ScratchServer, superuser: connection, template: str) -> Iterator[str]:
    """Copy a database for the block."""
    name = f"copy_{os.getpid()}_{next(_numbers)}"
    with superuser.cursor() as cursor:
        cursor.execute(postgres.creation(superuser, name, template))
        yield postgres.dsn(server.port, database=name)
        cursor.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
