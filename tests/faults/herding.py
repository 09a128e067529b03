"""Makes many jobs by the SDK, many calls at once; a process of its own, so that its work isn't done
on the test's time:

    python -m faults.herding ENDPOINTS PREFIX COUNT AT FOLDER

Prints as JSON how many `seconds` it took, and the `jobs`, ids in the order of their names. A call
that fails ends all of it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

from schedclient import Client

AT_ONCE = 48
"""Calls under way."""
WAIT_TIMEOUT = 30.0
"""Seconds a call may take: it shares two cores with all others."""


def name_of(prefix: str, number: int) -> str:
    """The job's."""
    return f"herd-{prefix}-{number}"


async def make(endpoints: str, prefix: str, count: int, at: str, folder: str) -> list[str]:
    """Jobs that are due once, all at the same instant; their ids."""
    found = [""] * count

    async def one(client: Client, number: int) -> None:
        job = await client.jobs.create(
            name_of(prefix, number),
            at=at,
            python={"handler": "herd"},
            payload=folder,
            timeout="30s",
        )
        found[number] = job.job_id

    await _each(endpoints, count, one)
    return found


async def _each(endpoints: str, count: int, act: Callable[[Client, int], Awaitable[None]]) -> None:
    numbers = iter(range(count))

    async def work_off(client: Client) -> None:
        for number in numbers:
            await act(client, number)

    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(Client(endpoint, timeout=WAIT_TIMEOUT))
            for endpoint in endpoints.split(",")
        ]
        async with asyncio.TaskGroup() as group:
            for place in range(AT_ONCE):
                client = clients[place % len(clients)]
                group.create_task(work_off(client), name=f"caller {place}")


def main(words: Sequence[str]) -> None:
    """The command."""
    endpoints, prefix, count, at, folder = words
    began = time.monotonic()
    jobs = asyncio.run(make(endpoints, prefix, int(count), at, folder))
    print(json.dumps({"seconds": time.monotonic() - began, "jobs": jobs}))


if __name__ == "__main__":
    main(sys.argv[1:])
