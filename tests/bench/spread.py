"""Measure how late runs start at a steady rate, while the cluster has many idle jobs.

    hot    jobs that each run once a minute, spread over the minute: 100,000 jobs are 1,667 runs/s
    idle   jobs whose next scheduled time is months away

The API creates one job of each kind, and SQL copies the jobs. Lateness is the start of the handler,
by the worker's clock, minus the scheduled time. Each scheduled time of the measured seconds counts,
also if its run didn't start. All runs of a second are due at its beginning; with `--jitter 1`, they
are due at random times within the second. The output is one JSON line.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from bench import copies
from bench.numbers import from_zero, positive, seconds_from_zero
from bench.rig import bench_cluster, memory, note, parser, quantiles, run, sizes, spent, tell

LATE = """
SELECT extract(epoch FROM r.started_at - r.due_at), r.state, r.assignments FROM runs r
WHERE r.scheduled_at >= %s AND r.scheduled_at < %s
"""


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return the exit code."""
    asked = parser("bench.spread", __doc__)
    asked.add_argument("--idle", type=from_zero, default=10_000, help="idle jobs")
    asked.add_argument(
        "--hot", type=positive, default=100_000, help="jobs that each run once a minute"
    )
    asked.add_argument("--seconds", type=positive, default=60, help="measured time in seconds")
    asked.add_argument(
        "--warm-up",
        type=seconds_from_zero,
        default=20.0,
        help="time in seconds before the measurement begins",
    )
    asked.add_argument(
        "--jitter",
        type=seconds_from_zero,
        default=0.0,
        help="highest jitter of the hot jobs, in seconds",
    )
    options = asked.parse_args(arguments)
    with bench_cluster(**sizes(options)) as cluster:
        asyncio.run(copies.make_templates(cluster, options.jitter))
        began = time.monotonic()
        copies.fill(cluster, options.idle, copies.IDLE)
        copies.copy(cluster, options.hot, copies.HOT)
        loaded = time.monotonic() - began
        first = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=options.warm_up)
        last = first + timedelta(seconds=options.seconds)
        note(f"{options.hot + options.idle:,} jobs copied in {loaded:.0f} s")
        time.sleep((first - datetime.now(UTC)).total_seconds())
        before = spent(cluster)
        time.sleep((last - datetime.now(UTC)).total_seconds())
        used = spent(cluster) - before
        time.sleep(10)
        rows = cluster.sql(LATE, first, last)
        used_memory = {one["name"]: memory(one["pid"]) for one in cluster.record["members"]}
    expected = round((options.hot + 60) * options.seconds / 60)  # the templates are hot, too
    late = [float(row[0]) for row in rows if row[0] is not None]
    tell(
        "spread",
        idle=options.idle,
        hot=options.hot,
        jitter_s=options.jitter,
        seconds=options.seconds,
        **sizes(options),
        rate=round(options.hot / 60, 1),
        instants=len(rows),
        expected=expected,
        started=len(late),
        succeeded=sum(row[1] == "SUCCEEDED" for row in rows),
        assigned_again=sum(row[2] > 1 for row in rows),
        late_ms=quantiles(late) if late else None,
        early=sum(one < 0 for one in late),
        memory_mib=used_memory,
        **used.per(max(len(rows), 1)),
    )
    # Of whole minutes it is known how many instants they have; else a second may have one more.
    slack = 0 if options.seconds % 60 == 0 and not options.jitter else options.hot / 60
    whole = len(late) == len(rows) and abs(len(rows) - expected) <= slack
    return 0 if whole and not any(one < 0 for one in late) else 1


if __name__ == "__main__":
    run(main)
