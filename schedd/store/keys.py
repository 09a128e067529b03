"""Batches of runs by key: their columns for `unnest`, and their rows locked in order."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from schedd.core.model import RunKey
from schedd.store import arrays

LOCK_RUNS = """
SELECT 1 FROM runs r
JOIN unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[]) b(scheduled_at, run_id)
  ON r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id
WHERE r.scheduled_at BETWEEN %(first)s AND %(last)s
ORDER BY r.scheduled_at, r.run_id FOR NO KEY UPDATE OF r
"""


def key_arguments(keys: Sequence[RunKey]) -> dict[str, object]:
    """The keys' columns, and their bounds, by which the planner prunes partitions."""
    instants = [key.scheduled_at for key in keys]
    return {
        "scheduled": arrays.instants(instants),
        "runs": arrays.ids(key.run_id for key in keys),
        "first": min(instants),
        "last": max(instants),
    }


def lock_runs(connection: Connection, keys: dict[str, object]) -> None:
    """Lock the runs' rows in order: a batch's own join may visit them in another one."""
    connection.exec_driver_sql(LOCK_RUNS, keys)
