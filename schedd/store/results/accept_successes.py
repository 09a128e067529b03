"""Store plain successes in batches: the short form of `accept`, for results that only end a run.

    lock the rows in order ─→ one row: how many are right, where they are ─→ one statement writes
        RUNNING under this token and sender, not being canceled   → SUCCEEDED
        anything else                                             → left to `accept`

A row that is SUCCEEDED with digest NULL has the digest of a plain success of its run and token
(`schedkit.outcome_digest`). `accept` compares repetitions with that.

Invariants
- The caller knows that nothing follows from the success but the end of the run: no notification, no
  count of failures, no end of a broadcast. Chains follow by the trigger of the `live` row.
- Both statements look each row up by its key or position, whatever the statistics say: conditions
  beside these are written so that they can't use an index.
- Single rows are examined only in a batch that isn't right as a whole.
"""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from typing import Final

from sqlalchemy import Connection

from schedd.core.dispatch.successes import EPOCH, Success, Successes
from schedd.store.cluster.fence import BY_INDEX
from schedd.store.statements import arrays
from schedd.store.statements.keys import DEFAULT, RUNS, found_in

_DAY: Final = 86_400_000_000
"""Microseconds."""


def _instant(column: str) -> str:
    """Return the SQL for a time given in microseconds since 1970, exactly."""
    return f"timestamptz 'epoch' + {column} * interval '1 microsecond'"


LOCK = f"""
SELECT {BY_INDEX}, count(x.spot), array_agg(x.spot ORDER BY x.n)::text,
    min(x.place)::regclass::text, max(x.place)::regclass::text,
    string_agg(x.n::text, ',' ORDER BY x.n) FILTER (WHERE x.spot IS NULL)
FROM (
    SELECT b.n, r.place, CASE WHEN r.token = b.token AND r.incarnation = b.sender
        AND r.state = 'RUNNING' AND NOT r.cancelling THEN r.spot END AS spot
    FROM (
        SELECT {_instant("scheduled")} AS scheduled_at, run_id, token, sender, n
        FROM unnest(%(scheduled)s::bigint[], %(runs)s::uuid[], %(tokens)s::bigint[],
            %(senders)s::uuid[]) WITH ORDINALITY b(scheduled, run_id, token, sender, n)
        ORDER BY scheduled, run_id
    ) b LEFT JOIN LATERAL (
        SELECT r.state, r.token, r.incarnation, r.cancelling, r.ctid AS spot, r.tableoid AS place
        FROM runs r
        WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id
          AND r.scheduled_at >= %(first)s AND r.scheduled_at < %(last)s
        FOR NO KEY UPDATE
    ) r ON true
) x
"""

ACCEPT = f"""
WITH b AS MATERIALIZED (
    SELECT {_instant("scheduled")} AS scheduled_at, run_id, token,
        {_instant("started")} AS started_at, {_instant("finished")} AS finished_at, spot,
        'RUNNING' AS running
    FROM unnest(%(scheduled)s::bigint[], %(runs)s::uuid[], %(tokens)s::bigint[],
        %(started)s::bigint[], %(finished)s::bigint[], %(spots)s::tid[])
      b(scheduled, run_id, token, started, finished, spot)
), accepted AS (
    UPDATE {{runs}} r SET state = 'SUCCEEDED', reason = NULL, error = '', exit_code = NULL,
        started_at = b.started_at, finished_at = b.finished_at, digest = NULL
    FROM b
    WHERE {{found}} AND b.spot IS NOT NULL AND r.token IS NOT DISTINCT FROM b.token
      AND r.state IS NOT DISTINCT FROM b.running
    RETURNING r.shard, r.job_id, r.run_id
), spots AS MATERIALIZED (
    SELECT l.spot FROM accepted a CROSS JOIN LATERAL (
        SELECT l.ctid AS spot FROM live l
        WHERE l.shard = a.shard AND l.job_id = a.job_id AND l.run_id = a.run_id OFFSET 0
    ) l
), gone AS (
    DELETE FROM live l USING spots s WHERE l.ctid = s.spot
)
SELECT count(*) FROM accepted
"""


def accept_successes(connection: Connection, successes: Successes) -> list[Success]:
    """Store plain successes. Return those whose rows aren't as expected: nothing was written of
    these.
    """
    columns = _columns(successes)
    [(_, right, spots, first, last, others)] = connection.exec_driver_sql(LOCK, columns)
    if right:
        table = first if first == last != DEFAULT else RUNS
        written = connection.exec_driver_sql(statement(table), columns | {"spots": spots}).scalar()
        if written != right:
            raise ValueError(f"table {table}: only {written} of {right} locked rows were written")
    return [] if others is None else [successes[int(n) - 1] for n in others.split(",")]


@lru_cache(maxsize=8)
def statement(table: str) -> str:
    """Return ACCEPT for runs in this table."""
    return ACCEPT.format(runs=table, found=found_in(table, "b"))


def _columns(successes: Successes) -> dict[str, object]:
    scheduled = successes.scheduled
    first, last = min(scheduled) // _DAY, max(scheduled) // _DAY
    return {
        "runs": arrays.ids(successes.run_ids),
        "tokens": arrays.numbers(successes.tokens),
        "senders": arrays.ids(successes.senders),
        "scheduled": arrays.numbers(scheduled),
        "started": arrays.numbers(successes.started),
        "finished": arrays.numbers(successes.finished),
        "first": EPOCH + timedelta(days=first),
        "last": EPOCH + timedelta(days=last + 1),
    }
