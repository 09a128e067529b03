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
from typing import Final

from sqlalchemy import Connection

from schedd.core.model import RunKey
from schedd.store import arrays
from schedd.store.fence import BY_INDEX
from schedd.store.partitions import name_of

RUNS: Final = "runs"
"""All of them."""
DEFAULT: Final = "runs_default"
"""What has no day of its own."""

PLACE: Final = "r.tableoid::regclass::text AS place"
"""A column: the table that a row is in. It is locked by the same statement, so nobody drops that
table, or detaches it, before this transaction ends. (A table of the day's name may be a detached
one.)
"""

LOCK_RUNS = f"""
SELECT {BY_INDEX}, r.place FROM (
    SELECT * FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[]) b(scheduled_at, run_id)
    ORDER BY scheduled_at, run_id
) b CROSS JOIN LATERAL (
    SELECT {PLACE} FROM runs r WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id
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


def lock_runs(connection: Connection, keys: dict[str, object]) -> str:
    """Lock the runs' rows in order: a batch's own join may visit them in another one. Gives the
    name of a table that all of them are in.
    """
    rows = connection.exec_driver_sql(LOCK_RUNS, keys)
    return table_of(keys, {row[1] for row in rows})


def table_of(keys: dict[str, object], places: set[str]) -> str:
    """Where the batch is, by the places of its rows; what has no day of its own isn't named."""
    one = keys["day"] is not None and len(places) == 1 and DEFAULT not in places
    return next(iter(places)) if one else RUNS
