"""Final rows of the database, written at the end of a run.

A run among several in one world owns the jobs it made: rows of other jobs aren't its own, rows of
the cluster's life (shards, tenures, incarnations, audit since it began) belong to all.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from faults.history import Recorder
from faults.world.postgres import Server
from schedctl.dev.servers import postgres as dev_postgres

OF_JOBS = {
    "jobs": "job_id",
    "timers": "job_id",
    "runs": "job_id",
    "live": "job_id",
    "dead_letters": "job_id",
}
OF_RUNS = ("attempts",)
OF_THE_CLUSTER = ("cluster", "term", "tenures", "shards", "shard_log", "incarnations")
LARGE = ("outputs", "results", "spec", "payload")
"""Tables and columns that no check looks at."""


def dump_initial(server: Server, recorder: Recorder, prefix: str) -> None:
    """Write the cluster's rows, and those of jobs with this prefix that were made beforehand, as
    they stand before the commits to come.
    """
    for table in OF_THE_CLUSTER:
        _dump(server, recorder.initial, table, "%s::timestamptz IS NOT NULL", datetime.now(UTC))
    for table in ("jobs", "timers"):
        mine = "job_id IN (SELECT job_id FROM jobs WHERE deleted_at IS NULL AND name LIKE %s)"
        _dump(server, recorder.initial, table, mine, f"%{prefix}-%", without=())


def dump_tables(
    server: Server,
    write: Callable[[str, Iterable[Mapping[str, Any]]], None],
    since: float,
    *,
    without: Collection[str] = LARGE,
) -> None:
    """Write the rows of jobs made since this time, and those of the cluster; `without` these
    columns.
    """
    began = datetime.fromtimestamp(since, UTC)
    mine = "job_id IN (SELECT job_id FROM jobs WHERE created_at >= %s)"
    for table, column in OF_JOBS.items():
        _dump(
            server,
            write,
            table,
            f"{column} IN (SELECT job_id FROM jobs WHERE created_at >= %s)",
            began,
            without,
        )
    for table in OF_RUNS:
        _dump(
            server,
            write,
            table,
            f"run_id IN (SELECT run_id FROM runs WHERE {mine})",
            began,
        )
    for table in OF_THE_CLUSTER:
        _dump(server, write, table, "%s::timestamptz IS NOT NULL", began)
    _dump(server, write, "audit", "at >= %s", began)
    _dump(server, write, "idempotency_keys", "created_at >= %s", began)


def _dump(
    server: Server,
    write: Callable[[str, Iterable[Mapping[str, Any]]], None],
    table: str,
    where: str,
    value: object,
    without: Collection[str] = LARGE,
) -> None:
    columns = [
        name
        for (name,) in server.sql(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass"
            " AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            table,
        )
        if name not in without
    ]
    texts = ", ".join(f'"{name}"::text' for name in columns)
    with (
        dev_postgres.connect(server.back_door) as session,
        session.cursor() as cursor,
    ):
        cursor.execute("SET timezone = 'UTC'")
        cursor.execute(f"SELECT {texts} FROM {table} WHERE {where}", (value,))
        write(table, (dict(zip(columns, row, strict=True)) for row in cursor))


def commit_of_tree() -> str:
    """Return git's name of the tree that the test runs from; `-dirty` if more than docs changed."""
    commit = _git("describe", "--always")
    changed = _git("status", "--porcelain", "--untracked-files=no", ":/", ":(exclude,top)docs")
    return f"{commit}-dirty" if changed else commit


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
