"""Jobs of Procrastinate, whose worker loads `app`. Run with N, the module enqueues N jobs."""

from __future__ import annotations

import asyncio
import os
import sys

from procrastinate import App, PsycopgConnector

BULK = 1_000

app = App(
    connector=PsycopgConnector(
        conninfo=os.environ["PEERS_URL"], max_size=int(os.environ.get("PEERS_POOL", "4"))
    )
)


@app.task(name="noop")
async def noop(number: int) -> None:
    """Append one line."""
    from appending import append

    append(number)


async def enqueue(count: int) -> None:
    """Enqueue jobs by Procrastinate's bulk call."""
    async with app.open_async():
        for first in range(0, count, BULK):
            numbers = range(first, min(first + BULK, count))
            await noop.batch_defer_async(*({"number": number} for number in numbers))


if __name__ == "__main__":
    asyncio.run(enqueue(int(sys.argv[1])))
