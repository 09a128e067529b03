"""Millions of jobs and runs: the API creates one of each kind, and its rows are copied.

    make_templates → fill: idle jobs by the million, while the cluster is stopped
                   → copy: jobs that are due soon, while the cluster runs

A member reads from a copy the same data as from a job that was created by a call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import StringIO, TextIOBase
from typing import TYPE_CHECKING, Final

from bench.rig import NOOP
from schedclient import Client
from schedctl.dev.records import ClusterFolder, PartKind
from schedctl.dev.servers import binaries, postgres
from schedd.core.cluster.partition import shard_of
from schedd.core.ids import JobId, new_id
from schedd.store.schema import tables
from support.cluster import DevCluster

if TYPE_CHECKING:
    from psycopg2.extensions import connection, cursor

TEMPLATE: Final = "template-"
"""Prefix of the names of copied jobs; a number follows."""
AT_ONCE: Final = 200_000
"""Copies in one statement."""
HOT: Final = range(60)
"""Templates of jobs that run once a minute, each at another second."""
IDLE: Final = range(60, 61)
"""The template of jobs whose next scheduled time is months away."""
FAR: Final = "0 0 1 1 *"

COLUMNS: Final = {
    table.name: [column.name for column in table.c] for table in (tables.jobs, tables.timers)
}
CHANGED: Final = {
    "jobs": {"job_id": "'%s'", "name": "name || '-%s'", "shard": "'%s'", "created_at": "'%s'"},
    "timers": {"job_id": "'%s'", "shard": "'%s'"},
}
"""Columns that differ between a copy and its template, in the order of the tables' columns."""
NAMED: Final = "namespace = 'default' AND name = %s"
CREATED_AT_ONCE: Final = 1_000
"""Copies with the same time of creation, a second before the time of the previous ones."""
FILLING: Final = {
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "autovacuum": "off",
    "maintenance_work_mem": "1GB",
}
"""Settings of PostgreSQL while `fill` works. Rows of a file that the same transaction creates are
not written to the WAL.
"""
UNINDEXED: Final = "UPDATE pg_index SET indisready = false WHERE indrelid = %s::regclass"
"""Rows aren't added to the indexes until REINDEX."""
START_TIMEOUT: Final = 60.0
FAILED_OF: Final = 1_000
"""Number of copied runs of which one has failed for good, and is a dead letter."""
CANCELLED_OF: Final = 1_000
"""Number of copied runs of which one was canceled."""
RUNS_APART: Final = "5 ms"
"""Time between two copied runs; the newest was due when its template was due."""

RUNS: Final = """
INSERT INTO runs ({columns}) SELECT {values}
FROM (SELECT job_id, row_number() OVER () AS n FROM jobs LIMIT %s) j
CROSS JOIN (SELECT * FROM runs WHERE state = 'SUCCEEDED' LIMIT 1) r
"""
CHANGED_OF_RUNS: Final = {
    "run_id": "gen_random_uuid()",
    "job_id": "j.job_id",
    "scheduled_at": f"r.scheduled_at - j.n * interval '{RUNS_APART}'",
    "due_at": f"r.due_at - j.n * interval '{RUNS_APART}'",
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


def copy(cluster: DevCluster, count: int, templates: range) -> None:
    """Copy jobs this many times, alternating over the templates in the range."""
    with _session(cluster.dsn) as session:
        with session, session.cursor() as cursor:
            _Copies(cursor, templates).write(count)
        _vacuum(session, *COLUMNS)


def fill(cluster: DevCluster, count: int, templates: range) -> None:
    """Copy jobs as `copy` does, but while the cluster is stopped; then start the cluster.

    One transaction creates new files for the tables, and builds the indexes at the end.
    """
    cluster.down()
    folder = ClusterFolder(cluster.directory)
    state = folder.load()
    assert state is not None
    [part] = state.parts_of_kind(PartKind.POSTGRES)
    data, log, port = folder.data(part.name), folder.log(part.name), part.ports["sql"]
    server = postgres.start(binaries.find_postgres(), data, port, log, FILLING)
    try:
        postgres.wait_ready(server, port, log, START_TIMEOUT, state.password)
        admin = postgres.dsn(port, role=postgres.ADMIN, password=state.password)
        with _session(admin) as session:
            with session, session.cursor() as cursor:
                copies = _Copies(cursor, templates)
                for table in COLUMNS:
                    stored = StringIO()
                    cursor.copy_expert(f"COPY {table} TO STDOUT", stored)
                    stored.seek(0)
                    cursor.execute(f"TRUNCATE {table}")
                    cursor.execute(UNINDEXED, (table,))
                    cursor.copy_expert(f"COPY {table} FROM STDIN (FREEZE)", stored)
                copies.write(count, "(FREEZE)")
                for table in COLUMNS:
                    cursor.execute(f"REINDEX TABLE {table}")
            _vacuum(session, *COLUMNS)
    finally:
        postgres.stop(server, data)
    cluster.up()


class _Copies:
    """Copies of templates, whose rows are read at the start."""

    def __init__(self, cursor: cursor, templates: range) -> None:
        self._cursor = cursor
        self._jobs = [self._pattern("jobs", number) for number in templates]
        self._timers = [self._pattern("timers", number) for number in templates]
        cursor.execute(f"SELECT created_at FROM jobs WHERE {NAMED}", (f"{TEMPLATE}{templates[0]}",))
        [[self._newest]] = cursor.fetchall()

    def write(self, count: int, options: str = "") -> None:
        """Store this many copies."""
        for start in range(0, count, AT_ONCE):
            numbers = range(start, min(count, start + AT_ONCE))
            ids = [JobId(new_id()) for _ in numbers]
            made = [(id_.hex(), shard_of(id_)) for id_ in ids]
            self._copy("jobs", self._job_lines(start, made), options)
            self._copy("timers", self._timer_lines(start, made), options)

    def _copy(self, table: str, lines: Iterator[str], options: str) -> None:
        columns = ", ".join(COLUMNS[table])
        self._cursor.copy_expert(f"COPY {table} ({columns}) FROM STDIN {options}", _Rows(lines))

    def _job_lines(self, start: int, made: list[tuple[str, int]]) -> Iterator[str]:
        patterns, count = self._jobs, len(self._jobs)
        for number, (id_, shard) in enumerate(made, start):
            if not number % CREATED_AT_ONCE:
                created = str(self._newest - timedelta(seconds=number // CREATED_AT_ONCE))
            yield patterns[number % count] % (id_, number, shard, created)

    def _timer_lines(self, start: int, made: list[tuple[str, int]]) -> Iterator[str]:
        patterns, count = self._timers, len(self._timers)
        for number, (id_, shard) in enumerate(made, start):
            yield patterns[number % count] % (id_, shard)

    def _pattern(self, table: str, number: int) -> str:
        """Return the line of a template's row, with %s for each value that copies change."""
        values = ", ".join(CHANGED[table].get(name, name) for name in COLUMNS[table])
        job = f"SELECT job_id FROM jobs WHERE {NAMED}" % f"'{TEMPLATE}{number}'"
        line = StringIO()
        self._cursor.copy_expert(
            f"COPY (SELECT {values} FROM {table} WHERE job_id = ({job})) TO STDOUT", line
        )
        return line.getvalue()


def copy_runs(cluster: DevCluster, count: int) -> None:
    """Copy ended runs; each copy belongs to another job."""
    names = [column.name for column in tables.runs.c]
    values = (CHANGED_OF_RUNS.get(name, f"r.{name}") for name in names)
    statement = RUNS.format(columns=", ".join(names), values=", ".join(values))
    with _session(cluster.dsn) as session:
        with session, session.cursor() as cursor:
            cursor.execute(statement, (count,))
            cursor.execute(LETTERS)
        _vacuum(session, "runs", "dead_letters")


@contextmanager
def _session(dsn: str) -> Iterator[connection]:
    """Connect without the timeouts of the daemons' role."""
    with postgres.connect(dsn) as session:
        with session.cursor() as cursor:
            cursor.execute("SET statement_timeout = 0")
            cursor.execute("SET idle_in_transaction_session_timeout = 0")
        session.autocommit = False
        yield session


def _vacuum(session: connection, *names: str) -> None:
    """Do the work of autovacuum now, else it would start during the measurement."""
    session.autocommit = True
    with session.cursor() as cursor:
        cursor.execute(f"VACUUM (FREEZE, ANALYZE) {', '.join(names)}")


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
