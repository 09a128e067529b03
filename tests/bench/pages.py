"""Measure how long the dashboard's pages take in a cluster with many jobs and runs.

    idle   jobs whose next scheduled time is months away, and ended runs of other jobs; some of
           these runs failed or were canceled
    hot    jobs that each run once a minute, spread over the minute: 30,000 jobs are 500 runs/s

One client requests one page after the other while the hot jobs run. Each request has the marker of
a page after an action, so the member reads the database again and uses no cached page. The output
has one JSON line for each page, with the milliseconds until the last byte. Another line compares
the lateness of runs with and without requests. If a page's 95th percentile is above `--within`,
its name is printed on stderr, and the exit code is 1.
"""

from __future__ import annotations

import asyncio
import math
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

from bench import copies
from bench.numbers import from_zero, positive, seconds_from_zero, some_seconds
from bench.rig import (
    HANDLERS,
    bench_cluster,
    ended,
    note,
    parser,
    quantiles,
    run,
    sizes,
    tell,
)
from schedctl.dev.servers import postgres
from schedd.web.pages.site import FLASH_COOKIE, Flash, written
from support.cluster import DevCluster, importing
from support.repository import ROOT
from support.wait import wait_until

WAIT_TIMEOUT: Final = 120.0
"""Timeout in seconds for the end of the first runs."""
STORED: Final = 5.0
"""Seconds after a due time within which its run has started, if it starts."""
MEASURED_FLASH: Final = Flash("a page that was measured", "")
AFTER_ACTION: Final = {"cookie": f"{FLASH_COOKIE}={written(MEASURED_FLASH)}"}
"""Headers of a page after an action, which shows the database as it is now."""

PAGES: Final = (
    "/",
    "/jobs",
    "/jobs?filter=name:template-5",
    "/jobs?filter=paused:true",
    "/jobs?filter=label.team:data",
    "/jobs?filter=nosuch",
    "/jobs/template-0",
    "/runs",
    "/runs?q=state:running",
    "/runs?q=state:failed",
    "/runs?q=state:cancelled",
    "/runs?q=state:failed+job:template-1",
    "/runs?q=job:template-1",
    "/runs?q=worker:w1",
    "/runs?q=worker:no-such-worker",
    "/runs?q=trigger:manual",
    "/runs?q=after:{since}+before:{until}",
    "/runs?q=backfill:{run}",
    "/runs?q=parent:{run}",
    "/runs?namespace=elsewhere",
    "/runs/{run}",
    "/runs/{failed}",
    "/workers",
    "/cluster",
    "/dead-letters",
    "/cron",
    "/forecast",
)
"""Addresses. Some searches find many rows, some find few old rows, and some find nothing."""

LATE: Final = """
SELECT extract(epoch FROM started_at - due_at) FROM runs
WHERE scheduled_at >= to_timestamp(%s) AND scheduled_at < to_timestamp(%s) AND count = 1
AND trigger = 'SCHEDULE'
"""
ENDED: Final = {
    "run": "SELECT run_id::text FROM runs WHERE state = 'SUCCEEDED' LIMIT 1",
    "failed": "SELECT run_id::text FROM dead_letters LIMIT 1",
}
"""SQL of the runs that the addresses name."""


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if an answer wasn't a page, or pages were too slow."""
    options = _asked(arguments)
    with _loaded(options) as cluster:
        time.sleep(options.warm_up)
        quiet = time.time()
        time.sleep(options.quiet)
        began = time.time()
        meant = _meant(cluster)
        found = [_measure(cluster, page, page.format(**meant), options.requests) for page in PAGES]
        over = [line["page"] for line in found if line["p95_ms"] > options.within]
        wrong = sum(line["wrong"] for line in found)
        done = time.time()
        time.sleep(STORED)
        tell(
            "pages",
            **_stored(cluster),
            quiet=_lateness(cluster, quiet, began),
            asked=_lateness(cluster, began, done),
            within_ms=options.within,
            over=over,
        )
    for page in over:
        note(f"{page}: p95 is above {options.within:g} ms")
    return 1 if wrong or over else 0


def _asked(arguments: Sequence[str]) -> Namespace:
    asked = parser("bench.pages", __doc__)
    asked.add_argument(
        "--idle", type=from_zero, default=1_000_000, help="idle jobs, and as many ended runs"
    )
    asked.add_argument(
        "--hot", type=positive, default=30_000, help="jobs that each run once a minute"
    )
    asked.add_argument("--requests", type=positive, default=40, help="requests of each page")
    asked.add_argument(
        "--within",
        type=some_seconds,
        default=300.0,
        help="limit of the 95th percentile of a page, in milliseconds",
    )
    asked.add_argument(
        "--warm-up",
        type=seconds_from_zero,
        default=60.0,
        help="time in seconds before the measurement begins",
    )
    asked.add_argument(
        "--quiet",
        type=some_seconds,
        default=30.0,
        help="time in seconds without requests, to measure the runs alone",
    )
    asked.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="keep the cluster in this folder, and use the cluster that is already there",
    )
    return asked.parse_args(arguments)


@contextmanager
def _loaded(options: Namespace) -> Iterator[DevCluster]:
    """Start a cluster with all jobs and runs, or the kept cluster."""
    if options.keep is None:
        with bench_cluster(**sizes(options)) as cluster:
            _load(cluster, options)
            yield cluster
        return
    cluster = DevCluster(
        options.keep.absolute(),
        members=options.members,
        workers=options.workers,
        slots=options.slots,
        overrides=[HANDLERS, *options.settings],
        env=importing(ROOT / "tests"),
    )
    cluster.up()
    try:
        if not cluster.sql("SELECT 1 FROM jobs LIMIT 1"):
            _load(cluster, options)
        yield cluster
    finally:
        cluster.down()


def _load(cluster: DevCluster, options: Namespace) -> None:
    asyncio.run(copies.make_templates(cluster))
    wait_until(lambda: ended(cluster) > 0, WAIT_TIMEOUT, "the end of the first run")
    note(f"{options.idle:,} idle jobs and runs, {options.hot:,} hot jobs")
    copies.fill(cluster, options.idle, copies.IDLE)
    copies.copy_runs(cluster, options.idle)
    copies.copy(cluster, options.hot, copies.HOT)


def _meant(cluster: DevCluster) -> dict[str, str]:
    """Return the parameters of the addresses."""
    runs = {name: str(cluster.sql(query)[0][0]) for name, query in ENDED.items()}
    return {**runs, "since": _minutes_ago(60), "until": _minutes_ago(50)}


def _measure(cluster: DevCluster, page: str, path: str, requests: int) -> dict[str, Any]:
    """Request a page repeatedly, and print its figures."""
    answers = [_answer(cluster, path) for _ in range(requests)]
    waits = [took for _, _, took in answers]
    line = {
        "page": page,
        "requests": len(answers),
        "wrong": sum(not right for right, _, _ in answers),
        "bytes": max(size for _, size, _ in answers),
        "p50_ms": at(waits, 0.5),
        "p95_ms": at(waits, 0.95),
        "max_ms": at(waits, 1.0),
    }
    tell("pages", **line)
    return line


def _minutes_ago(minutes: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M", time.gmtime(time.time() - 60 * minutes))


def _stored(cluster: DevCluster) -> dict[str, int]:
    """Return the number of rows; the count may take long."""
    with postgres.connect(cluster.dsn) as session, session.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        cursor.execute("SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM runs)")
        jobs, runs = cursor.fetchone()
    return {"jobs": jobs, "runs": runs}


def _lateness(cluster: DevCluster, first: float, last: float) -> dict[str, Any]:
    """Return the number of runs that were due, their rate, and their lateness in milliseconds."""
    rows = [row for (row,) in cluster.sql(LATE, math.ceil(first), int(last))]
    late = [float(row) for row in rows if row is not None]
    return {
        "runs": len(rows),
        "unstarted": len(rows) - len(late),
        "per_second": round(len(rows) / max(1, int(last) - math.ceil(first)), 1),
        "late_ms": quantiles(late) if late else None,
    }


def at(waits: Sequence[float], part: float) -> float:
    """Return the quantile of seconds, in milliseconds."""
    return round(sorted(waits)[round((len(waits) - 1) * part)] * 1e3, 1)


def _answer(cluster: DevCluster, path: str) -> tuple[bool, int, float]:
    """Return whether the answer is a page that was read from the database for this request,
    its bytes, and its seconds with the connection.
    """
    began = time.monotonic()
    connection = HTTPConnection(cluster.record["members"][0]["http"], timeout=30)
    try:
        connection.request("GET", path, headers=AFTER_ACTION)
        answer = connection.getresponse()
        page = answer.read()
        took = time.monotonic() - began
        right = answer.status == 200 and MEASURED_FLASH.words.encode() in page
        return right, len(page), took
    finally:
        connection.close()


if __name__ == "__main__":
    run(main)
