"""Fire due timers as RUNNING: one statement advances timers and inserts their runs dispatched.

    timers with a slot ─→ draw tokens ─→ UPDATE timers WHERE they are unchanged
                                          ─→ INSERT INTO runs: RUNNING, or PENDING beside a live run

Invariants (docs/protocol-rules.md, P1.2, P3.4, P3.6)
- Called under the locks of the timers' shards. Tokens are drawn there.
- Each timer takes one step with one run, and a batch has one timer of a job: rows of one statement
  don't see each other.
- A run is RUNNING only if its job has no other live run, or its policy counts none. Another run of
  the job is admitted only under the shard's lock, so its job stays without one.
- An existing row of the same job and scheduled time doesn't change, and isn't dispatched here.
- Its other conditions are those of `fire`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection

from schedd.core.ids import NO_TOKEN, JobId, ShardId, TenureId, Token
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import FiringToSlot, LiveRun
from schedd.store.statements import arrays
from schedd.store.statements.keys import instant
from schedkit.records import replace

FIRE_RUNNING = f"""
WITH b AS MATERIALIZED (
    SELECT b.*, (%(terms)s::int[])[batch] AS terms,
        (%(generations)s::int[])[(%(terms)s::int[])[batch]] AS generation,
        (%(priorities)s::smallint[])[batch] AS priority,
        {instant("(%(due)s::bigint[])[batch]")} AS due_at,
        {instant("(%(next_due)s::bigint[])[batch]")} AS next_due,
        {instant("(%(next_nominal)s::bigint[])[batch]")} AS next_nominal,
        {instant("(%(scheduled)s::bigint[])[batch]")} AS scheduled_at,
        {instant("(%(ready)s::bigint[])[batch]")} AS ready
    FROM unnest(%(jobs)s::uuid[], %(shards)s::int[], %(runs)s::uuid[], %(tokens)s::bigint[],
        %(batches)s::int[]) b(job_id, shard, run_id, next_token, batch)
    ORDER BY job_id
), d AS MATERIALIZED (
    SELECT b.*, t.spot, (%(counted)s::bool[])[terms] AND EXISTS (
        SELECT FROM live l WHERE l.shard = b.shard AND l.job_id = b.job_id OFFSET 0) AS waits
    FROM b CROSS JOIN LATERAL (
        SELECT t.ctid AS spot FROM timers t WHERE t.job_id = b.job_id OFFSET 0
    ) t
), advanced AS (
    UPDATE timers t SET due_at = d.next_due, nominal = d.next_nominal FROM d
    WHERE t.ctid = d.spot AND t.job_id IS NOT DISTINCT FROM d.job_id
      AND t.shard IS NOT DISTINCT FROM d.shard AND t.generation IS NOT DISTINCT FROM d.generation
      AND t.due_at IS NOT DISTINCT FROM d.due_at AND t.fired = 0 AND NOT t.paused
      AND d.due_at <= clock_timestamp() + %(horizon)s
      AND EXISTS (SELECT FROM cluster WHERE one AND NOT paused AND switched = %(switched)s)
    RETURNING d.*
), inserted AS (
    INSERT INTO runs (scheduled_at, run_id, job_id, due_at, shard, priority, fired_by, trigger,
        state, ready_at, generation, token, attempt, assignments, worker, incarnation, assigned_at,
        start_by)
    SELECT scheduled_at, run_id, job_id, due_at, shard, priority, %(tenure)s,
        'SCHEDULE', CASE WHEN waits THEN 'PENDING' ELSE 'RUNNING' END, ready,
        generation, CASE WHEN waits THEN 0 ELSE next_token END, (NOT waits)::int, (NOT waits)::int,
        CASE WHEN NOT waits THEN (%(workers)s::text[])[terms] END,
        CASE WHEN NOT waits THEN (%(incarnations)s::uuid[])[terms] END,
        CASE WHEN NOT waits THEN statement_timestamp() END,
        CASE WHEN NOT waits THEN GREATEST(statement_timestamp(), ready)
          + (%(start_limits)s::float8[])[terms] * interval '1 s' END
    FROM advanced
    ON CONFLICT DO NOTHING RETURNING shard, job_id, run_id, scheduled_at, token
), waiting AS (
    INSERT INTO live (shard, job_id, run_id, scheduled_at)
    SELECT shard, job_id, run_id, scheduled_at FROM inserted
    ON CONFLICT DO NOTHING
)
SELECT at, started = %(count)s,
    (SELECT array_agg(job_id) FROM advanced WHERE started < %(count)s),
    (SELECT array_agg(job_id) FROM inserted WHERE started < %(count)s AND token > 0),
    (SELECT array_agg(job_id) FROM inserted WHERE started < %(count)s AND token = 0)
FROM (
    SELECT statement_timestamp() AS at, count(*) FILTER (WHERE token > 0) AS started FROM inserted
) went
"""
"""Return the time, and whether all were dispatched. If not, return the jobs of advanced timers, of
dispatched runs and of waiting runs. `OFFSET 0` keeps the planner from a hash of all live runs.
"""

_WAITING: Final[Mapping[str, Any]] = {
    "state": State.PENDING,
    "attempt": 0,
    "token": NO_TOKEN,
    "worker": None,
    "incarnation": None,
    "start_by": None,
}
"""The fields of a run that waits beside another live run of its job."""


def fire_running(
    connection: Connection,
    tenure: TenureId,
    firings: Sequence[FiringToSlot],
    next_token: Callable[[ShardId], Token],
    horizon: timedelta,
    switched: int,
) -> tuple[list[LiveRun], list[JobId]]:
    """Advance timers and insert their runs. Return the new live runs, dispatched or waiting, and
    the jobs whose timers didn't advance. At most one firing for each job.
    """
    _, jobs, shards, keys, batch_of = zip(*firings, strict=True)
    tokens = [*map(next_token, shards)]
    batches = [*{id(each): each for each in batch_of}.values()]
    terms = [*{id(each.terms): each.terms for each in batches}.values()]
    numbers = {id(each): n for some in (batches, terms) for n, each in enumerate(some, 1)}
    [(at, whole, advanced, running, waiting)] = connection.exec_driver_sql(
        FIRE_RUNNING,
        {
            "tenure": tenure,
            "horizon": horizon,
            "switched": switched,
            "count": len(firings),
            "jobs": arrays.ids(jobs),
            "shards": arrays.numbers(shards),
            "runs": arrays.ids([key.run_id for key in keys]),
            "tokens": arrays.numbers(tokens),
            "batches": arrays.numbers([numbers[id(each)] for each in batch_of]),
            "terms": arrays.numbers([numbers[id(each.terms)] for each in batches]),
            "priorities": arrays.numbers([each.priority.value for each in batches]),
            "due": arrays.microseconds([each.step.due_at for each in batches]),
            "next_due": arrays.microseconds([each.step.next_due_at for each in batches]),
            "next_nominal": arrays.microseconds([each.step.next_nominal for each in batches]),
            "scheduled": arrays.microseconds([e.step.runs[0].key.scheduled_at for e in batches]),
            "ready": arrays.microseconds([each.step.ready_at for each in batches]),
            "generations": arrays.numbers([each.generation for each in terms]),
            "workers": arrays.texts([each.worker for each in terms]),
            "incarnations": arrays.ids([each.incarnation for each in terms]),
            "start_limits": arrays.numbers([e.start_by_after.total_seconds() for e in terms]),
            "counted": arrays.flags([each.overlap_limit > 0 for each in terms]),
        },
    )
    live = _running(firings, tokens, at)
    if whole:
        return live, []
    started, held, passed = (frozenset(ids or ()) for ids in (running, waiting, advanced))
    live = [
        run if run.job_id in started else replace(run, **_WAITING)
        for run in live
        if run.job_id in started or run.job_id in held
    ]
    return live, [job for job in jobs if job not in passed]


def _running(
    firings: Sequence[FiringToSlot], tokens: Sequence[Token], at: datetime
) -> list[LiveRun]:
    """Return the dispatched runs, as their rows are now. `at`: the time of the statement."""
    start_by = {
        id(batch): max(batch.step.ready_at, at) + batch.terms.start_by_after
        for batch in {id(each.batch): each.batch for each in firings}.values()
    }
    return [
        LiveRun(
            key,
            job_id,
            shard,
            State.RUNNING,
            batch.priority,
            batch.step.due_at,
            batch.step.ready_at,
            1,
            0,
            token,
            batch.terms.worker,
            batch.terms.incarnation,
            start_by[id(batch)],
            generation=batch.terms.generation,
            created_at=batch.step.ready_at,
        )
        for (_, job_id, shard, key, batch), token in zip(firings, tokens, strict=True)
    ]
