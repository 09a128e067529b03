"""Batches of runs by key: their columns for `unnest`, and their rows locked in order.

How a batch's statements keep to one plan, a look into the index for each of its rows, whatever the
statistics of the day say (they say "none": most runs have ended, and the newest aren't counted):
- reads go through a LATERAL look by key, bounded by the batch's whole days, `first` and `last`,
  so that the planner drops the other partitions;
- updates are joined by key alone: a bound or a literal state would look like a short way in, and
  make the join a loop over the batch for each row found there. The hottest name the one day that
  all of a batch is in, as nearly every batch is: of forty days' partitions the planner looks at
  each otherwise, for longer than the batch takes.
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
"""All of them."""
DEFAULT: Final = "runs_default"
"""What has no day of its own."""

PLACE: Final = "r.tableoid::regclass::text AS place"
"""A column: the table that a row is in. It is locked by the same statement, so nobody drops that
table, or detaches it, before this transaction ends. (A table of the day's name may be a detached
one.)
"""

SPOT: Final = "r.ctid::text AS spot"
"""A column: where in its table the row is, until this transaction writes it. A lock that had to
wait tells of the row as it is afterwards, and so where that is.
"""

# The second condition of the latter isn't one to look up an index by.
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


def key_arguments(keys: Sequence[RunKey]) -> dict[str, object]:
    """The keys' columns, and the days they are in, from `first` to before `last`; `day`: the name
    of the table of the one day that they are in, if it is one.
    """
    instants = [key.scheduled_at for key in keys]
    first, last = _day(min(instants)), _day(max(instants))
    return {
        "scheduled": arrays.instants(instants),
        "runs": arrays.ids(key.run_id for key in keys),
        "first": first,
        "last": last + timedelta(days=1),
        "day": name_of(first.date()) if first == last else None,
    }


def _day(instant: datetime) -> datetime:
    return instant.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


class Locked(NamedTuple):
    """Of a run whose row is locked: what doesn't change any more."""

    n: int
    """Its number in the batch, from 1."""
    table: str
    spot: str
    token: Token
    overlap: str | None


def lock_runs(connection: Connection, keys: dict[str, object]) -> list[Locked]:
    """Lock the runs' rows in order: a batch's own join may visit them in another one. Gives those
    that are there.
    """
    return [Locked(*row[1:]) for row in connection.exec_driver_sql(LOCK_RUNS, keys)]


def table_of(keys: dict[str, object], places: set[str]) -> str:
    """Where the batch is, by the places of its rows; what has no day of its own isn't named."""
    one = keys["day"] is not None and len(places) == 1 and DEFAULT not in places
    return next(iter(places)) if one else RUNS


def found_in(table: str, by: str) -> str:
    """How a statement for this table finds the rows `r` of `by`: a condition."""
    return (BY_KEY if table == RUNS else BY_SPOT).format(by=by)
