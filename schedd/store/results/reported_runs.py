"""Read the runs of reports, and record their starts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection

from schedd.core.ids import Token
from schedd.core.runs.model import LiveRun, RunKey
from schedd.store.statements import arrays
from schedd.store.statements.keys import key_arguments, lock_runs
from schedd.store.statements.rows import RUN_COLUMNS, decoded, live_run, run_id_of

REPORTED = f"""
SELECT {RUN_COLUMNS} FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[])
  b(scheduled_at, run_id)
CROSS JOIN LATERAL (
    SELECT * FROM runs r WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id
      AND r.scheduled_at >= %(first)s AND r.scheduled_at < %(last)s OFFSET 0
) r
"""

STARTED = """
WITH b AS MATERIALIZED (
    SELECT *, 'RUNNING' AS running
    FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[], %(tokens)s::bigint[],
        %(started)s::timestamptz[]) b(scheduled_at, run_id, token, started_at)
)
UPDATE runs r SET started_at = b.started_at FROM b
WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id
  AND r.token = b.token AND r.state = b.running AND r.started_at IS NULL
"""


def reported_runs(connection: Connection, keys: Sequence[RunKey]) -> dict[RunKey, LiveRun]:
    """Return the present runs, without unreadable rows: those runs end as reported."""
    found = connection.exec_driver_sql(REPORTED, key_arguments(keys))
    return {run.key: run for run in decoded("runs", found, live_run, run_id_of)}


def started(connection: Connection, starts: Sequence[tuple[RunKey, Token, datetime]]) -> None:
    keys = key_arguments([key for key, _, _ in starts])
    lock_runs(connection, keys)
    connection.exec_driver_sql(
        STARTED,
        keys
        | {
            "tokens": arrays.numbers(token for _, token, _ in starts),
            "started": arrays.instants(at for _, _, at in starts),
        },
    )
