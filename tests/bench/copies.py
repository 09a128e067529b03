"""Millions of jobs and runs: the API creates one of each kind, and SQL copies its rows.

A member reads from a copy the same data as from a job that was created by a call. Each statement
copies up to a million rows, which members see after its COMMIT. Jobs that are due soon are copied
last.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import TextIOBase
from typing import Final

from bench.rig import NOOP
from schedclient import Client
from schedctl.dev.servers import postgres
from schedd.core.cluster.partition import shard_of
from schedd.core.ids import JobId, new_id
from schedd.store.schema import tables
from support.cluster import DevCluster

TEMPLATE: Final = "template-"
"""Prefix of the names of copied jobs; a number follows."""
AT_ONCE: Final = 1_000_000
"""Copies in one statement."""
HOT: Final = range(60)
"""Templates of jobs that run once a minute, each at another second."""
IDLE: Final = range(60, 61)
"""The template of jobs whose next scheduled time is months away."""
FAR: Final = "0 0 1 1 *"

COPIED: Final = "CREATE UNLOGGED TABLE copied (job_id uuid, shard int, template int, number int)"
JOBS: Final = """
INSERT INTO jobs SELECT (jsonb_populate_record(t, jsonb_build_object('job_id', c.job_id,
    'shard', c.shard, 'name', t.name || '-' || c.number,
    'created_at', t.created_at - c.number * interval '1 ms'))).*
FROM copied c JOIN jobs t ON t.name = 'template-' || c.template
"""
FAILED_OF: Final = 1_000
"""Number of copied runs of which one has failed for good, and is a dead letter."""
CANCELLED_OF: Final = 1_000
"""Number of copied runs of which one was canceled."""
APART: Final = "5 ms"
"""Time between two copied runs; the newest was due when its template was due."""

TIMERS: Final = """
INSERT INTO timers SELECT (jsonb_populate_record(m, jsonb_build_object('job_id', c.job_id,
    'shard', c.shard))).*
FROM copied c JOIN jobs t ON t.name = 'template-' || c.template
JOIN timers m ON m.job_id = t.job_id
"""

RUNS: Final = """
INSERT INTO runs ({columns}) SELECT {values}
FROM (SELECT job_id, row_number() OVER () AS n FROM jobs LIMIT %s) j
CROSS JOIN (SELECT * FROM runs WHERE state = 'SUCCEEDED' LIMIT 1) r
"""
CHANGED: Final = {
    "run_id": "gen_random_uuid()",
    "job_id": "j.job_id",
    "scheduled_at": f"r.scheduled_at - j.n * interval '{APART}'",
    "due_at": f"r.due_at - j.n * interval '{APART}'",
    "state": f"CASE WHEN j.n %% {FAILED_OF} = 1 THEN 'FAILED'"
    f" WHEN j.n %% {CANCELLED_OF} = 2 THEN 'CANCELLED' ELSE r.state END",
}
"""Columns that a copied run has, but its template doesn't have."""
LETTERS: Final = """
INSERT INTO dead_letters (run_id, scheduled_at, job_id, fingerprint)
SELECT run_id, scheduled_at, job_id, 'as-copied' FROM runs WHERE state = 'FAILED'
ON CONFLICT DO NOTHING
"""


async def make_templates(cluster: DevCluster, jitter: float = 0.0) -> None:
    """Create the templates of HOT and IDLE jobs.

    HOT jobs run once a minute, at one second or spread over several.
    """
    async with Client(cluster.endpoints) as client:
        for second in HOT:
            cron = f"{second} * * * * *"
            await client.jobs.create(
                f"{TEMPLATE}{second}", cron=cron, jitter=f"{jitter:g}s", python=NOOP
            )
        for number in IDLE:
            await client.jobs.create(f"{TEMPLATE}{number}", cron=FAR, python=NOOP)


def copy(cluster: DevCluster, *kinds: tuple[int, range]) -> None:
    """Copy jobs: for each pair, that many copies, alternating over the templates in the range."""
    with postgres.connect(cluster.dsn) as session, session.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        cursor.execute("SET idle_in_transaction_session_timeout = 0")
        cursor.execute(COPIED)
        for count, templates in kinds:
            for start in range(0, count, AT_ONCE):
                rows = _Rows(_lines(start, min(count, start + AT_ONCE), templates))
                cursor.execute("TRUNCATE copied")
                cursor.copy_expert("COPY copied FROM STDIN", rows)
                cursor.execute(JOBS)
                cursor.execute(TIMERS)
                session.commit()
        cursor.execute("DROP TABLE copied")
        session.commit()
        session.autocommit = True
        cursor.execute("VACUUM (FREEZE, ANALYZE) jobs, timers")  # else it would come meanwhile


def copy_runs(cluster: DevCluster, count: int) -> None:
    """Copy ended runs; each copy belongs to another job."""
    names = [column.name for column in tables.runs.c]
    values = (CHANGED.get(name, f"r.{name}") for name in names)
    statement = RUNS.format(columns=", ".join(names), values=", ".join(values))
    with postgres.connect(cluster.dsn) as session, session.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        cursor.execute("SET idle_in_transaction_session_timeout = 0")
        cursor.execute(statement, (count,))
        cursor.execute(LETTERS)
        session.commit()
        session.autocommit = True
        cursor.execute("VACUUM (FREEZE, ANALYZE) runs, dead_letters")


def _lines(start: int, stop: int, templates: range) -> Iterator[str]:
    for number in range(start, stop):
        job = JobId(new_id())
        kind = templates[number % len(templates)]
        yield f"{job}\t{shard_of(job)}\t{kind}\t{number}\n"


class _Rows(TextIOBase):
    """Lines, as a file that COPY reads."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines

    def read(self, size: int | None = -1, /) -> str:
        """Return about this many characters; empty at the end."""
        parts: list[str] = []
        length = 0
        for line in self._lines:
            parts.append(line)
            length += len(line)
            if size is not None and 0 <= size <= length:
                break
        return "".join(parts)
