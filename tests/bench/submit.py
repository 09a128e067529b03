"""Measure how fast simultaneous callers create jobs or submit runs.

    submits         runs that are due in an hour, so none of them starts during the benchmark
    --create        jobs with a schedule whose next scheduled time is months away
    --batch N       N requests in each call: requests are counted, and calls are timed

A call is answered when PostgreSQL has stored its requests. The callers share a few connections. The
output is one JSON line.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from uuid import uuid4

import schedclient.transport.transport
from bench.connections import apart
from bench.numbers import positive, up_to_500
from bench.rig import NOOP, bench_cluster, parser, quantiles, run, sizes, spent, tell
from schedclient import ApiError, Client
from support.cluster import DevCluster

LATER = "1h"
FAR = "0 0 1 1 *"
SUBMITTED = "SELECT count(*) FROM runs WHERE trigger = 'SUBMIT'"
CREATED = "SELECT count(*) FROM jobs WHERE NOT ephemeral"


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return the exit code."""
    asked = parser("bench.submit", __doc__)
    asked.add_argument("--callers", type=positive, default=64, help="simultaneous callers")
    asked.add_argument(
        "--connections", type=positive, default=8, help="connections that the callers share"
    )
    asked.add_argument(
        "--calls",
        type=positive,
        default=5_000,
        help="calls in total; with --batch, requests in total",
    )
    asked.add_argument(
        "--create",
        action="store_true",
        help="create jobs with a schedule instead of submitting runs",
    )
    asked.add_argument(
        "--batch",
        type=up_to_500,
        default=0,
        help="requests in one call, 500 at most; 0 makes a call for each request",
    )
    options = asked.parse_args(arguments)
    many, stored_by_now = (_create, CREATED) if options.create else (_submit, SUBMITTED)
    schedclient.transport.transport.connect = apart
    each = max(1, options.batch)

    async def ask(client: Client) -> None:
        await many(client, options.batch)

    with bench_cluster(**sizes(options)) as cluster:
        asyncio.run(_ask(cluster, ask, options.callers, options.connections, options.callers))
        before = spent(cluster)
        began = time.monotonic()
        calls = -(-options.calls // each)
        took = asyncio.run(_ask(cluster, ask, options.callers, options.connections, calls))
        seconds = time.monotonic() - began
        used = spent(cluster) - before
        stored = cluster.sql(stored_by_now)[0][0]
    tell(
        "create" if options.create else "submit",
        callers=options.callers,
        connections=options.connections,
        batch=options.batch,
        calls=len(took) * each,
        stored=stored - options.callers * each,
        **sizes(options),
        rate=round(len(took) * each / seconds, 1),
        answered_ms=quantiles(took),
        **used.per(len(took) * each),
    )
    return 0 if stored == (len(took) + options.callers) * each else 1


async def _submit(client: Client, batch: int) -> None:
    if not batch:
        await client.submit(python=NOOP, delay=LATER)
    else:
        _check(await client.submit_many([{"python": NOOP}] * batch, delay=LATER))


async def _create(client: Client, batch: int) -> None:
    if not batch:
        await client.jobs.create(f"job-{uuid4()}", cron=FAR, python=NOOP)
    else:
        job = {"cron": FAR, "python": NOOP}
        _check(
            await client.jobs.create_many(job | {"name": f"job-{uuid4()}"} for _ in range(batch))
        )


def _check(answers: Sequence[object]) -> None:
    for one in answers:
        if isinstance(one, ApiError):
            raise one


async def _ask(
    cluster: DevCluster,
    ask: Callable[[Client], Awaitable[None]],
    callers: int,
    connections: int,
    calls: int,
) -> list[float]:
    """Make all calls, and return the seconds of each call."""
    numbers = iter(range(calls))
    took: list[float] = []
    clients = [Client(cluster.endpoints) for _ in range(connections)]

    async def call(client: Client) -> None:
        for _ in numbers:
            began = time.monotonic()
            await ask(client)
            took.append(time.monotonic() - began)

    try:
        turn = count()
        await asyncio.gather(*(call(clients[next(turn) % connections]) for _ in range(callers)))
    finally:
        await asyncio.gather(*(client.close() for client in clients))
    return took


if __name__ == "__main__":
    run(main)
