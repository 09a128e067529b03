"""Join chains: create the child's run when its parents have ended, or a skipped row (P5.3).

    a parent's run ends ─→ chain_arrivals, by the trigger of its `live` row, in that transaction
    due, read ─→ timers FOR SHARE ─→ events locked ─→ parents still to come ─→ judge
              ─→ insert the run, or the skipped row (an event for its own children) ─→ delete

Invariants
- The owner of the child's shard judges under the shard's lock. The run is inserted in the
  transaction that deletes its events, so a crash loses neither.
- The run's id derives from the child and the cycle, so it can't be inserted twice.
- One statement finds the parents still to come, and a run's end and its event are written together.
  So in each snapshot a parent's run is either live or has its event.
- Only the present definition counts, and nothing is judged during a cluster pause.
- An at-most-once run isn't created in a cycle that began before the database was restored.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection

from schedd.core.ids import JobId, RunId, TenureId, chained_run_id, redriven_run_id
from schedd.core.jobs.chains import (
    OF_SCHEDULES,
    ChainJoin,
    JoinDecision,
    JoinStep,
    ParentEnded,
    Wanted,
    judge,
)
from schedd.core.jobs.chains import look_after as looked_after
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import Claim, LiveRun
from schedd.core.runs.records import ChainRefused
from schedd.store.cluster import cluster_pauses
from schedd.store.cluster.fenced_transaction import in_fence, shards_of
from schedd.store.connection.database import Database, in_transaction
from schedd.store.jobs import chains
from schedd.store.results import chain_events
from schedd.store.results.accept import results_of
from schedd.store.statements import arrays
from schedd.store.statements.operations import operations
from schedd.store.statements.rows import RUN_COLUMNS, decoded, live_run, run_id_of
from schedkit import failpoints
from schedkit.records import dataclass

BEFORE_JOIN = failpoints.blocking("chain.before_commit")

AGAIN_AFTER: Final = timedelta(milliseconds=200)
"""The delay of a join that was read with an outdated definition."""

MAY_HAVE_RUN: Final = "it may have run in what the database lost, and runs at most once"

TIMERS = """
SELECT t.job_id, t.generation, t.paused, clock_timestamp() FROM timers t
WHERE t.job_id = ANY (%(jobs)s::uuid[]) AND t.shard = ANY (%(shards)s::int[])
  AND NOT (SELECT paused FROM cluster WHERE one)
ORDER BY t.job_id FOR SHARE
"""

PARENTS = """
SELECT e.child, e.parent, j.name FROM chain_edges e JOIN jobs j ON j.job_id = e.parent
WHERE e.child = ANY (%(jobs)s::uuid[])
"""

MADE = """
SELECT b.run_id, r.state, r.reason, r.parents
FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[]) b(scheduled_at, run_id)
CROSS JOIN LATERAL (
    SELECT * FROM runs r WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id OFFSET 0
) r
"""

COMING = f"""
WITH RECURSIVE j AS MATERIALIZED (
    SELECT * FROM unnest(%(ns)s::int[], %(children)s::uuid[], %(scheduled)s::timestamptz[],
        %(roots)s::uuid[], %(parents)s::uuid[]) j(n, child, scheduled_at, root, parent)
), up AS (
    SELECT n, parent, parent AS job FROM j
    UNION
    SELECT up.n, up.parent, e.parent FROM up JOIN chain_edges e ON e.child = up.job
)
SELECT j.n, j.parent FROM j WHERE EXISTS (
    SELECT FROM chain_arrivals a WHERE a.child = j.child AND a.scheduled_at = j.scheduled_at
      AND a.root = j.root AND a.parent = j.parent
) UNION
SELECT j.n, j.parent FROM up JOIN j ON j.n = up.n AND j.parent = up.parent
WHERE EXISTS (
        SELECT FROM chain_arrivals a WHERE a.child = up.job AND a.scheduled_at = j.scheduled_at
          AND a.root = j.root
    ) OR EXISTS (
        SELECT FROM timers t JOIN live l ON l.shard = t.shard AND l.job_id = t.job_id
        CROSS JOIN LATERAL (
            SELECT COALESCE(r.root, CASE r.trigger WHEN 'SCHEDULE' THEN '{OF_SCHEDULES}'::uuid
                ELSE r.run_id END) AS root
            FROM runs r WHERE r.scheduled_at = l.scheduled_at AND r.run_id = l.run_id OFFSET 0
        ) r
        WHERE t.job_id = up.job AND l.scheduled_at = j.scheduled_at AND r.root = j.root
    ) OR EXISTS (
        SELECT FROM timers t WHERE t.job_id = up.job AND j.root = '{OF_SCHEDULES}'
          AND t.nominal <= j.scheduled_at AND t.due_at IS NOT NULL AND NOT t.paused
    )
"""
"""Parents that were read without an event: those that have one by now, and those that may still run
in the cycle. A parent may still run if it or one of its ancestors has a live run or a waiting event
of the cycle, or a timer that is due before it.
"""

MAKE = f"""
WITH b AS MATERIALIZED (
    SELECT * FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[], %(children)s::uuid[],
        %(roots)s::uuid[], %(shards)s::int[], %(priorities)s::smallint[], %(states)s::text[],
        %(reasons)s::text[], %(generations)s::int[], %(by)s::text[], %(parents)s::text[],
        %(payloads)s::bytea[], %(redriven)s::uuid[], %(overlaps)s::text[])
      b(scheduled_at, run_id, job_id, root, shard, priority, state, reason, generation, excluded_by,
        parents, payload, redrive_of, overlap)
), inserted AS (
    INSERT INTO runs AS r (scheduled_at, run_id, job_id, due_at, shard, priority, trigger, state,
        ready_at, generation, reason, finished_at, excluded_by, payload, redrive_of, overlap, root,
        parents, fired_by)
    SELECT scheduled_at, run_id, job_id, statement_timestamp(), shard, priority, 'SCHEDULE', state,
        statement_timestamp(), generation, reason,
        CASE state WHEN 'PENDING' THEN NULL ELSE statement_timestamp() END, excluded_by, payload,
        redrive_of, overlap, root, parents::jsonb, %(tenure)s
    FROM b ON CONFLICT DO NOTHING RETURNING {RUN_COLUMNS}, r.root
), waiting AS (
    INSERT INTO live (shard, job_id, run_id, scheduled_at)
    SELECT shard, job_id, run_id, scheduled_at FROM inserted WHERE state = 'PENDING'
    ON CONFLICT DO NOTHING
), passed AS (
    INSERT INTO chain_arrivals (child, scheduled_at, root, parent, run_id, state)
    SELECT e.child, i.scheduled_at, i.root, i.job_id, i.run_id, i.state
    FROM inserted i JOIN chain_edges e ON e.parent = i.job_id WHERE i.state <> 'PENDING'
    ON CONFLICT (child, scheduled_at, root, parent) DO UPDATE
        SET run_id = EXCLUDED.run_id, state = EXCLUDED.state, look_at = EXCLUDED.look_at
)
SELECT * FROM inserted WHERE state = 'PENDING'
"""

BEGUN = """
SELECT b.root, r.created_at
FROM unnest(%(scheduled)s::timestamptz[], %(roots)s::uuid[]) b(scheduled_at, root)
CROSS JOIN LATERAL (
    SELECT * FROM runs r WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.root OFFSET 0
) r
"""
"""When the first runs of triggered cycles were created."""

UPDATE_SKIPPED = """
UPDATE runs r SET parents = b.parents::jsonb, excluded_by = b.excluded_by
FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[], %(parents)s::text[], %(by)s::text[])
  b(scheduled_at, run_id, parents, excluded_by)
WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id
"""
"""For skipped runs: a parent was redriven, and the condition still isn't met."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """Rows that the transaction read, under its locks."""

    now: datetime
    paused: Mapping[JobId, bool]
    parents: Mapping[JobId, Mapping[JobId, str]]
    made: Mapping[RunId, tuple[str, str | None, Any]]
    coming: Mapping[int, Collection[JobId]]
    doubtful: Collection[int]
    """Places of at-most-once joins that may have run in the lost database."""


@dataclass(frozen=True, slots=True)
class _New:
    """A row to insert or update."""

    wanted: Wanted
    run_id: RunId
    state: State
    reason: str | None
    why: str
    parents: Mapping[JobId, ParentEnded]
    redrive_of: RunId | None = None


def join(connection: Connection, claim: Claim, wanted: Sequence[Wanted]) -> list[LiveRun]:
    """Judge these joins, under the locks of their shards. Returns the created runs. Joins that
    changed since they were read are left for the next call.
    """
    values = {
        "jobs": arrays.ids(sorted({one.join.child for one in wanted})),
        "shards": arrays.numbers(shards_of(wanted)),
    }
    timers = connection.exec_driver_sql(TIMERS, values).all()
    generations = {JobId(job): generation for job, generation, _, _ in timers}
    stale = [one for one in wanted if generations.get(one.join.child) != one.generation]
    if timers:
        chain_events.later(connection, [(one.join, AGAIN_AFTER) for one in stale])
    mine = chain_events.unchanged(connection, [one for one in wanted if one not in stale])
    if not mine:
        return []
    seen = _read_parents(connection, mine, timers)
    new: list[_New] = []
    updated: list[_New] = []
    over: list[ChainJoin] = []
    later: list[tuple[ChainJoin, timedelta]] = []
    for n, one in enumerate(mine):
        steps = _judged(one, n, seen)
        if isinstance(steps, timedelta):
            later.append((one.join, steps))
            continue
        over.append(one.join)
        for row, inserts in steps:
            (new if inserts else updated).append(row)
    made = _make(connection, claim.tenure, new) if new else []
    if updated:
        _update_skipped(connection, updated)
    chain_events.delete_decided(connection, over)
    chain_events.later(connection, later)
    return made


def _read_parents(connection: Connection, mine: Sequence[Wanted], timers: Sequence[Any]) -> _Seen:
    parents: dict[JobId, dict[JobId, str]] = {one.join.child: {} for one in mine}
    arguments = {"jobs": arrays.ids(parents)}
    for child, parent, name in connection.exec_driver_sql(PARENTS, arguments):
        parents[JobId(child)][JobId(parent)] = name
    ids = [(one, run_id) for one in mine for run_id in _ids(one)]
    values = {
        "scheduled": arrays.instants(one.join.cycle.scheduled_at for one, _ in ids),
        "runs": arrays.ids(run_id for _, run_id in ids),
    }
    rows = connection.exec_driver_sql(MADE, values)
    made = {RunId(run_id): (state, reason, ended) for run_id, state, reason, ended in rows}
    return _Seen(
        timers[0][3],
        {JobId(job): paused for job, _, paused, _ in timers},
        parents,
        made,
        _coming(connection, mine, parents),
        _doubtful(connection, mine),
    )


def _doubtful(connection: Connection, mine: Sequence[Wanted]) -> set[int]:
    """Return the places of at-most-once joins whose cycle began before the database was restored.
    Their parents may have ended in the lost database, and the run may have run there.
    """
    once = {n: one.join.cycle for n, one in enumerate(mine) if one.at_most_once}
    if not once:
        return set()
    [(until,)] = connection.exec_driver_sql(f"SELECT {cluster_pauses.DOUBTFUL}")
    if until is None:
        return set()
    own = [cycle for cycle in once.values() if cycle.root != OF_SCHEDULES]
    arguments = {
        "scheduled": arrays.instants(cycle.scheduled_at for cycle in own),
        "roots": arrays.ids(cycle.root for cycle in own),
    }
    rows = connection.exec_driver_sql(BEGUN, arguments).all() if own else ()
    begun = {row.root: row.created_at for row in rows}
    return {n for n, one in once.items() if begun.get(one.root, one.scheduled_at) <= until}


def _coming(
    connection: Connection, mine: Sequence[Wanted], parents: Mapping[JobId, Mapping[JobId, str]]
) -> dict[int, set[JobId]]:
    """Return, by place of the join, the parents without an event that may still run."""
    missing = [
        (n, one, parent)
        for n, one in enumerate(mine)
        for parent in parents[one.join.child]
        if parent not in one.join.arrived
    ]
    coming: dict[int, set[JobId]] = {}
    if missing:
        arguments = chain_events.keys(
            [(one.join.child, one.join.cycle) for _, one, _ in missing]
        ) | {
            "ns": arrays.numbers(n for n, _, _ in missing),
            "parents": arrays.ids(parent for _, _, parent in missing),
        }
        for n, parent in connection.exec_driver_sql(COMING, arguments):
            coming.setdefault(n, set()).add(JobId(parent))
    return coming


def _judged(one: Wanted, n: int, seen: _Seen) -> timedelta | list[tuple[_New, bool]]:
    """Return the rows, each with whether it is inserted, or how long to wait."""
    joined = one.join
    first, again = _ids(one)
    arrived: dict[JobId, ParentEnded] = dict(joined.arrived)
    parents = seen.parents[joined.child]
    before = seen.made.get(first)
    if before is not None:
        state, reason, ended = before
        if again in seen.made or state != State.SKIPPED or reason is not None:
            return []  # it ran, will run, or was skipped for another reason
        arrived = chain_events.parents_of(ended) | arrived
    waited = seen.now - joined.first_at
    judged = judge(
        one.after.when, parents, arrived, seen.coming.get(n, ()) if before is None else (), waited
    )
    if judged.step is JoinStep.WAIT:
        return looked_after(waited)
    if judged.step is JoinStep.RUN and n in seen.doubtful:
        judged = JoinDecision(JoinStep.SKIP, MAY_HAVE_RUN)
    if before is None:
        return [(_first(one, first, judged, arrived, seen), True)]
    if judged.step is JoinStep.RUN:
        redo = _New(one, again, State.PENDING, None, "", arrived, redrive_of=first)
        return [(redo, True)]
    return [(_New(one, first, State.SKIPPED, None, judged.why, arrived), False)]


def _first(
    one: Wanted,
    run_id: RunId,
    judged: JoinDecision,
    arrived: Mapping[JobId, ParentEnded],
    seen: _Seen,
) -> _New:
    if judged.step is JoinStep.SKIP:
        return _New(one, run_id, State.SKIPPED, None, judged.why, arrived)
    if seen.paused[one.join.child]:
        why = "its job was paused when all its parents had ended"
        return _New(one, run_id, State.SKIPPED, "PAUSED", why, arrived)
    return _New(one, run_id, State.PENDING, None, "", arrived)


def _make(connection: Connection, tenure: TenureId, new: Sequence[_New]) -> list[LiveRun]:
    joins = [one.wanted.join for one in new]
    arguments = chain_events.keys([(one.child, one.cycle) for one in joins]) | {
        "runs": arrays.ids(one.run_id for one in new),
        "shards": arrays.numbers(one.shard for one in joins),
        "priorities": arrays.numbers(one.wanted.priority for one in new),
        "states": arrays.texts(one.state.value for one in new),
        "reasons": arrays.texts(one.reason for one in new),
        "generations": arrays.numbers(one.wanted.generation for one in new),
        "by": arrays.texts(one.why or None for one in new),
        "parents": arrays.texts(_parents_json(one.parents) for one in new),
        "payloads": arrays.blobs(
            one.wanted.payload if one.state is State.PENDING else None for one in new
        ),
        "redriven": arrays.ids(one.redrive_of for one in new),
        "overlaps": arrays.texts(
            one.wanted.overlap_again if one.redrive_of else None for one in new
        ),
        "tenure": tenure,
    }
    return decoded("runs", connection.exec_driver_sql(MAKE, arguments), live_run, run_id_of)


def _update_skipped(connection: Connection, rows: Sequence[_New]) -> None:
    arguments = chain_events.keys(
        [(one.wanted.join.child, one.wanted.join.cycle) for one in rows]
    ) | {
        "runs": arrays.ids(one.run_id for one in rows),
        "parents": arrays.texts(_parents_json(one.parents) for one in rows),
        "by": arrays.texts(one.why for one in rows),
    }
    connection.exec_driver_sql(UPDATE_SKIPPED, arguments)


def _ids(one: Wanted) -> tuple[RunId, RunId]:
    """Return the ids of the cycle's run, and of the run that replaces it if it was skipped."""
    cycle = one.join.cycle
    first = chained_run_id(one.join.child, cycle.scheduled_at, cycle.root)
    return first, redriven_run_id(first)


def _parents_json(parents: Mapping[JobId, ParentEnded]) -> str:
    return json.dumps(
        [
            {"id": str(job), "job": one.job, "run": str(one.run_id), "state": one.state.value}
            for job, one in sorted(parents.items(), key=lambda each: each[1].job)
        ]
    )


def _put_off(
    connection: Connection, _: Claim, joins: Sequence[ChainJoin], wait: timedelta
) -> list[LiveRun]:
    """Judge these joins after a delay."""
    chain_events.later(connection, [(one, wait) for one in joins])
    return []


def _fault(
    connection: Connection, job_id: JobId | None, namespace: str, name: str, after: Collection[str]
) -> ChainRefused | None:
    found = chains.fault(connection, job_id, namespace, name, after)
    return found if isinstance(found, ChainRefused) else None


@operations("chains")
@dataclass(frozen=True, slots=True)
class ChainStore:
    """Reads and fenced writes of an owner for joins, and reads of calls for the graph."""

    database: Database

    due = in_transaction(chain_events.due)
    results = in_transaction(results_of)
    join = in_fence(join, BEFORE_JOIN)
    put_off = in_fence(_put_off)
    fault = in_transaction(_fault)
    waiting = in_transaction(chain_events.of_job)
