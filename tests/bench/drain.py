"""Measure how fast a cluster runs a backlog of runs.

    --shape submitted   runs are submitted while the workers are drained, then the workers are
                        undrained. The time is counted from the first assignment to the last stored
                        result
    --shape due         all runs are due at one time (`bench.herd`). The time is counted from the
                        due time, so it includes firing

Each run has its own token, is executed, and has a stored result. The output is one JSON line.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bench import herd
from bench.numbers import positive
from bench.rig import NOOP, bench_cluster, ended, note, parser, quantiles, run, sizes, spent, tell
from schedclient import Client
from support.cluster import DevCluster
from support.wait import wait_until_async

WAIT_TIMEOUT = 600.0
"""Timeout in seconds for all runs."""
LOOK_EVERY = 3.0
"""Seconds between two reads of the member's metrics, because each read costs some milliseconds."""

SUMMARY = """
SELECT min(assigned_at), max(finished_at), count(*) FILTER (WHERE state = 'SUCCEEDED'),
    sum(assignments)
FROM runs WHERE created_at >= %s
"""
WAITS = "SELECT extract(epoch FROM started_at - assigned_at) FROM runs WHERE created_at >= %s"


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return the exit code."""
    asked = parser("bench.drain", __doc__)
    asked.add_argument("--runs", type=positive, default=20_000, help="runs in the backlog")
    asked.add_argument(
        "--shape",
        choices=("submitted", "due"),
        default="submitted",
        help="how the backlog is created",
    )
    asked.add_argument("--payloads", action="store_true", help="give each run a different payload")
    options = asked.parse_args(arguments)
    if options.shape == "due":
        size = [f"--{name}={getattr(options, name)}" for name in ("members", "workers", "slots")]
        settings = [f"--set={each}" for each in options.settings]
        return herd.main([f"--jobs={options.runs}", *size, *settings])
    with bench_cluster(**sizes(options)) as cluster:
        drained = drain(cluster, options.runs, payloads=options.payloads)
    tell("drain", runs=options.runs, **sizes(options), **drained)
    return 0 if drained["succeeded"] == options.runs else 1


def drain(
    cluster: DevCluster,
    runs: int,
    releasing: Callable[[], object] = lambda: None,
    *,
    payloads: bool = False,
) -> dict[str, Any]:
    """Queue runs while the workers are drained, undrain them, and return the figures. `releasing`
    is called before that. The workers' start isn't in the figures.
    """
    [(since,)] = cluster.sql("SELECT clock_timestamp()")
    already = ended(cluster)
    began = time.monotonic()
    work = ({"python": NOOP} | ({"payload": number} if payloads else {}) for number in range(runs))
    asyncio.run(submit_held(cluster, work))
    submitted = runs / (time.monotonic() - began)
    note(f"{runs:,} runs wait ({submitted:,.0f} submits/s)")
    before = spent(cluster)
    releasing()
    asyncio.run(undrain(cluster))
    _wait(cluster, already + runs)
    used = spent(cluster) - before
    [(first, last, done, tries)] = cluster.sql(SUMMARY, since)
    waits = [float(row[0]) for row in cluster.sql(WAITS, since)]
    took = (last - first).total_seconds()
    return {
        "rate": round(runs / took),
        "seconds": round(took, 2),
        "succeeded": done,
        "assigned_again": int(tries) - runs,
        "submits_per_second": round(submitted),
        "assigned_to_started_ms": quantiles(waits),
        **used.per(runs),
    }


async def submit_held(cluster: DevCluster, work: Iterable[Mapping[str, object]]) -> None:
    """Drain the workers, and submit this work: no worker has a run of it before `undrain`."""
    async with Client(cluster.endpoints) as client:
        async for worker in client.workers.list():
            await client.workers.drain(worker, reason="the benchmark hasn't begun")

        async def drained() -> bool:
            return all([one.state == "DRAINING" async for one in client.workers.list()])

        await wait_until_async(drained, WAIT_TIMEOUT, "the workers to be drained")
        answers = await client.submit_many(work, name="noop")
    for refused in answers:
        if isinstance(refused, Exception):
            raise refused


async def undrain(cluster: DevCluster) -> None:
    """Let the workers take runs."""
    async with Client(cluster.endpoints) as client:
        async for worker in client.workers.list():
            await client.workers.undrain(worker)


def _wait(cluster: DevCluster, count: int) -> None:
    """Wait until all runs have ended."""
    until = time.monotonic() + WAIT_TIMEOUT
    while (done := ended(cluster)) < count:
        if time.monotonic() > until:
            raise TimeoutError(f"{done:,} of {count:,} runs ended within {WAIT_TIMEOUT:g} s")
        time.sleep(LOOK_EVERY)


if __name__ == "__main__":
    run(main)
