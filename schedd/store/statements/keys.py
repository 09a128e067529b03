"""Batches of runs by key: their columns for `unnest`, and their rows locked in order.

A batch's statements must have one plan, an index lookup for each row, whatever the statistics of
the day's partition say (usually "empty": most runs have ended, and the newest aren't counted):
- Reads use a LATERAL lookup by key, bounded by the batch's whole days, `first` and `last`, so the
  planner prunes the other partitions.
- Updates join by key alone. With a bound or a literal state the planner would start from that, and
  loop over the batch for each row found. The most frequent updates name the one partition that
  holds the whole batch, as it nearly always does. Otherwise the planner examines forty partitions,
  which takes longer than the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from sqlalchemy import Connection

from schedd.core.ids import Token
from schedd.core.runs.model import RunKey
from schedd.store.cluster.fence import BY_INDEX
from schedd.store.schema.partitions import name_of
from schedd.store.statements import arrays

RUNS: Final = "runs"
"""The partitioned table."""
DEFAULT: Final = "runs_default"
"""The partition of runs whose day has none."""

PLACE: Final = "r.tableoid::regclass::text AS place"
"""A column: the partition of a row. The same statement locks the partition, so it can't be dropped
or detached before this transaction ends. (A table with the day's name may be a detached one.)
"""

SPOT: Final = "r.ctid::text AS spot"
"""A column: the row's position in its partition (ctid), until this transaction writes the row. A
lock that had to wait returns the newest version of the row, and so its present position.
"""

# The second condition of BY_SPOT is written so that it can't use an index.
BY_KEY: Final = "r.scheduled_at = {by}.scheduled_at AND r.run_id = {by}.run_id"
BY_SPOT: Final = "r.ctid = {by}.spot AND r.run_id IS NOT DISTINCT FROM {by}.run_id"

LOCK_RUNS = f"""
SELECT {BY_INDEX}, b.n, r.* FROM (
    SELECT * FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[]) WITH ORDINALITY
      b(scheduled_at, run_id, n) ORDER BY scheduled_at, run_id
) b CROSS JOIN LATERAL (
    SELECT {PLACE}, {SPOT}, r.token, r.overlap FROM runs r
    WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id
      AND r.scheduled_at >= %(first)s AND r.scheduled_at < %(last)s
    FOR NO KEY UPDATE
) r
"""
"""The rows are locked one after the other, in the order of the batch's own sort."""


def instant(column: str) -> str:
    """Return the SQL for a time given in microseconds since 1970, exactly."""
    return f"timestamptz 'epoch' + {column} * interval '1 microsecond'"


def key_arguments(keys: Sequence[RunKey]) -> dict[str, object]:
    """Return the keys' columns and the range of their days, `first` to before `last`. `day`: the
    partition's name if all are on one day, else None.
    """
    instants = [key.scheduled_at for key in keys]
    return {
        "scheduled": arrays.instants(instants),
        "runs": arrays.ids([key.run_id for key in keys]),
        **days_of(instants),
    }


def days_of(instants: Sequence[datetime]) -> dict[str, object]:
    """Return the range of the times' days and the partition's name (`key_arguments`)."""
    first, last = _day(min(instants)), _day(max(instants))
    return {
        "first": first,
        "last": last + timedelta(days=1),
        "day": name_of(first.date()) if first == last else None,
    }


def _day(instant: datetime) -> datetime:
    return instant.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


class Locked(NamedTuple):
    """A run whose row is locked, with columns that can't change until the transaction ends."""

    n: int
    """Number of the run in the batch, from 1."""
    table: str
    spot: str
    token: Token
    overlap: str | None


def lock_runs(connection: Connection, keys: dict[str, object]) -> list[Locked]:
    """Lock the runs' rows in order: a batch's own join may visit them in another one. Returns the
    rows that exist.
    """
    return [Locked(*row[1:]) for row in connection.exec_driver_sql(LOCK_RUNS, keys)]


def table_of(keys: dict[str, object], places: set[str]) -> str:
    """Return the one partition that holds the whole batch, else `RUNS`."""
    one = keys["day"] is not None and len(places) == 1 and DEFAULT not in places
    return next(iter(places)) if one else RUNS


def found_in(table: str, by: str) -> str:
    """Return the join condition of rows `r` and `by` for this table."""
    return (BY_KEY if table == RUNS else BY_SPOT).format(by=by)
