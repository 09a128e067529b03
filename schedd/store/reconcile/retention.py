"""Read ended runs that are past their retention, and delete them with all their rows.

    pages of old rows, read without a lock ─→ runs/retention decides ─→ one transaction a batch:
    shards locked · timers of submitted work locked · runs locked · what belongs to them · runs

Invariants
- The deletion checks each row again: the run has ended, and has no waiting dead letter unless it
  was chosen with it. A run is kept while a notification waits for delivery, its pool's rate may
  count it, a chain needs it, or its broadcast hasn't ended.
- Objects in the result store are recorded (`unwanted`) in the transaction that deletes the rows, so
  a crash leaves no orphaned object.
- Timers, counts and the audit log are kept: `max_runs` and failures in a row don't depend on rows
  of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection

from schedd.core.ids import JobId, RunId, ShardId
from schedd.core.runs.lifecycle import TERMINAL
from schedd.core.runs.model import Claim, RunKey
from schedd.core.runs.retention import EndedRun, OldRuns, Unwanted
from schedd.store.cluster.fenced_transaction import in_fence, shards_of
from schedd.store.connection.database import Database, in_transaction
from schedd.store.statements import arrays
from schedd.store.statements.keys import key_arguments, lock_runs
from schedd.store.statements.operations import operations
from schedkit import failpoints
from schedkit.objects import log_key, place_of
from schedkit.records import dataclass

BEFORE_DELETE = failpoints.blocking("retention.before_commit")

_ENDED: Final = ", ".join(f"'{state.value}'" for state in sorted(TERMINAL, key=str))

LONGEST_RATE: Final = "interval '2 days'"
"""How long a run with an open turn in its pool may count in a rate, at most."""

OF_ONE_JOB: Final = 100
"""Runs of one job in a page, so that other jobs fit in."""

_FACTS: Final = """r.scheduled_at, r.run_id, r.shard, r.job_id,
    COALESCE(r.finished_at, r.created_at), COALESCE(r.scheduled_until, r.scheduled_at),
    j.retention, j.ephemeral, d.run_id IS NOT NULL, d.redrive IS NOT NULL, r.state"""

_BESIDE: Final = """JOIN jobs j ON j.job_id = r.job_id
LEFT JOIN dead_letters d ON d.run_id = r.run_id AND d.resolution IS NULL"""

OLD = f"""
SELECT {_FACTS} FROM (
    SELECT * FROM runs
    WHERE (scheduled_at, run_id) > (%(at)s, %(run)s)
      AND scheduled_at >= %(at)s AND scheduled_at < %(before)s
    ORDER BY scheduled_at, run_id LIMIT %(limit)s
) r {_BESIDE}
ORDER BY r.scheduled_at, r.run_id
"""

OLD_LETTERS = f"""
SELECT {_FACTS} FROM (
    SELECT scheduled_at, run_id FROM dead_letters
    WHERE resolution IS NULL AND (scheduled_at, run_id) > (%(at)s, %(run)s)
      AND scheduled_at < %(before)s
    ORDER BY scheduled_at, run_id LIMIT %(limit)s
) w JOIN runs r ON r.scheduled_at = w.scheduled_at AND r.run_id = w.run_id {_BESIDE}
ORDER BY r.scheduled_at, r.run_id
"""

WITH_RETENTION = """
SELECT job_id FROM jobs WHERE retention IS NOT NULL AND job_id > %(after)s
ORDER BY job_id LIMIT %(limit)s
"""

OF_JOBS = f"""
SELECT {_FACTS}
FROM unnest(%(jobs)s::uuid[], %(ats)s::timestamptz[], %(runs)s::uuid[]) b(job_id, at, run)
CROSS JOIN LATERAL (
    SELECT r.* FROM runs r JOIN jobs o ON o.job_id = r.job_id
    WHERE r.job_id = b.job_id AND r.scheduled_at >= b.at
      AND (r.scheduled_at, r.run_id) > (b.at, b.run)
      AND r.scheduled_at < %(now)s::timestamptz - o.retention
      AND COALESCE(r.finished_at, r.created_at) <= %(now)s::timestamptz - o.retention
      AND r.state IN ({_ENDED}) AND r.shard = ANY (%(shards)s::int[])
      AND NOT EXISTS (
        SELECT 1 FROM dead_letters w WHERE w.run_id = r.run_id AND w.resolution IS NULL)
    ORDER BY r.scheduled_at, r.run_id LIMIT {OF_ONE_JOB}
) r {_BESIDE} LIMIT %(limit)s
"""

OLD_LOGS = f"""
SELECT {_FACTS} FROM (
    SELECT DISTINCT scheduled_at, run_id FROM outputs
    WHERE (scheduled_at, run_id) > (%(at)s, %(run)s) AND scheduled_at < %(before)s
    ORDER BY scheduled_at, run_id LIMIT %(limit)s
) o JOIN runs r ON r.scheduled_at = o.scheduled_at AND r.run_id = o.run_id {_BESIDE}
ORDER BY r.scheduled_at, r.run_id
"""

LOCK_TIMERS = """
SELECT 1 FROM timers WHERE job_id = ANY (%s::uuid[]) ORDER BY job_id FOR UPDATE
"""

DELETE = f"""
WITH b AS MATERIALIZED (
    SELECT * FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[], %(waiting)s::bool[])
      b(scheduled_at, run_id, waiting)
), gone AS (
    DELETE FROM runs r USING b
    WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id
      AND r.state IN ({_ENDED}) AND r.shard = ANY (%(shards)s::int[])
      AND NOT EXISTS (SELECT 1 FROM dead_letters d WHERE d.run_id = b.run_id
        AND d.resolution IS NULL AND (NOT b.waiting OR d.redrive IS NOT NULL))
      AND NOT EXISTS (SELECT 1 FROM notifications n WHERE n.job_id = r.job_id
        AND n.run_id = r.run_id)
      AND NOT EXISTS (SELECT 1 FROM pool_turns t WHERE t.run_id = r.run_id AND NOT t.ended
        AND t.start_by > statement_timestamp() - {LONGEST_RATE})
      AND NOT EXISTS (SELECT 1 FROM chain_arrivals a WHERE a.run_id = r.run_id)
      AND NOT EXISTS (SELECT 1 FROM runs p WHERE p.scheduled_at = r.scheduled_at
        AND p.run_id = r.parent AND p.state NOT IN ({_ENDED}))
    RETURNING r.run_id, r.job_id, r.shard, r.assignments
), a AS (DELETE FROM attempts USING gone WHERE attempts.run_id = gone.run_id
), o AS (DELETE FROM outputs USING gone WHERE outputs.run_id = gone.run_id
    RETURNING outputs.run_id, stored
), s AS (DELETE FROM results USING gone WHERE results.run_id = gone.run_id
    RETURNING results.run_id, stored
), l AS (DELETE FROM dead_letters USING gone WHERE dead_letters.run_id = gone.run_id
)
SELECT g.run_id, g.shard, j.namespace, g.assignments > 1 OR g.run_id IN (
    SELECT run_id FROM o WHERE stored UNION ALL SELECT run_id FROM s WHERE stored)
FROM gone g JOIN jobs j ON j.job_id = g.job_id
"""

EPHEMERAL = """
DELETE FROM jobs j WHERE j.job_id = ANY (%(jobs)s::uuid[]) AND j.ephemeral
  AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.job_id = j.job_id)
RETURNING j.job_id
"""

BESIDE_A_JOB = ("timers", "notices", "failing", "resumptions")
"""Tables with rows of a job that are deleted with it."""

DELETE_LOGS = """
WITH gone AS (
    DELETE FROM outputs o USING unnest(%(runs)s::uuid[], %(shards_of)s::int[]) b(run_id, shard)
    WHERE o.run_id = b.run_id
      AND NOT EXISTS (
        SELECT 1 FROM dead_letters d WHERE d.run_id = b.run_id AND d.resolution IS NULL)
    RETURNING o.run_id, o.token, o.scheduled_at, o.stored, b.shard
)
SELECT g.run_id, g.shard, j.namespace, g.stored, g.token FROM gone g
JOIN runs r ON r.scheduled_at = g.scheduled_at AND r.run_id = g.run_id
JOIN jobs j ON j.job_id = r.job_id
"""

REMEMBER = """
INSERT INTO unwanted (place, shard) SELECT * FROM unnest(%s::text[], %s::int[])
ON CONFLICT DO NOTHING
"""

UNWANTED = """
SELECT place, shard FROM unwanted WHERE shard = ANY (%s::int[]) ORDER BY since LIMIT %s
"""

PUT_ASIDE = """
UPDATE unwanted SET since = clock_timestamp() WHERE place = ANY (%s::text[]) RETURNING place
"""

FORGET_OBJECTS = "DELETE FROM unwanted WHERE place = ANY (%s::text[]) RETURNING place"


def _pages(
    statement: str,
) -> Callable[[Connection, Sequence[ShardId], RunKey, datetime, int], OldRuns]:
    """Return the read of a page of old rows after a key: the ended runs of these shards."""

    def page(
        connection: Connection,
        shards: Sequence[ShardId],
        after: RunKey,
        before: datetime,
        limit: int,
    ) -> OldRuns:
        asked = {"at": after.scheduled_at, "run": after.run_id, "before": before, "limit": limit}
        rows = connection.exec_driver_sql(statement, asked).all()
        last = RunKey(rows[-1].scheduled_at, RunId(rows[-1].run_id)) if rows else None
        mine = set(shards)
        return OldRuns([*_ended_runs(row for row in rows if row.shard in mine)], last)

    return page


def with_retention(connection: Connection, after: JobId, limit: int) -> list[JobId]:
    rows = connection.exec_driver_sql(WITH_RETENTION, {"after": after, "limit": limit})
    return [JobId(job) for job in rows.scalars()]


def old_runs_of(
    connection: Connection,
    shards: Sequence[ShardId],
    past: Mapping[JobId, RunKey],
    now: datetime,
    limit: int,
) -> list[EndedRun]:
    """Return runs of these jobs after these keys that are past the jobs' own retention."""
    arguments = {
        "jobs": arrays.ids(past),
        "ats": arrays.instants(key.scheduled_at for key in past.values()),
        "runs": arrays.ids(key.run_id for key in past.values()),
        "shards": arrays.numbers(shards),
        "now": now,
        "limit": limit,
    }
    rows = connection.exec_driver_sql(OF_JOBS, arguments)
    return [*_ended_runs(rows)]


def delete_runs(connection: Connection, _: Claim, chosen: Sequence[EndedRun]) -> list[RunId]:
    """Delete these runs with all their rows. Returns those that were deleted."""
    submitted = arrays.ids({run.job_id for run in chosen if run.ephemeral})
    connection.exec_driver_sql(LOCK_TIMERS, (submitted,))
    keys = key_arguments([run.key for run in chosen])
    lock_runs(connection, keys)
    gone = connection.exec_driver_sql(
        DELETE,
        keys
        | {
            "waiting": arrays.flags(run.waits for run in chosen),
            "shards": arrays.numbers(shards_of(chosen)),
        },
    )
    rows = gone.all()
    _remember(
        connection,
        [
            Unwanted(place_of(namespace, str(run)), ShardId(shard))
            for run, shard, namespace, stored in rows
            if stored
        ],
    )
    jobs = connection.exec_driver_sql(EPHEMERAL, {"jobs": submitted}).scalars().all()
    for table in BESIDE_A_JOB if jobs else ():
        connection.exec_driver_sql(
            f"DELETE FROM {table} WHERE job_id = ANY (%s::uuid[])", (arrays.ids(jobs),)
        )
    return [RunId(run) for run, *_ in rows]


def delete_logs(connection: Connection, _: Claim, chosen: Sequence[EndedRun]) -> list[RunId]:
    """Delete the output of these runs. Returns those that had any."""
    lock_runs(connection, key_arguments([run.key for run in chosen]))
    values = {
        "runs": arrays.ids(run.key.run_id for run in chosen),
        "shards_of": arrays.numbers(run.shard for run in chosen),
    }
    gone = connection.exec_driver_sql(DELETE_LOGS, values)
    rows = gone.all()
    _remember(
        connection,
        [
            Unwanted(log_key(namespace, str(run), token), ShardId(shard))
            for run, shard, namespace, stored, token in rows
            if stored
        ],
    )
    return [*{RunId(run) for run, *_ in rows}]


def _remember(connection: Connection, left: Sequence[Unwanted]) -> None:
    """Record objects to remove from the result store after the commit."""
    if left:
        places = arrays.texts(one.place for one in left)
        connection.exec_driver_sql(REMEMBER, (places, arrays.numbers(one.shard for one in left)))


def unwanted(connection: Connection, shards: Sequence[ShardId], limit: int) -> list[Unwanted]:
    """Return objects whose rows were deleted, oldest first."""
    rows = connection.exec_driver_sql(UNWANTED, (arrays.numbers(shards), limit))
    return [Unwanted(place, ShardId(shard)) for place, shard in rows]


def put_aside(connection: Connection, _: Claim, stuck: Sequence[Unwanted]) -> list[str]:
    """Move objects that couldn't be removed to the end of the order."""
    places = arrays.texts(one.place for one in stuck)
    return [*connection.exec_driver_sql(PUT_ASIDE, (places,)).scalars()]


def forget_objects(connection: Connection, _: Claim, removed: Sequence[Unwanted]) -> list[str]:
    places = arrays.texts(one.place for one in removed)
    return [*connection.exec_driver_sql(FORGET_OBJECTS, (places,)).scalars()]


def _ended_runs(rows: Iterable[Any]) -> Iterable[EndedRun]:
    for at, run, shard, job, *rest, state in rows:
        if state in TERMINAL:
            yield EndedRun(RunKey(at, run), shard, job, *rest)


@operations("retention")
@dataclass(frozen=True, slots=True)
class RetentionStore:
    """Pages of old data are hints, read without a lock. Deletions check each row again, fenced."""

    database: Database

    old_runs = in_transaction(_pages(OLD))
    old_letters = in_transaction(_pages(OLD_LETTERS))
    old_logs = in_transaction(_pages(OLD_LOGS))
    with_retention = in_transaction(with_retention)
    old_runs_of = in_transaction(old_runs_of)
    delete_runs = in_fence(delete_runs, BEFORE_DELETE)
    delete_logs = in_fence(delete_logs)
    unwanted = in_transaction(unwanted)
    put_aside = in_fence(put_aside)
    forget_objects = in_fence(forget_objects)
