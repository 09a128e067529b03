"""Sessions on a migrated database of their own, which may wait for one another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from support.sessions import Postgres


@pytest.fixture
def postgres(dsn: str) -> Iterator[Postgres]:
    with ExitStack() as stack:
        yield Postgres(dsn, stack)
