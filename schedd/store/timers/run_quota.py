"""The quota of schedules with `max_runs`: a run that was skipped before it was ever dispatched
doesn't count, and a schedule that had ended by it continues.

    fire: fired + 1 for each run that is made ─→ max_runs reached: due_at is NULL, nominal stays
    skipped (overlap, a full buffer, a pause): fired − 1, due_at = nominal where it was NULL

Called in the transaction that skips, under the shard's lock. Only the schedule's own runs count,
not triggered ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from schedd.core.ids import JobId
from schedd.core.runs.model import RunKey
from schedd.store.statements import arrays
from schedd.store.statements.keys import key_arguments

AS_FRESH = """({r}.token = 0
    OR {r}.attempt = 0 AND {r}.losses = 0 AND {r}.assigned_at < {r}.due_at)"""
"""The waiting run `r` was never dispatched, or was pre-dispatched and revoked before it could
start. Only the token differs between the two.
"""

GIVE_BACK = f"""
UPDATE timers t SET fired = GREATEST(0, t.fired - b.turns), due_at = COALESCE(t.due_at, t.nominal)
FROM (
    SELECT r.job_id, count(*) AS turns
    FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[]) k(scheduled_at, run_id)
    CROSS JOIN LATERAL (
        SELECT * FROM runs r WHERE r.scheduled_at = k.scheduled_at AND r.run_id = k.run_id
          AND r.scheduled_at >= %(first)s AND r.scheduled_at < %(last)s OFFSET 0
    ) r
    WHERE r.trigger = 'SCHEDULE' AND {AS_FRESH.format(r="r")} AND r.parent IS NULL
    GROUP BY r.job_id
) b
WHERE t.job_id = b.job_id AND t.fired > 0
"""


TAKE_NO_MORE = """
UPDATE timers t SET fired = t.fired - b.turns, due_at = COALESCE(t.due_at, t.nominal)
FROM unnest(%(jobs)s::uuid[], %(turns)s::int[]) b(job_id, turns) WHERE t.job_id = b.job_id
"""


def take_no_more(connection: Connection, turns: Mapping[JobId, int]) -> None:
    """Subtract runs that existed already, and were counted, from timers that this transaction has
    just advanced.
    """
    if turns:
        arguments = {"jobs": arrays.ids(turns), "turns": arrays.numbers(turns.values())}
        connection.exec_driver_sql(TAKE_NO_MORE, arguments)


def give_back(connection: Connection, skipped: Sequence[RunKey]) -> None:
    """Subtract runs that this transaction has just skipped, each in its own row."""
    if skipped:
        connection.exec_driver_sql(GIVE_BACK, key_arguments(skipped))
