"""End waiting runs past their deadline: MISSED before the first start, FAILED afterwards.

    lock the runs' rows in order ─→ one statement: those that still wait end ─→ quota, failures

Called under the locks of their shards. A result or a cancel may come in between: a run that doesn't
wait any more isn't changed. Runs of a changed definition or a paused job aren't changed either, and
none during a cluster pause: edits and pauses lock the shard's row, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection

from schedd.core.jobs.notifications import NotifiableEvent
from schedd.core.runs.deadlines import DeadlineExpiry
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import Claim, RunKey
from schedd.store.cluster.fenced_transaction import shards_of
from schedd.store.notify import outbox
from schedd.store.results import failure_counts
from schedd.store.statements import arrays
from schedd.store.statements.keys import key_arguments, lock_runs
from schedd.store.timers import run_quota

END_WAITING = """
WITH b AS MATERIALIZED (
    SELECT *, CASE state WHEN 'FAILED' THEN '{PENDING,RETRYING}' ELSE '{PENDING}' END::text[]
        AS allowed
    FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[], %(states)s::text[],
        %(reasons)s::text[], %(fingerprints)s::text[], %(generations)s::int[])
      b(scheduled_at, run_id, state, reason, fingerprint, generation)
    WHERE NOT (SELECT paused FROM cluster WHERE one)
), ended AS (
    UPDATE runs r SET state = b.state, reason = b.reason, finished_at = statement_timestamp(),
        fired_by = CASE b.state WHEN 'FAILED' THEN r.fired_by ELSE %(tenure)s END
    FROM b CROSS JOIN timers t WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id
      AND r.shard = ANY (%(shards)s::int[]) AND r.state = ANY (b.allowed)
      AND t.job_id = r.job_id AND t.generation = b.generation
      AND (NOT t.paused OR r.trigger IN ('MANUAL', 'SUBMIT'))
      AND (b.state <> 'MISSED' OR r.losses = 0)
    RETURNING r.scheduled_at, r.run_id, r.job_id, r.shard, b.fingerprint
), gone AS (
    DELETE FROM live l USING ended e
    WHERE l.shard = e.shard AND l.job_id = e.job_id AND l.run_id = e.run_id
), buried AS (
    INSERT INTO dead_letters (run_id, scheduled_at, job_id, fingerprint)
    SELECT run_id, scheduled_at, job_id, fingerprint FROM ended WHERE fingerprint <> ''
    ON CONFLICT DO NOTHING
)
SELECT scheduled_at, run_id FROM ended
"""


def end_waiting(
    connection: Connection, claim: Claim, ends: Sequence[DeadlineExpiry]
) -> list[RunKey]:
    keys = key_arguments([end.key for end in ends])
    lock_runs(connection, keys)
    arguments = keys | {
        "shards": arrays.numbers(shards_of(ends)),
        "states": arrays.texts(end.state.value for end in ends),
        "reasons": arrays.texts(end.reason.value for end in ends),
        "fingerprints": arrays.texts(end.fingerprint for end in ends),
        "generations": arrays.numbers(end.generation for end in ends),
        "tenure": claim.tenure,
    }
    rows = connection.exec_driver_sql(END_WAITING, arguments)
    ended = {RunKey(*row) for row in rows}
    done = [end for end in ends if end.key in ended]
    run_quota.give_back(
        connection, [end.key for end in done if end.counted and end.state is not State.FAILED]
    )
    failure_counts.count(
        connection,
        ((end.job_id, end.shard, False, end.pause_after) for end in done if end.pause_after),
    )
    outbox.write_notifications(connection, _happened(connection, done))
    return [end.key for end in done]


def _happened(connection: Connection, done: Sequence[DeadlineExpiry]) -> Iterable[NotifiableEvent]:
    """Return the events to notify: failed runs, and missed ones as late."""
    missed = [end.key for end in done if end.notices and end.state is State.MISSED]
    late = outbox.first_time_late(connection, missed)
    for end in done:
        notified = end.state is State.FAILED or end.key.run_id in late
        if end.notices is not None and notified:
            state = State.FAILED if end.state is State.FAILED else None
            yield NotifiableEvent(
                end.key.scheduled_at,
                end.key.run_id,
                end.job_id,
                end.shard,
                end.notices,
                state,
                dead=bool(end.fingerprint),
            )
