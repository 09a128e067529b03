"""Apply overlap policies to runs of one job: which ones are replaced, skipped or canceled, decided
on rows (core/runs/overlap.py).

    candidates ─→ DECIDE: read their runs, choose what happens ─→ lock those rows in order ─→ PART

This needs no free slot: a job whose own run has the last slot is decided as well. Called under the
locks of the candidates' shards, so no run is assigned at the same time. Calls and results may come
in between, so PART compares token and state.

Invariants
- Only the present definition counts, and nothing is decided during a cluster pause. A run that
  waits because its job is paused replaces no other run.
- A run that is due later (a trigger with a delay) neither waits nor is replaced.
- A run that is being canceled keeps its reason. It may be killed in addition.
- `MOST` rows at a time: a transaction that holds locks must read little.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from sqlalchemy import Connection

from schedd.core.dispatch.priority_order import CLASS_STEP
from schedd.core.ids import TenureId
from schedd.core.jobs.definition import Overlap
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import OverlapCandidates, RunKey
from schedd.core.runs.overlap import BUFFERS, REPLACES, WAITS_LONG
from schedd.core.runs.records import OverlapOutcome
from schedd.store.statements import arrays
from schedd.store.statements.keys import key_arguments, lock_runs
from schedd.store.statements.rows import RUN_COLUMNS, decoded, live_run, run_id_of
from schedd.store.timers import run_quota

MOST: Final = 500


def _words(policies: Collection[Overlap]) -> str:
    return "({})".format(", ".join(f"'{policy.value}'" for policy in sorted(policies)))


BUFFERED = _words(BUFFERS)
REPLACING = _words(REPLACES)

APART = """(x.parent IS NOT NULL
    OR x.backfill IS NOT NULL AND x.overlap IS NOT DISTINCT FROM 'ALLOW')"""
"""The run `x` is from a backfill that allows overlap, or a broadcast's child: it blocks no run, and
no run blocks it.
"""

ADMITTED = f"(x.token > 0 AND NOT (x.state = 'PENDING' AND {run_quota.AS_FRESH.format(r='x')}))"
"""The live run `x` blocks others of its job."""

WAITS_IN_LINE = f"""(NOT {ADMITTED} AND NOT q.paused
    AND COALESCE(x.overlap, q.job_policy) = 'SKIP' AND x.trigger = 'SCHEDULE'
    AND x.backfill IS NULL AND x.ready_at <= x.due_at)"""
"""The scheduled run `x` waits under SKIP. ASSIGN decides caught-up runs, which are ready after they
were due.
"""

STANDING = f"""
    SELECT q.job_id, x.run_id, x.scheduled_at, x.due_at, x.priority, x.state, x.token,
        {ADMITTED} AS admitted, x.cancelling, x.killing,
        COALESCE(x.overlap, q.job_policy) AS policy,
        NOT q.paused OR x.trigger IN ('MANUAL', 'SUBMIT') AS asked,
        {WAITS_IN_LINE} AS in_line, x.ready_at
    FROM q JOIN live l ON l.shard = q.shard AND l.job_id = q.job_id
    CROSS JOIN LATERAL (
        SELECT * FROM runs r WHERE r.scheduled_at = l.scheduled_at AND r.run_id = l.run_id OFFSET 0
    ) x
    WHERE x.state IN ('PENDING', 'RUNNING', 'RETRYING') AND NOT {APART}
      AND ({ADMITTED} OR x.ready_at <= GREATEST(statement_timestamp(), q.as_of))
"""
"""Admitted and waiting runs of the jobs in `q (job_id, shard, job_policy, paused, as_of)`."""

NEXT = f"""
    SELECT jsonb_object_agg(run_id::text, true) AS runs FROM (
        SELECT run_id, CASE
            WHEN policy IN {BUFFERED} THEN row_number() OVER (PARTITION BY job_id,
                policy IN {BUFFERED} AND asked AND NOT admitted
                ORDER BY due_at - priority * interval '{CLASS_STEP.total_seconds()} s', run_id) = 1
            ELSE row_number() OVER (PARTITION BY job_id
                ORDER BY due_at, scheduled_at, run_id) = 1
              AND row_number() OVER (PARTITION BY job_id,
                policy IN {REPLACING} AND asked AND NOT admitted
                ORDER BY due_at DESC, scheduled_at DESC, run_id DESC) = 1
            END AS next, asked AND NOT admitted AS waits
        FROM ({STANDING}) w
        WHERE NOT admitted
    ) placed WHERE next AND waits
"""
"""The waiting run that may start when no run is admitted: in a buffer the first in dispatch order;
with a replacing policy the newest, when it is also the oldest.
"""

DECIDE = f"""
WITH q AS MATERIALIZED (
    SELECT b.job_id, b.shard, b.job_policy, b.as_of, t.paused
    FROM unnest(%(jobs)s::uuid[], %(shards)s::int[], %(generations)s::int[], %(policies)s::text[],
        %(as_of)s::timestamptz[]) b(job_id, shard, generation, job_policy, as_of)
    JOIN timers t ON t.job_id = b.job_id AND t.shard = b.shard AND t.generation = b.generation
    WHERE NOT (SELECT paused FROM cluster WHERE one)
), w AS MATERIALIZED (
    SELECT s.*, s.in_line AND s.job_id = ANY (%(piled)s::uuid[])
        AND s.run_id <> ALL (%(ending)s::uuid[]) AS may_queue
    FROM ({STANDING}) s
), newest AS (
    SELECT DISTINCT ON (job_id) job_id, due_at, scheduled_at, run_id, admitted,
        policy = 'TERMINATE_OTHER' AS kills
    FROM w WHERE policy IN {REPLACING} AND (admitted OR asked)
    ORDER BY job_id, due_at DESC, scheduled_at DESC, run_id DESC
), ranked AS (
    SELECT w.*, newest.admitted AS taken, newest.kills, newest.run_id AS by, older.older,
        w.may_queue AND NOT older.older AS queued
    FROM w LEFT JOIN newest USING (job_id)
    CROSS JOIN LATERAL (
        SELECT COALESCE((w.due_at, w.scheduled_at, w.run_id)
          < (newest.due_at, newest.scheduled_at, newest.run_id), false) AS older
    ) older
), placed AS (
    SELECT w.*,
        first_value(w.run_id) OVER (PARTITION BY w.job_id
            ORDER BY w.admitted DESC, w.due_at, w.scheduled_at, w.run_id) AS first,
        bool_or(w.admitted) OVER (PARTITION BY w.job_id)::int
          + row_number() OVER (PARTITION BY w.job_id, w.policy IN {BUFFERED} AND NOT w.admitted
              ORDER BY w.due_at, w.scheduled_at, w.run_id) - 1 AS place,
        first_value(w.run_id) OVER line AS ahead,
        min(w.ready_at) OVER line
          <= statement_timestamp() - interval '{WAITS_LONG} s' AS waits_long
    FROM ranked w
    WINDOW line AS (PARTITION BY w.job_id, w.queued
        ORDER BY w.due_at, w.scheduled_at, w.run_id
        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
), decided AS (
    SELECT *, CASE
        WHEN NOT admitted AND older THEN 'CANCELLED'
        WHEN queued AND waits_long AND run_id <> ahead THEN 'SKIPPED'
        WHEN NOT admitted AND policy IN {BUFFERED}
          AND place > (%(rooms)s::jsonb ->> policy)::int THEN 'SKIPPED'
        WHEN admitted AND older AND NOT taken AND state <> 'RUNNING' THEN 'CANCELLED'
        WHEN admitted AND older AND NOT taken AND (NOT cancelling OR kills AND NOT killing)
          THEN 'RUNNING'
        END AS fate
    FROM placed
)
SELECT scheduled_at, run_id, token, state, fate,
    CASE WHEN fate <> 'SKIPPED' THEN 'BY_OVERLAP' WHEN queued THEN 'OVERLAP'
      ELSE 'BUFFER_FULL' END, fate = 'RUNNING' AND kills,
    'run ' || CASE WHEN fate <> 'SKIPPED' THEN by WHEN queued THEN ahead ELSE first END
FROM decided WHERE fate IS NOT NULL ORDER BY scheduled_at, run_id LIMIT {MOST}
"""
"""`queued`: the run waits under SKIP, and neither its definition nor a newer run ends it. `taken`:
the newest run is already admitted, so the runs it replaces are being canceled, or were kept under
an earlier policy.
"""

PART = f"""
WITH b AS MATERIALIZED (
    SELECT * FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[], %(tokens)s::bigint[],
        %(befores)s::text[], %(fates)s::text[], %(reasons)s::text[], %(kills)s::bool[],
        %(excluded)s::text[])
      b(scheduled_at, run_id, token, before, fate, reason, kill, excluded_by)
), parted AS (
    UPDATE runs r SET state = b.fate,
        reason = CASE WHEN b.fate = 'RUNNING' AND r.cancelling THEN r.reason ELSE b.reason END,
        excluded_by = CASE WHEN b.fate = 'RUNNING' AND r.cancelling THEN r.excluded_by
            ELSE b.excluded_by END,
        cancelling = r.cancelling OR b.fate = 'RUNNING', killing = r.killing OR b.kill,
        fired_by = CASE WHEN b.fate = 'SKIPPED' THEN %(tenure)s ELSE r.fired_by END,
        finished_at = CASE WHEN b.fate = 'RUNNING' THEN r.finished_at
            ELSE statement_timestamp() END
    FROM b WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id
      AND r.token = b.token AND r.state = b.before
    RETURNING {RUN_COLUMNS}
), gone AS (
    DELETE FROM live l USING parted p
    WHERE p.state <> 'RUNNING' AND l.shard = p.shard AND l.job_id = p.job_id
      AND l.run_id = p.run_id
)
SELECT * FROM parted
"""

ROOMS = "{{{}}}".format(", ".join(f'"{policy}": {room}' for policy, room in BUFFERS.items()))


def part(
    connection: Connection, tenure: TenureId, candidates: Sequence[OverlapCandidates]
) -> OverlapOutcome:
    """End waiting runs by policy, and mark running ones for cancel. Each job has one candidate."""
    arguments = {
        "jobs": arrays.ids(candidate.job_id for candidate in candidates),
        "shards": arrays.numbers(candidate.shard for candidate in candidates),
        "generations": arrays.numbers(candidate.generation for candidate in candidates),
        "policies": arrays.texts(candidate.overlap.value for candidate in candidates),
        "as_of": arrays.instants(candidate.as_of for candidate in candidates),
        "rooms": ROOMS,
        "piled": arrays.ids(
            candidate.job_id for candidate in candidates if candidate.ending is not None
        ),
        "ending": arrays.ids(run for candidate in candidates for run in candidate.ending or ()),
    }
    decided = connection.exec_driver_sql(DECIDE, arguments).all()
    if not decided:
        return OverlapOutcome([], [])
    keys = key_arguments([RunKey(row[0], row[1]) for row in decided])
    lock_runs(connection, keys)
    fates = {
        "tokens": arrays.numbers(row[2] for row in decided),
        "befores": arrays.texts(row[3] for row in decided),
        "fates": arrays.texts(row[4] for row in decided),
        "reasons": arrays.texts(row[5] for row in decided),
        "kills": arrays.flags(row[6] for row in decided),
        "excluded": arrays.texts(row[7] for row in decided),
        "tenure": tenure,
    }
    found = connection.exec_driver_sql(PART, keys | fates)
    parted = decoded("runs", found, live_run, run_id_of)
    ended = [(run.key, run.job_id) for run in parted if run.state is not State.RUNNING]
    counted = {candidate.job_id for candidate in candidates if candidate.counted}
    run_quota.give_back(connection, [key for key, job in ended if job in counted])
    skipped = {run.key.run_id for run in parted if run.state is State.SKIPPED}
    overlapped = sum(row[1] in skipped and row[5] == Reason.OVERLAP for row in decided)
    running = [run for run in parted if run.state is State.RUNNING]
    return OverlapOutcome(ended, running, len(skipped), overlapped)
