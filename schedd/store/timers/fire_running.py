"""Fire due timers as RUNNING: one statement advances timers and inserts their runs dispatched.

    timers with a slot ─→ draw tokens ─→ UPDATE timers WHERE they are unchanged
                                          ─→ INSERT INTO runs: RUNNING, or PENDING beside a live run

Invariants (docs/protocol-rules.md, P1.2, P3.4, P3.6)
- Called under the locks of the timers' shards. Tokens are drawn there.
- Each timer takes one step with one run that isn't late, and a batch has one timer of a job: rows
  of one statement don't see each other.
- A run is RUNNING only if its job has no other live run, or its policy counts none. Another run of
  the job is admitted only under the shard's lock, so its job stays without one.
- An existing row of the same job and scheduled time doesn't change, and isn't dispatched here.
- Its other conditions are those of `fire`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection

from schedd.core.ids import JobId, ShardId, TenureId, Token
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import FiringToSlot, LiveRun
from schedd.store.statements import arrays
from schedd.store.statements.keys import instant

FIRE_RUNNING = f"""
WITH b AS MATERIALIZED (
    SELECT b.*, {instant("(%(due)s::bigint[])[step]")} AS due_at,
        {instant("(%(next_due)s::bigint[])[step]")} AS next_due,
        {instant("(%(next_nominal)s::bigint[])[step]")} AS next_nominal,
        {instant("(%(scheduled)s::bigint[])[step]")} AS scheduled_at
    FROM unnest(%(jobs)s::uuid[], %(shards)s::int[], %(generations)s::int[], %(runs)s::uuid[],
        %(tokens)s::bigint[], %(priorities)s::smallint[], %(terms)s::int[], %(steps)s::int[])
      b(job_id, shard, generation, run_id, next_token, priority, terms, step)
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
        'SCHEDULE', CASE WHEN waits THEN 'PENDING' ELSE 'RUNNING' END, due_at,
        generation, CASE WHEN waits THEN 0 ELSE next_token END, (NOT waits)::int, (NOT waits)::int,
        CASE WHEN NOT waits THEN (%(workers)s::text[])[terms] END,
        CASE WHEN NOT waits THEN (%(incarnations)s::uuid[])[terms] END,
        CASE WHEN NOT waits THEN statement_timestamp() END,
        CASE WHEN NOT waits THEN GREATEST(statement_timestamp(), due_at)
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
    tokens = [next_token(firing.shard) for firing in firings]
    steps = [*{id(firing.step): firing.step for firing in firings}.values()]
    terms = [*{id(firing.terms): firing.terms for firing in firings}.values()]
    step_numbers = {id(each): n for n, each in enumerate(steps, 1)}
    terms_numbers = {id(each): n for n, each in enumerate(terms, 1)}
    [(at, whole, advanced, running, waiting)] = connection.exec_driver_sql(
        FIRE_RUNNING,
        {
            "tenure": tenure,
            "horizon": horizon,
            "switched": switched,
            "count": len(firings),
            "jobs": arrays.ids([firing.job_id for firing in firings]),
            "shards": arrays.numbers([firing.shard for firing in firings]),
            "generations": arrays.numbers([firing.timer.generation for firing in firings]),
            "runs": arrays.ids([firing.key.run_id for firing in firings]),
            "tokens": arrays.numbers(tokens),
            "priorities": arrays.numbers([firing.priority.value for firing in firings]),
            "steps": arrays.numbers([step_numbers[id(firing.step)] for firing in firings]),
            "due": arrays.microseconds([step.due_at for step in steps]),
            "next_due": arrays.microseconds([step.next_due_at for step in steps]),
            "next_nominal": arrays.microseconds([step.next_nominal for step in steps]),
            "scheduled": arrays.microseconds([step.runs[0].key.scheduled_at for step in steps]),
            "terms": arrays.numbers([terms_numbers[id(firing.terms)] for firing in firings]),
            "workers": arrays.texts([each.worker for each in terms]),
            "incarnations": arrays.ids([each.incarnation for each in terms]),
            "start_limits": arrays.numbers([e.start_by_after.total_seconds() for e in terms]),
            "counted": arrays.flags([each.overlap_limit > 0 for each in terms]),
        },
    )
    if whole:
        live = [_running(*each, at) for each in zip(firings, tokens, strict=True)]
        return live, []
    started, held, passed = (frozenset(jobs or ()) for jobs in (running, waiting, advanced))
    live = [
        _running(firing, token, at) if firing.job_id in started else _pending(firing)
        for firing, token in zip(firings, tokens, strict=True)
        if firing.job_id in started or firing.job_id in held
    ]
    return live, [one.job_id for one in firings if one.job_id not in passed]


def _running(firing: FiringToSlot, token: Token, at: datetime) -> LiveRun:
    """Return the dispatched run, as its row is now. `at`: the time of the statement."""
    due, terms = firing.step.due_at, firing.terms
    return LiveRun(
        firing.key,
        firing.job_id,
        firing.shard,
        State.RUNNING,
        firing.priority,
        due,
        due,
        1,
        0,
        token,
        terms.worker,
        terms.incarnation,
        max(due, at) + terms.start_by_after,
        generation=terms.generation,
        created_at=due,
    )


def _pending(firing: FiringToSlot) -> LiveRun:
    """Return the run that waits beside another live run of its job."""
    due = firing.step.due_at
    return LiveRun(
        firing.key,
        firing.job_id,
        firing.shard,
        State.PENDING,
        firing.priority,
        due,
        due,
        generation=firing.timer.generation,
        created_at=due,
    )
