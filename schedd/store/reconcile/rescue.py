"""Changes of live runs: give back unstarted assignments, retry or end runs of lost workers.

    PENDING, RETRYING ──assign──→ RUNNING ──give_back──→ its earlier state, no attempt counted
            └─end_waiting──→ the end  └────rescue─────→ RETRYING or FAILED, with lost_at

Invariants (docs/protocol-rules.md, P4.3, P6.2, P6.8)
- A run that never started, or was lost with its worker, doesn't count an attempt.
- Repeatedly rejected runs wait with a backoff of up to 10 s: a worker that rejects everything must
  not keep the database busy.
- A loss is a row, committed with its consequences. An owner gives back no run of a lost
  incarnation: in a lost database its worker may have ended the run, so its report that it doesn't
  have the run proves nothing. For the same reason a rejection gives back no run that was dispatched
  before the restore.
- A run whose job was deleted meanwhile, or that a user canceled, can only become CANCELLED.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Connection

from schedd.core.cluster.cluster_events import EventKind
from schedd.core.ids import ShardId
from schedd.core.jobs.notifications import NotifiableEvent
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import Claim, LiveRun, Loss, RunKey
from schedd.core.runs.records import Unstarted
from schedd.store.cluster import cluster_pauses, workers
from schedd.store.cluster.fenced_transaction import shards_of
from schedd.store.notify import outbox
from schedd.store.results import failure_counts
from schedd.store.statements import arrays
from schedd.store.statements.keys import key_arguments, lock_runs
from schedd.store.statements.rows import RUN_COLUMNS, decoded, live_run, run_id_of
from schedkit import failpoints

BEFORE_GIVE_BACK = failpoints.blocking("give_back.before_commit")

# A run whose job is deleted, or that a user canceled, isn't given back.
_AFTER = """
    CASE WHEN r.cancelling OR t.job_id IS NULL THEN 'CANCELLED' ELSE {state} END AS state,
    CASE WHEN r.cancelling THEN COALESCE(r.reason, 'BY_USER') WHEN t.job_id IS NULL THEN 'DELETED'
         ELSE {reason} END AS reason"""

GIVE_BACK = f"""
WITH d AS MATERIALIZED (
    SELECT r.scheduled_at, r.run_id, b.token, 'RUNNING' AS running,
        COALESCE(b.sender, r.incarnation) AS incarnation, {
    _AFTER.format(state="CASE WHEN r.attempt > 1 THEN 'RETRYING' ELSE 'PENDING' END", reason="NULL")
}
    FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[], %(tokens)s::bigint[],
        %(senders)s::uuid[]) b(scheduled_at, run_id, token, sender)
    CROSS JOIN LATERAL (
        SELECT * FROM runs r WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id
          AND r.scheduled_at >= %(first)s AND r.scheduled_at < %(last)s OFFSET 0
    ) r
    LEFT JOIN timers t ON t.job_id = r.job_id
    WHERE CASE WHEN EXISTS (
            SELECT FROM incarnations i WHERE i.id = r.incarnation AND i.lost_at IS NOT NULL
        ) THEN %(shards)s::int[] IS NULL AND (r.assigned_at <= {
    cluster_pauses.DOUBTFUL
}) IS NOT TRUE
        ELSE %(shards)s::int[] IS NULL OR r.shard = ANY (%(shards)s::int[]) END
), back AS (
    UPDATE runs r SET state = d.state, reason = d.reason, attempt = r.attempt - 1,
        started_at = NULL, ready_at = GREATEST(r.ready_at, statement_timestamp() + interval '1 s'
            * LEAST(10, 0.02 * 2 ^ LEAST(10, GREATEST(0, r.assignments - r.attempt - r.losses)))),
        finished_at = CASE WHEN d.state = 'CANCELLED' THEN statement_timestamp() END
    FROM d WHERE r.scheduled_at = d.scheduled_at AND r.run_id = d.run_id
      AND r.token = d.token AND r.incarnation = d.incarnation AND r.state = d.running
    RETURNING {RUN_COLUMNS}
), gone AS (
    DELETE FROM live l USING back
    WHERE back.state = 'CANCELLED' AND l.shard = back.shard AND l.job_id = back.job_id
      AND l.run_id = back.run_id
)
SELECT * FROM back
"""

RESCUE = f"""
WITH d AS MATERIALIZED (
    SELECT r.scheduled_at, r.run_id, b.token, 'RUNNING' AS running, b.incarnation,
        b.fingerprint, b.dead, b.wait,
        {_AFTER.format(state="b.state", reason="b.reason")}
    FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[], %(tokens)s::bigint[],
        %(incarnations)s::uuid[], %(states)s::text[], %(reasons)s::text[], %(dead)s::bool[],
        %(fingerprints)s::text[], %(waits)s::float8[])
      b(scheduled_at, run_id, token, incarnation, state, reason, dead, fingerprint, wait)
    CROSS JOIN LATERAL (
        SELECT * FROM runs r WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id
          AND r.scheduled_at >= %(first)s AND r.scheduled_at < %(last)s OFFSET 0
    ) r
    LEFT JOIN timers t ON t.job_id = r.job_id
    WHERE r.shard = ANY (%(shards)s::int[])
), moved AS (
    UPDATE runs r SET state = d.state, reason = d.reason, losses = r.losses + 1,
        attempt = r.attempt - 1, finished_at = statement_timestamp(),
        ready_at = GREATEST(r.ready_at, statement_timestamp() + d.wait * interval '1 s')
    FROM d WHERE r.scheduled_at = d.scheduled_at AND r.run_id = d.run_id
      AND r.token = d.token AND r.state = d.running AND r.incarnation = d.incarnation
    RETURNING r.scheduled_at, r.run_id, r.job_id, r.shard, r.state, d.dead, d.fingerprint,
        r.token, r.generation, r.worker, r.incarnation, r.start_by, r.started_at
), may_start AS (  -- for `ok` of a pause, an edit, a delete (P3.8)
    INSERT INTO lost_assignments
        (run_id, token, scheduled_at, job_id, generation, worker, incarnation, start_by)
    SELECT run_id, token, scheduled_at, job_id, generation, worker, incarnation, start_by
    FROM moved WHERE started_at IS NULL AND start_by > statement_timestamp() - interval '2 s'
    ON CONFLICT DO NOTHING
), gone AS (
    DELETE FROM live l USING moved m
    WHERE m.state <> 'RETRYING' AND l.shard = m.shard AND l.job_id = m.job_id
      AND l.run_id = m.run_id
), buried AS (
    INSERT INTO dead_letters (run_id, scheduled_at, job_id, fingerprint)
    SELECT run_id, scheduled_at, job_id, fingerprint FROM moved WHERE dead AND state = 'FAILED'
    ON CONFLICT DO NOTHING
)
SELECT scheduled_at, run_id, job_id, shard, state FROM moved
"""


def give_back(
    connection: Connection, unstarted: Sequence[Unstarted], shards: Collection[ShardId] | None
) -> list[LiveRun]:
    """Return runs that never started to their earlier state. `shards` None: a worker's rejection,
    guarded by token and sender.
    """
    keys = key_arguments([each.key for each in unstarted])
    lock_runs(connection, keys)
    arguments = keys | {
        "tokens": arrays.numbers([each.token for each in unstarted]),
        "senders": arrays.ids([each.sender for each in unstarted]),
        "shards": None if shards is None else arrays.numbers(shards),
    }
    back = decoded("runs", connection.exec_driver_sql(GIVE_BACK, arguments), live_run, run_id_of)
    BEFORE_GIVE_BACK()
    return back


def give_back_own(
    connection: Connection, _: Claim, unstarted: Sequence[Unstarted]
) -> list[LiveRun]:
    return give_back(connection, unstarted, shards_of(unstarted))


def rescue(connection: Connection, claim: Claim, losses: Sequence[Loss]) -> list[RunKey]:
    """Retry or end the runs, and record their incarnations as lost. An earlier record stays."""
    keys = key_arguments([loss.key for loss in losses])
    lock_runs(connection, keys)
    arguments = keys | {
        "shards": arrays.numbers(shards_of(losses)),
        "tokens": arrays.numbers([loss.token for loss in losses]),
        "incarnations": arrays.ids([loss.incarnation for loss in losses]),
        "states": arrays.texts([loss.state.value for loss in losses]),
        "reasons": arrays.texts([loss.reason and loss.reason.value for loss in losses]),
        "dead": arrays.flags([loss.dead for loss in losses]),
        "fingerprints": arrays.texts([loss.fingerprint for loss in losses]),
        "waits": arrays.numbers([loss.wait.total_seconds() for loss in losses]),
    }
    rows = connection.exec_driver_sql(RESCUE, arguments).all()
    moved = [RunKey(at, run_id) for at, run_id, *_ in rows]
    counted = {loss.key: loss.pause_after for loss in losses if loss.pause_after}
    failure_counts.count(
        connection,
        (
            (job, shard, False, counted[key])
            for key, (*_, job, shard, state) in zip(moved, rows, strict=True)
            if state == "FAILED" and key in counted
        ),
    )
    wanted = {loss.key: loss for loss in losses if loss.notices}
    outbox.write_notifications(
        connection,
        (
            NotifiableEvent(
                key.scheduled_at, key.run_id, job, shard, loss.notices, State.FAILED, dead=loss.dead
            )
            for key, (*_, job, shard, state) in zip(moved, rows, strict=True)
            if state == "FAILED" and (loss := wanted.get(key)) and loss.notices
        ),
    )
    # Only incarnations of changed runs: the others may get work again.
    keys_moved = set(moved)
    gone = {loss.incarnation for loss in losses if loss.key in keys_moved}
    workers.lose(connection, gone, EventKind.WORKER_LOST, claim.tenure)
    return moved
