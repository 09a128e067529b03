"""Store plain successes in batches: the short form of `accept`, for results that only end a run.

    one statement finds the rows by key, in order, and writes them
        RUNNING under this token and sender, not being canceled   → SUCCEEDED
        anything else                                             → left to `accept`

A row that is SUCCEEDED with digest NULL has the digest of a plain success of its run and token
(`schedkit.outcome_digest`). `accept` compares repetitions with that.

Invariants
- The caller knows that nothing follows from the success but the end of the run: no notification, no
  count of failures, no end of a broadcast. Chains follow by the trigger of the `live` row.
- The statement looks each row up by its key or position, whatever the statistics say: conditions
  beside these are written so that they can't use an index. So rows are locked by ascending keys.
- It writes a row in the partition where it found it, and nothing in another table.
- Single rows are examined only in a batch that isn't right as a whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Final

from sqlalchemy import Connection

from schedd.core.dispatch.successes import EPOCH, Success, Successes
from schedd.store.cluster.fence import BY_INDEX
from schedd.store.connection.prepared import PreparedStatement
from schedd.store.schema.partitions import name_of
from schedd.store.statements import arrays
from schedd.store.statements.keys import DEFAULT, instant

_DAY: Final = 86_400_000_000
"""Microseconds."""


BEGIN: Final = PreparedStatement(f"""
SELECT {BY_INDEX},
    ARRAY(SELECT day FROM unnest(%(days)s::text[]) day WHERE to_regclass(day) IS NULL)
""")
"""Set the planner, and return the days that have no table."""

ACCEPT = f"""
WITH b AS MATERIALIZED (  -- in the order in which the rows are locked
    SELECT {instant("scheduled")} AS scheduled_at, run_id, token, sender,
        {instant("started")} AS started_at, {instant("finished")} AS finished_at, n
    FROM unnest(%(scheduled)s::bigint[], %(runs)s::uuid[], %(tokens)s::bigint[],
        %(senders)s::uuid[], %(started)s::bigint[], %(finished)s::bigint[]) WITH ORDINALITY
      b(scheduled, run_id, token, sender, started, finished, n)
    ORDER BY scheduled, run_id
), f AS MATERIALIZED (
    SELECT b.*, r.spot, r.place FROM b CROSS JOIN LATERAL (
        SELECT r.ctid AS spot, r.tableoid AS place FROM runs r
        WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id
          AND r.scheduled_at >= %(first)s::timestamptz
          AND r.scheduled_at < %(last)s::timestamptz OFFSET 0
    ) r
), accepted AS (
    UPDATE {{runs}} r SET state = 'SUCCEEDED', reason = NULL, error = '', exit_code = NULL,
        started_at = f.started_at, finished_at = f.finished_at, digest = NULL
    FROM f
    WHERE r.ctid = f.spot AND r.tableoid IS NOT DISTINCT FROM f.place
      AND r.run_id IS NOT DISTINCT FROM f.run_id AND r.token IS NOT DISTINCT FROM f.token
      AND r.incarnation IS NOT DISTINCT FROM f.sender AND r.state IS NOT DISTINCT FROM 'RUNNING'
      AND NOT r.cancelling AND r.ctid IS NOT DISTINCT FROM f.spot
    RETURNING f.n, r.shard, r.job_id, r.run_id
), spots AS MATERIALIZED (
    SELECT l.spot FROM accepted a CROSS JOIN LATERAL (
        SELECT l.ctid AS spot FROM live l
        WHERE l.shard = a.shard AND l.job_id = a.job_id AND l.run_id = a.run_id OFFSET 0
    ) l
), gone AS (
    DELETE FROM live l USING spots s WHERE l.ctid = s.spot
)
SELECT CASE WHEN count(*) < %(count)s::bigint THEN array_agg(n) END, count(*)
FROM accepted
"""
"""Its row: the numbers of the results that were stored, if not all were, and their count."""


def accept_successes(connection: Connection, successes: Successes) -> list[Success]:
    """Store plain successes. Return those whose rows aren't as expected: nothing was written of
    these.

    A row that another transaction was writing has moved: it is found by a second statement. The
    second comparison of `ctid` excludes it from the first: minor versions of PostgreSQL before
    14.20, 15.15, 16.11 and 17.7 don't repeat the comparison by which a row was found.
    """
    days = defaultdict(list)
    for n, scheduled in enumerate(successes.scheduled):
        days[scheduled // _DAY].append(n)
    names = {day: name_of((EPOCH + timedelta(days=day)).date()) for day in days}
    arguments = {"days": arrays.texts(names.values())}
    [(_, without)] = BEGIN.execute(connection, arguments, len(successes))
    left: list[int] = []
    for day in sorted(days):
        table = DEFAULT if names[day] in without else names[day]
        numbers = days[day]
        for _ in range(2):
            if numbers:
                numbers = _accept(connection, table, day, successes, numbers)
        left += numbers
    return [successes[n] for n in sorted(left)]


def _accept(
    connection: Connection, table: str, day: int, successes: Successes, numbers: Sequence[int]
) -> list[int]:
    """Store those of the successes that have these numbers. Return the numbers of the others."""
    columns = _columns(successes, numbers)
    columns["first"] = EPOCH + timedelta(days=day)
    columns["last"] = EPOCH + timedelta(days=day + 1)
    [(stored, count)] = statement(table).execute(connection, columns, len(numbers))
    if count == len(numbers):
        return []
    right = frozenset(stored or ())
    return [one for n, one in enumerate(numbers, 1) if n not in right]


@lru_cache(maxsize=8)
def statement(table: str) -> PreparedStatement:
    return PreparedStatement(ACCEPT.format(runs=table))


def _columns(successes: Successes, numbers: Sequence[int]) -> dict[str, object]:
    """Return the columns of the successes that have these numbers."""
    some = successes if len(numbers) == len(successes) else successes.some(numbers)
    return {
        "runs": arrays.ids(some.run_ids),
        "tokens": arrays.numbers(some.tokens),
        "senders": arrays.ids(some.senders),
        "scheduled": arrays.numbers(some.scheduled),
        "started": arrays.numbers(some.started),
        "finished": arrays.numbers(some.finished),
        "count": len(numbers),
    }
