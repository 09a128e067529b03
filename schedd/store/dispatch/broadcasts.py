"""Broadcasts: begin with their children, end with the last child (docs/protocol-rules.md, P3.22).

    begin  assigned without a worker ─→ children inserted, in the transaction that assigned it
    close  parents and children locked in order ─→ children of canceled ones: marked or ended
                                                ─→ no live child: end the parent

Invariants
- A child's id derives from its parent's id and its worker's name, so it can't be inserted twice.
  All children are inserted when the parent goes from PENDING to RUNNING, none later.
- A child has its parent's scheduled time, so both are in one partition.
- Code that ends a child doesn't handle the parent. The parent's end is decided on rows, under its
  shard's lock, and the UPDATE compares the state. So each parent ends once, under any owner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from schedd.core.ids import IncarnationId, RunId, ShardId, TenureId, child_run_id
from schedd.core.jobs.notifications import NotifiableEvent
from schedd.core.runs.broadcast import BroadcastChild, ClosedBroadcasts, Closing, End, end_of
from schedd.core.runs.lifecycle import LIVE, Reason, State
from schedd.core.runs.model import Incarnation, LiveRun, RunKey
from schedd.core.runs.retry import fingerprint
from schedd.store.cluster.fence import BY_INDEX
from schedd.store.notify import outbox
from schedd.store.results import failure_counts
from schedd.store.statements import arrays
from schedd.store.statements.keys import key_arguments, lock_runs
from schedd.store.statements.rows import (
    INCARNATION_COLUMNS,
    RUN_COLUMNS,
    RUN_WIDTH,
    decoded,
    incarnation,
    live_run,
    run_id_of,
)

THERE = f"""
SELECT {INCARNATION_COLUMNS} FROM incarnations i
WHERE i.id = ANY (%(ids)s::uuid[]) AND i.lost_at IS NULL
  AND NOT EXISTS (SELECT FROM drains d WHERE d.worker = i.worker)
"""

DONE = """
WITH RECURSIVE before AS (
    SELECT b.run_id AS wanted, r.redrive_of FROM unnest(%(scheduled)s::timestamptz[],
        %(runs)s::uuid[]) b(scheduled_at, run_id)
    JOIN runs r ON r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id
    WHERE r.redrive_of IS NOT NULL
    UNION ALL
    SELECT before.wanted, r.redrive_of FROM before JOIN runs r ON r.run_id = before.redrive_of
    WHERE r.redrive_of IS NOT NULL
)
SELECT DISTINCT before.wanted, c.target FROM before JOIN runs c ON c.parent = before.redrive_of
WHERE c.state = 'SUCCEEDED'
"""
"""Workers on which the redriven runs succeeded before. Ended runs never change."""

BEGIN = f"""
WITH b AS MATERIALIZED (
    SELECT * FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[], %(counts)s::int[])
      b(scheduled_at, run_id, children)
), begun AS (
    UPDATE runs r SET children = b.children, started_at = statement_timestamp(), start_by = NULL
    FROM b WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id
    RETURNING {RUN_COLUMNS}, r.trigger, r.payload
), made AS (
    INSERT INTO runs AS r (scheduled_at, run_id, job_id, due_at, shard, priority, trigger, state,
        ready_at, generation, overlap, payload, parent, target, fired_by)
    SELECT p.scheduled_at, c.run_id, p.job_id, statement_timestamp(), p.shard, p.priority,
        p.trigger, 'PENDING', statement_timestamp(), p.generation, 'ALLOW', p.payload, p.run_id,
        c.target, %(tenure)s
    FROM unnest(%(parents)s::uuid[], %(children)s::uuid[], %(targets)s::text[])
      c(parent, run_id, target) JOIN begun p ON p.run_id = c.parent
    ON CONFLICT DO NOTHING RETURNING {RUN_COLUMNS}
), waiting AS (
    INSERT INTO live (shard, job_id, run_id, scheduled_at)
    SELECT shard, job_id, run_id, scheduled_at FROM made ON CONFLICT DO NOTHING
)
SELECT {RUN_COLUMNS} FROM begun r UNION ALL SELECT {RUN_COLUMNS} FROM made r
"""
"""The parents were assigned in this transaction, so their rows are locked."""

OVER = """
SELECT p.scheduled_at, p.run_id
FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[]) b(scheduled_at, run_id)
CROSS JOIN LATERAL (
    SELECT * FROM runs r WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id
      AND r.scheduled_at >= %(first)s AND r.scheduled_at < %(last)s OFFSET 0
) p
CROSS JOIN LATERAL (
    SELECT count(*) AS live, count(*) FILTER (WHERE NOT c.cancelling OR p.killing > c.killing)
      AS untold
    FROM live l CROSS JOIN LATERAL (
        SELECT * FROM runs c WHERE c.scheduled_at = p.scheduled_at AND c.run_id = l.run_id OFFSET 0
    ) c
    WHERE l.shard = p.shard AND l.job_id = p.job_id AND l.scheduled_at = p.scheduled_at
      AND c.parent = p.run_id
) c
WHERE p.state = 'RUNNING' AND p.children IS NOT NULL
  AND (c.live = 0 OR p.cancelling AND c.untold > 0)
"""
"""Remaining children are found in `live`: a broadcast may have thousands of ended children, which
each read would scan.
"""

FAMILY = """
SELECT r.scheduled_at, r.run_id
FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[]) b(scheduled_at, run_id)
JOIN runs r ON r.parent = b.run_id AND r.scheduled_at = b.scheduled_at
WHERE r.state IN ('PENDING', 'RUNNING', 'RETRYING')
"""

CANCEL = f"""
WITH marked AS (
    UPDATE runs c SET cancelling = true, killing = c.killing OR p.killing,
        state = CASE c.state WHEN 'RUNNING' THEN c.state ELSE 'CANCELLED' END,
        reason = CASE WHEN c.cancelling THEN c.reason ELSE COALESCE(p.reason, 'BY_USER') END,
        finished_at = CASE c.state WHEN 'RUNNING' THEN c.finished_at
            ELSE statement_timestamp() END
    FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[]) b(scheduled_at, run_id)
    JOIN runs p ON p.scheduled_at = b.scheduled_at AND p.run_id = b.run_id
    WHERE c.parent = p.run_id AND c.scheduled_at = p.scheduled_at
      AND p.cancelling AND p.state = 'RUNNING' AND p.shard = ANY (%(shards)s::int[])
      AND c.state IN ('PENDING', 'RUNNING', 'RETRYING')
      AND (NOT c.cancelling OR p.killing > c.killing)
    RETURNING c.*
), gone AS (
    DELETE FROM live l USING marked r
    WHERE r.state = 'CANCELLED' AND l.shard = r.shard AND l.job_id = r.job_id
      AND l.run_id = r.run_id
)
SELECT {RUN_COLUMNS}, r.reason FROM marked r
"""

ENDED = """
SELECT p.run_id, p.cancelling, p.reason, t.job_id IS NULL AS deleted, c.target, c.state, c.reason
FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[]) b(scheduled_at, run_id)
JOIN runs p ON p.scheduled_at = b.scheduled_at AND p.run_id = b.run_id
JOIN runs c ON c.parent = p.run_id AND c.scheduled_at = p.scheduled_at
LEFT JOIN timers t ON t.job_id = p.job_id
WHERE p.state = 'RUNNING' AND p.children IS NOT NULL AND p.shard = ANY (%(shards)s::int[])
"""
"""A separate statement, after CANCEL: it sees the children that CANCEL ended."""

CLOSE = f"""
WITH b AS MATERIALIZED (
    SELECT *, 'RUNNING' AS running
    FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[], %(states)s::text[],
        %(reasons)s::text[], %(errors)s::text[])
      b(scheduled_at, run_id, state, reason, error)
), ended AS (
    UPDATE runs r SET state = b.state, reason = b.reason, error = b.error,
        finished_at = statement_timestamp()
    FROM b WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id AND r.state = b.running
    RETURNING {RUN_COLUMNS}
), gone AS (
    DELETE FROM live l USING ended e
    WHERE l.shard = e.shard AND l.job_id = e.job_id AND l.run_id = e.run_id
), buried AS (
    INSERT INTO dead_letters (run_id, scheduled_at, job_id, fingerprint)
    SELECT run_id, scheduled_at, job_id, %(fingerprint)s FROM ended WHERE state = 'FAILED'
    ON CONFLICT DO NOTHING
)
SELECT * FROM ended
"""

FINGERPRINT = fingerprint(Reason.CHILDREN_FAILED, None, "")


def there(connection: Connection, ids: Collection[IncarnationId]) -> list[Incarnation]:
    """Return which of these incarnations aren't lost, and have a worker that isn't drained."""
    rows = connection.exec_driver_sql(THERE, {"ids": arrays.ids(ids)})
    return decoded("incarnations", rows, incarnation)


def done(connection: Connection, keys: Sequence[RunKey]) -> dict[RunId, frozenset[str]]:
    """Return the workers on which the redriven work of these runs has succeeded."""
    found: dict[RunId, set[str]] = defaultdict(set)
    for run_id, worker in connection.exec_driver_sql(DONE, key_arguments(keys)):
        found[run_id].add(worker)
    return {run_id: frozenset(workers) for run_id, workers in found.items()}


def begin(
    connection: Connection, tenure: TenureId, targets: Mapping[RunKey, Sequence[str]]
) -> list[LiveRun]:
    """Insert the children of broadcasts that this transaction has assigned. Returns both."""
    made = [
        (key.run_id, child_run_id(key.run_id, worker), worker)
        for key, workers in targets.items()
        for worker in workers
    ]
    parents, children, workers = zip(*made, strict=True)
    rows = connection.exec_driver_sql(
        BEGIN,
        key_arguments([*targets])
        | {
            "counts": arrays.numbers(len(workers) for workers in targets.values()),
            "parents": arrays.ids(parents),
            "children": arrays.ids(children),
            "targets": arrays.texts(workers),
            "tenure": tenure,
        },
    )
    return decoded("runs", rows, live_run, run_id_of)


def broadcasts_to_close(connection: Connection, keys: Sequence[RunKey]) -> list[RunKey]:
    """Return which of these broadcasts need `close`: all children have ended, or a child of a
    canceled one isn't marked. A hint.
    """
    connection.exec_driver_sql(f"SELECT {BY_INDEX}")
    return [RunKey(*row) for row in connection.exec_driver_sql(OVER, key_arguments(keys))]


def close(
    connection: Connection, closings: Sequence[Closing], shards: Collection[ShardId]
) -> ClosedBroadcasts:
    """End broadcasts whose last child has ended. Cancel the children of canceled ones. The caller
    holds the locks of their shards.
    """
    keys = key_arguments([one.key for one in closings])
    family = [RunKey(*row) for row in connection.exec_driver_sql(FAMILY, keys)]
    lock_runs(connection, key_arguments([*(one.key for one in closings), *family]))
    mine = keys | {"shards": arrays.numbers(shards)}
    rows = connection.exec_driver_sql(CANCEL, mine)
    marked = [(live_run(row), row[RUN_WIDTH] and Reason(row[RUN_WIDTH])) for row in rows]
    ends = _ends(connection.exec_driver_sql(ENDED, mine).all())
    closing = [one for one in closings if one.key.run_id in ends]
    ended = _close(connection, closing, ends) if closing else []
    return ClosedBroadcasts(
        ended,
        [(run.key, run.job_id, why) for run, why in marked if run.state is not State.RUNNING],
        [run for run, _ in marked if run.state is State.RUNNING],
    )


def _ends(rows: Iterable[Sequence[Any]]) -> dict[RunId, End]:
    """Return how broadcasts without live children end."""
    children: dict[RunId, list[BroadcastChild]] = defaultdict(list)
    parents: dict[RunId, tuple[Reason | None, bool]] = {}
    for run_id, cancelling, reason, deleted, target, state, why in rows:
        children[run_id].append(BroadcastChild(target, State(state), why))
        cancelled = Reason(reason or Reason.BY_USER) if cancelling else None
        parents[run_id] = (cancelled, deleted)
    return {
        run_id: end_of(mine, parents[run_id][0], deleted=parents[run_id][1])
        for run_id, mine in children.items()
        if not any(child.state in LIVE for child in mine)
    }


def _close(
    connection: Connection, closing: Sequence[Closing], ends: Mapping[RunId, End]
) -> list[LiveRun]:
    of = [ends[one.key.run_id] for one in closing]
    rows = connection.exec_driver_sql(
        CLOSE,
        key_arguments([one.key for one in closing])
        | {
            "states": arrays.texts(end.state.value for end in of),
            "reasons": arrays.texts(end.reason and end.reason.value for end in of),
            "errors": arrays.texts(end.error for end in of),
            "fingerprint": FINGERPRINT,
        },
    )
    ended = {run.key.run_id: run for run in map(live_run, rows)}
    closed = [one for one in closing if one.key.run_id in ended]
    judged = (State.SUCCEEDED, State.FAILED)
    failure_counts.count(
        connection,
        (
            (one.job_id, one.shard, run.state is State.SUCCEEDED, one.pause_after)
            for one in closed
            if one.pause_after and (run := ended[one.key.run_id]).state in judged
        ),
    )
    outbox.write_notifications(connection, _happened(connection, closed, ended))
    return [*ended.values()]


def _happened(
    connection: Connection, closed: Sequence[Closing], ended: Mapping[RunId, LiveRun]
) -> Iterable[NotifiableEvent]:
    """Return the events to notify: ends, and late starts that weren't reported before."""
    late = outbox.first_time_late(
        connection,
        [
            one.key
            for one in closed
            if one.notices is not None
            and (began := ended[one.key.run_id]).started_at is not None
            and one.notices.is_late(began.due_at, began.started_at)
        ],
    )
    for one in closed:
        run = ended[one.key.run_id]
        if one.notices is None:
            continue
        if one.key.run_id in late:
            yield _one(one, one.notices, None)
        if run.state in (State.SUCCEEDED, State.FAILED):
            yield _one(one, one.notices, run.state)


def _one(one: Closing, notices: Any, state: State | None) -> NotifiableEvent:
    key = one.key
    dead = state is State.FAILED
    return NotifiableEvent(
        key.scheduled_at, key.run_id, one.job_id, one.shard, notices, state, dead=dead
    )
