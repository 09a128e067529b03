"""`python -m bench.drain` (from tests/): how fast a backlog of runs goes through.

So many runs are submitted while no worker is there; then the workers come. Counted from the first
assignment to the last result that is stored. Each run is handed out under a token of its own,
executed, and its result accepted: nothing is taken out of it. JSON, a line.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence

from bench.rig import NOOP, bench_cluster, ended, note, parser, quantiles, sizes, spent, tell
from schedclient import Client
from support.cluster import DevCluster

PATIENCE = 600.0
"""Seconds for all of them."""


def main(arguments: Sequence[str]) -> int:
    """Measure, print."""
    asked = parser("bench.drain", __doc__)
    asked.add_argument("--runs", type=int, default=20_000)
    options = asked.parse_args(arguments)
    with bench_cluster(**sizes(options) | {"workers": 0}) as cluster:
        began = time.monotonic()
        asyncio.run(_submit(cluster, options.runs))
        submitted = options.runs / (time.monotonic() - began)
        note(f"{options.runs:,} runs wait ({submitted:,.0f} submits/s)")
        before = spent(cluster)
        cluster.workers = options.workers
        cluster.up()
        _wait(cluster, options.runs)
        used = spent(cluster) - before
        [(first, last, done, tries)] = cluster.sql(
            "SELECT min(assigned_at), max(finished_at),"
            " count(*) FILTER (WHERE state = 'SUCCEEDED'),"
            " sum(assignments) FROM runs"
        )
        waits = [
            float(row[0])
            for row in cluster.sql("SELECT extract(epoch FROM started_at - assigned_at) FROM runs")
        ]
    took = (last - first).total_seconds()
    tell(
        "drain",
        runs=options.runs,
        **sizes(options),
        rate=round(options.runs / took),
        seconds=round(took, 2),
        succeeded=done,
        assigned_again=int(tries) - options.runs,
        submits_per_second=round(submitted),
        assigned_to_started_ms=quantiles(waits),
        **used.per(options.runs),
    )
    return 0 if done == options.runs else 1


async def _submit(cluster: DevCluster, count: int) -> None:
    async with Client(cluster.endpoints) as client:
        answers = await client.submit_many(
            ({"python": NOOP} for _ in range(count)), name="noop", concurrency=64
        )
    for refused in answers:
        if isinstance(refused, Exception):
            raise refused


def _wait(cluster: DevCluster, count: int) -> None:
    """Until none is left."""
    until = time.monotonic() + PATIENCE
    while (done := ended(cluster)) < count:
        if time.monotonic() > until:
            raise TimeoutError(f"{done:,} of {count:,} runs ended within {PATIENCE:g} s")
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
