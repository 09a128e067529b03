"""`python -m bench.pages` (from tests/): how long the dashboard's pages take over many.

    idle   jobs whose next instant is months away, and as many runs that have ended, one of each
    hot    jobs of one run a minute, spread over its seconds: 30,000 of them are 500 runs a second

Each request has an address of its own (`?look=…`), so that none is answered by another's look at
the database. One client asks, one page after the other, while the hot jobs run. JSON: a line a
page, its answer's bytes and milliseconds until the last of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from http.client import HTTPConnection
from typing import Final

from bench import copies
from bench.numbers import from_zero, positive
from bench.rig import bench_cluster, ended, note, parser, quantiles, run, sizes, tell
from schedctl.dev import postgres
from support.cluster import DevCluster
from support.wait import wait_until

PATIENCE: Final = 120.0
"""Seconds for the first runs to have ended."""

RUNS: Final = """
INSERT INTO runs SELECT (jsonb_populate_record(r, jsonb_build_object('run_id', gen_random_uuid(),
    'job_id', j.job_id, 'scheduled_at', r.scheduled_at - j.n * interval '5 ms',
    'due_at', r.due_at - j.n * interval '5 ms'))).*
FROM (SELECT job_id, row_number() OVER () AS n FROM jobs LIMIT %s) j
JOIN runs r ON r.run_id = (SELECT run_id FROM runs WHERE state = 'SUCCEEDED' LIMIT 1)
"""

PAGES: Final = (
    "/",
    "/jobs",
    "/jobs/template-0",
    "/runs",
    "/runs?q=state:failed",
    "/runs?q=job:template-1",
    "/runs/{run}",
    "/workers",
    "/cluster",
    "/dead-letters",
    "/cron",
    "/forecast",
)


def main(arguments: Sequence[str]) -> int:
    """Measure, print. 1 when an answer wasn't a page."""
    asked = parser("bench.pages", __doc__)
    asked.add_argument("--idle", type=from_zero, default=1_000_000, help="jobs, and runs")
    asked.add_argument("--hot", type=positive, default=30_000, help="jobs of one run a minute")
    asked.add_argument("--requests", type=positive, default=40, help="of each page")
    options = asked.parse_args(arguments)
    with bench_cluster(**sizes(options)) as cluster:
        asyncio.run(copies.make_templates(cluster))
        wait_until(lambda: ended(cluster) > 0, PATIENCE, "a run that has ended")
        note(f"{options.idle:,} idle jobs and runs, {options.hot:,} hot jobs")
        copies.copy(cluster, (options.idle, copies.IDLE), (options.hot, copies.HOT))
        _store_runs(cluster, options.idle)
        before, began = ended(cluster), time.monotonic()
        wrong = sum([_measure(cluster, page, options.requests) for page in PAGES])
        rate = (ended(cluster) - before) / (time.monotonic() - began)
        [(jobs, runs)] = cluster.sql("SELECT (SELECT count(*) FROM jobs), count(*) FROM runs")
        tell("pages", jobs=jobs, runs=runs, ended_per_second=round(rate, 1))
    return 1 if wrong else 0


def _store_runs(cluster: DevCluster, count: int) -> None:
    """So many that have ended, each of another job."""
    with postgres.connect(cluster.dsn) as session, session.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        cursor.execute(RUNS, (count,))
        session.commit()
        session.autocommit = True
        cursor.execute("VACUUM (FREEZE, ANALYZE) runs")


def _measure(cluster: DevCluster, page: str, requests: int) -> int:
    """Ask for a page again and again; how many of its answers weren't one."""
    [(run_id,)] = cluster.sql("SELECT run_id::text FROM runs WHERE state = 'SUCCEEDED' LIMIT 1")
    path = page.format(run=run_id)
    waits: list[float] = []
    sizes_: list[int] = []
    wrong = 0
    for number in range(requests):
        status, size, took = _asked(cluster, f"{path}{'&' if '?' in path else '?'}look={number}")
        waits.append(took)
        sizes_.append(size)
        wrong += status != 200
    tell("pages", page=page, wrong=wrong, bytes=max(sizes_), ms=quantiles(waits), p95_ms=p95(waits))
    return wrong


def p95(waits: Sequence[float]) -> float:
    """Of seconds, in milliseconds."""
    return round(sorted(waits)[round((len(waits) - 1) * 0.95)] * 1e3, 1)


def _asked(cluster: DevCluster, path: str) -> tuple[int, int, float]:
    """Status, bytes and seconds of one answer, its connection included."""
    began = time.monotonic()
    connection = HTTPConnection(cluster.record["members"][0]["http"], timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        size = len(answer.read())
        return answer.status, size, time.monotonic() - began
    finally:
        connection.close()


if __name__ == "__main__":
    run(main)
