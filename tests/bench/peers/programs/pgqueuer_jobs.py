"""Jobs of PgQueuer: `pgq run` loads `worker`. Run with N, the module enqueues N jobs."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

BULK = 1_000


@asynccontextmanager
async def worker() -> AsyncIterator[PgQueuer]:
    """Return a manager on one connection, as PgQueuer's page on tuning recommends."""
    from appending import append

    manager = PgQueuer(AsyncpgDriver(await asyncpg.connect(os.environ["PEERS_URL"])))

    @manager.entrypoint("noop")
    async def noop(job: Job) -> None:
        append(int(job.payload or b""))

    yield manager


async def enqueue(count: int) -> None:
    """Enqueue jobs by PgQueuer's bulk call."""
    connection = await asyncpg.connect(os.environ["PEERS_URL"])
    queries = Queries(AsyncpgDriver(connection))
    for first in range(0, count, BULK):
        numbers = range(first, min(first + BULK, count))
        payloads: list[bytes | None] = [str(number).encode() for number in numbers]
        await queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads))
    await connection.close()


if __name__ == "__main__":
    asyncio.run(enqueue(int(sys.argv[1])))
