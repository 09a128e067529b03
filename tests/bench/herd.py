"""`python -m bench.herd` (from tests/): all due at one instant, and how late each one starts.

So many jobs of one instant each are stored; workers wait. Lateness is the handler's start, by the
worker's clock, less the instant itself. JSON, a line.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from bench.rig import NOOP, bench_cluster, ended, note, parser, quantiles, sizes, spent, tell
from schedclient import ApiError, Client
from support.cluster import DevCluster

AHEAD = 5.0
"""Seconds before the instant at which all jobs are to be stored: the near future is loaded then."""
PATIENCE = 300.0
"""Seconds past the instant for all of them."""


def main(arguments: Sequence[str]) -> int:
    """Measure, print."""
    asked = parser("bench.herd", __doc__)
    asked.add_argument("--jobs", type=int, default=10_000)
    asked.add_argument("--creates", type=int, default=100, help="a second that are counted on")
    options = asked.parse_args(arguments)
    with bench_cluster(**sizes(options)) as cluster:
        wait = timedelta(seconds=options.jobs / options.creates + 10)
        due = (datetime.now(UTC) + wait).replace(microsecond=0)
        began = time.monotonic()
        asyncio.run(_create(cluster, options.jobs, due))
        created = options.jobs / (time.monotonic() - began)
        left = (due - datetime.now(UTC)).total_seconds()
        note(f"{options.jobs:,} jobs stored ({created:,.0f}/s), {left:.1f} s before their instant")
        if left < AHEAD:
            raise SystemExit("too late: give fewer --creates")
        time.sleep(left - 1)
        before = spent(cluster)
        _wait(cluster, options.jobs, due)
        used = spent(cluster) - before
        rows = cluster.sql(
            "SELECT extract(epoch FROM started_at - due_at),"
            " extract(epoch FROM finished_at - due_at), state, assignments FROM runs"
        )
    late = [float(row[0]) for row in rows if row[0] is not None]
    done = sum(row[2] == "SUCCEEDED" for row in rows)
    tell(
        "herd",
        jobs=options.jobs,
        **sizes(options),
        succeeded=done,
        doubled=len(rows) - options.jobs,
        assigned_again=sum(row[3] for row in rows) - len(rows),
        late_ms=quantiles(late),
        started_within_1s=sum(one <= 1 for one in late),
        seconds_to_last_end=round(max(float(row[1] or 0) for row in rows), 2),
        early=sum(one < 0 for one in late),
        creates_per_second=round(created),
        **used.per(options.jobs),
    )
    return 0 if done == options.jobs == len(rows) else 1


async def _create(cluster: DevCluster, count: int, due: datetime) -> None:
    numbers: Iterator[int] = iter(range(count))
    async with Client(cluster.endpoints) as client:

        async def create() -> None:
            for number in numbers:
                await client.jobs.create(f"herd-{number}", at=due, python=NOOP)

        async with asyncio.TaskGroup() as group:
            for place in range(64):
                group.create_task(create(), name=f"create {place}")


def _wait(cluster: DevCluster, count: int, due: datetime) -> None:
    until = due + timedelta(seconds=PATIENCE)
    while (done := ended(cluster)) < count:
        if datetime.now(UTC) > until:
            note(f"{done:,} of {count:,} runs ended within {PATIENCE:g} s")
            return
        time.sleep(1.0)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except* ApiError as refused:
        sys.exit(f"{refused.exceptions[0]}")
