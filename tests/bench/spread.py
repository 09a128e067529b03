"""`python -m bench.spread` (from tests/): lateness at a steady rate, beside so many idle schedules.

    hot    jobs of one run a minute, spread evenly over its seconds: 100,000 of them are 1,667/s
    idle   jobs whose next instant is months away

A job of each kind is made by the API, and copied into the tables as often as is asked for: what a
member reads is the same. Lateness is the handler's start, by the worker's clock, less the instant
itself, of every instant of the seconds that are measured, whether or not it started. JSON, a line.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from io import TextIOBase
from uuid import UUID

from bench.rig import NOOP, bench_cluster, memory, note, parser, quantiles, sizes, spent, tell
from schedclient import Client
from schedctl.dev import postgres
from schedd.core.ids import JobId
from schedd.core.partition import shard_of
from support.cluster import DevCluster

SETTLES = 20.0
"""Seconds from the last copy to the first instant that counts."""
FAR = "0 0 1 1 *"
AT_ONCE = 1_000_000
"""Copies in one statement."""

COPIED = "CREATE UNLOGGED TABLE copied (job_id uuid, shard int, template int, number int)"
JOBS = """
INSERT INTO jobs SELECT (jsonb_populate_record(t, jsonb_build_object('job_id', c.job_id,
    'shard', c.shard, 'name', t.name || '-' || c.number))).*
FROM copied c JOIN jobs t ON t.name = 'template-' || c.template
"""
TIMERS = """
INSERT INTO timers SELECT (jsonb_populate_record(m, jsonb_build_object('job_id', c.job_id,
    'shard', c.shard))).*
FROM copied c JOIN jobs t ON t.name = 'template-' || c.template
JOIN timers m ON m.job_id = t.job_id
"""
LATE = """
SELECT extract(epoch FROM r.started_at - r.due_at), r.state, r.assignments FROM runs r
WHERE r.scheduled_at >= %s AND r.scheduled_at < %s
"""


def main(arguments: Sequence[str]) -> int:
    """Measure, print."""
    asked = parser("bench.spread", __doc__)
    asked.add_argument("--idle", type=int, default=10_000)
    asked.add_argument("--hot", type=int, default=100_000, help="jobs of one run a minute")
    asked.add_argument("--seconds", type=int, default=60, help="that are measured")
    options = asked.parse_args(arguments)
    with bench_cluster(**sizes(options)) as cluster:
        asyncio.run(_templates(cluster))
        began = time.monotonic()
        _copy(cluster, options.hot, options.idle)
        loaded = time.monotonic() - began
        first = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=SETTLES)
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
    return 0 if len(late) == len(rows) and abs(len(rows) - expected) <= options.hot / 60 else 1


async def _templates(cluster: DevCluster) -> None:
    async with Client(cluster.endpoints) as client:
        for second in range(60):
            await client.jobs.create(f"template-{second}", cron=f"{second} * * * * *", python=NOOP)
        await client.jobs.create("template-60", cron=FAR, python=NOOP)


def _copy(cluster: DevCluster, hot: int, idle: int) -> None:
    """The idle ones first: what is due soon is copied last."""
    with postgres.connect(cluster.dsn) as session, session.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        cursor.execute("SET idle_in_transaction_session_timeout = 0")
        cursor.execute(COPIED)
        for template, count in ((60, idle), (None, hot)):
            for start in range(0, count, AT_ONCE):
                rows = _Rows(_lines(start, min(count, start + AT_ONCE), template))
                cursor.execute("TRUNCATE copied")
                cursor.copy_expert("COPY copied FROM STDIN", rows)
                cursor.execute(JOBS)
                cursor.execute(TIMERS)
                session.commit()
        cursor.execute("DROP TABLE copied")
        session.commit()
        session.autocommit = True
        cursor.execute("ANALYZE jobs, timers")


def _lines(start: int, stop: int, template: int | None) -> Iterator[str]:
    for number in range(start, stop):
        job = JobId(UUID(bytes=os.urandom(16), version=4))
        kind = number % 60 if template is None else template
        yield f"{job}\t{shard_of(job)}\t{kind}\t{number}\n"


class _Rows(TextIOBase):
    """Lines as a file that COPY reads."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines

    def read(self, size: int | None = -1, /) -> str:
        """About so much; empty at the end."""
        parts: list[str] = []
        length = 0
        for line in self._lines:
            parts.append(line)
            length += len(line)
            if size is not None and 0 <= size <= length:
                break
        return "".join(parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
