"""Measure how late runs start if all jobs are due at one time.

The API creates one job with one scheduled time, and SQL copies the job. The workers already run.
Lateness is the start of the handler, by the worker's clock, minus the scheduled time. The output is
one JSON line.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from bench import copies
from bench.copies import TEMPLATE
from bench.numbers import positive, seconds_from_zero
from bench.rig import NOOP, bench_cluster, ended, note, parser, quantiles, run, sizes, spent, tell
from schedclient import Client
from support.cluster import DevCluster

WAIT_TIMEOUT = 300.0
"""Timeout in seconds for all runs, from the due time on."""


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return the exit code."""
    asked = parser("bench.herd", __doc__)
    asked.add_argument(
        "--jobs", type=positive, default=10_000, help="jobs that are due at one time"
    )
    asked.add_argument(
        "--copies",
        type=positive,
        default=2_000,
        help="jobs that this machine is expected to store per second",
    )
    asked.add_argument(
        "--ahead",
        type=seconds_from_zero,
        default=15.0,
        help="seconds before the scheduled time at which all jobs"
        " must be stored; CPU time is counted from then on",
    )
    options = asked.parse_args(arguments)
    with bench_cluster(**sizes(options)) as cluster:
        wait = timedelta(seconds=options.jobs / options.copies + options.ahead + 10)
        due = (datetime.now(UTC) + wait).replace(microsecond=0)
        asyncio.run(_template(cluster, due))
        copies.copy(cluster, options.jobs - 1, range(1))
        left = (due - datetime.now(UTC)).total_seconds()
        note(f"{options.jobs:,} jobs stored, {left:.1f} s before their scheduled time")
        if left < options.ahead:
            raise SystemExit(
                "the jobs were stored too late: lower --copies, to leave more time for storing"
            )
        time.sleep(left - options.ahead)
        before = spent(cluster)
        _wait(cluster, options.jobs, due)
        used = spent(cluster) - before
        rows = cluster.sql(
            "SELECT extract(epoch FROM started_at - due_at),"
            " extract(epoch FROM finished_at - due_at), state, assignments FROM runs"
        )
    late = [float(row[0]) for row in rows if row[0] is not None]
    done = sum(row[2] == "SUCCEEDED" for row in rows)
    took = max(float(row[1] or 0) for row in rows)
    tell(
        "herd",
        jobs=options.jobs,
        **sizes(options),
        succeeded=done,
        doubled=len(rows) - options.jobs,
        assigned_again=sum(row[3] for row in rows) - len(rows),
        late_ms=quantiles(late),
        started_within_1s=sum(one <= 1 for one in late),
        seconds_to_last_end=round(took, 2),
        rate=round(done / took) if took > 0 else 0,
        early=sum(one < 0 for one in late),
        **used.per(options.jobs),
    )
    return 0 if done == options.jobs == len(rows) else 1


async def _template(cluster: DevCluster, due: datetime) -> None:
    async with Client(cluster.endpoints) as client:
        await client.jobs.create(f"{TEMPLATE}0", at=due, python=NOOP)


def _wait(cluster: DevCluster, count: int, due: datetime) -> None:
    until = due + timedelta(seconds=WAIT_TIMEOUT)
    while (done := ended(cluster)) < count:
        if datetime.now(UTC) > until:
            note(f"{done:,} of {count:,} runs ended within {WAIT_TIMEOUT:g} s")
            return
        time.sleep(1.0)


if __name__ == "__main__":
    run(main)
