"""Data-loss marks, and recovery of a restored database (docs/operations/backup-and-restore.md).

    mark    cluster.marked_at ← now, each 5 s, under the term
    begin   all shard rows ─→ the cluster's ─→ a pause from the mark ─→ incarnations lost,
            backfills ended, redrives stopped ─→ audit
    end     waiting runs of at_most_once jobs that may have run in the lost database

Invariants
- Each is one transaction that holds the leader's term. `term` None: there is no leader, an operator
  runs it before the members start.
- A mark grows even if the clock doesn't.
- `begin` and `end` may be repeated: both are idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from sqlalchemy import Connection

from schedd.core.cluster.data_loss_check import EVERY, Mark
from schedd.core.ids import Id, JobId, RunId, ShardId, Term
from schedd.core.runs.model import AuditRecord, RunKey
from schedd.core.runs.records import WaitingRun
from schedd.core.timers.cluster_pauses import Pause
from schedd.store import audit
from schedd.store.cluster import cluster_pauses
from schedd.store.cluster.membership import holds_term
from schedd.store.connection import database_identity
from schedd.store.connection.database import Database, in_transaction
from schedd.store.jobs import job_rows
from schedd.store.statements import arrays
from schedd.store.statements.keys import key_arguments, lock_runs
from schedd.store.statements.operations import operations
from schedkit.records import dataclass

MARK = f"""
UPDATE cluster SET marked_at = GREATEST(clock_timestamp(), marked_at + CASE
    WHEN marked_at > clock_timestamp() + interval '{EVERY} seconds'
    THEN interval '{EVERY / 2} seconds' ELSE interval '1 microsecond' END)
WHERE one
"""

WENT_BACK_TO = """
SELECT LEAST(clock_timestamp(), COALESCE(c.marked_at, (SELECT min(opened_at) FROM tenures))),
    COALESCE(%(until)s, clock_timestamp())
FROM cluster c WHERE c.one
"""
"""Without a mark the pause begins with the first tenure: any unrecorded time may be lost."""

BEGIN = """
INSERT INTO pauses (began, paused_by, note, lost_until)
VALUES (%(began)s, 'schedd', %(note)s, %(until)s)
"""

TURN = """
UPDATE pauses SET began = LEAST(began, %(began)s), paused_by = 'schedd', note = %(note)s,
    lost_until = GREATEST(lost_until, %(until)s)
WHERE ended IS NULL
"""
"""Turn the present pause, of a person or of an earlier `begin`, into the recovery's pause."""

NO_REGISTRATIONS = "LOCK TABLE incarnations IN SHARE ROW EXCLUSIVE MODE"

NOTHING_IN_FLIGHT = "LOCK TABLE runs IN EXCLUSIVE MODE"
"""Waits for reports and rejections that are being written, so `end` sees their runs. Later ones see
the pause.
"""

LOSE_ALL = "UPDATE incarnations SET lost_at = clock_timestamp() WHERE lost_at IS NULL"

END_BACKFILLS = """
UPDATE backfills SET open = false, cancelled_at = clock_timestamp(), cancelled_by = 'schedd'
WHERE open AND created_at <= %(until)s
"""
"""Some of their remaining scheduled times may have run in the lost database. For the others a user
requests a new backfill. No owner creates runs of them meanwhile: all shard rows are locked.
"""

STOP_REDRIVES = """
UPDATE redrives SET open = false, stopped_at = clock_timestamp(), stopped_by = 'schedd',
    fed_until = NULL
WHERE open AND created_at <= %(until)s
"""
"""Their remaining letters may have been redriven in the lost database. A user may resume them."""

WAITING = """
SELECT l.shard, l.job_id, l.run_id, l.scheduled_at,
    r.state <> 'RUNNING' AND r.created_at <= %(until)s
FROM (
    SELECT * FROM live
    WHERE (shard, job_id, run_id) > (%(shard)s, %(job)s::uuid, %(run)s::uuid)
    ORDER BY shard, job_id, run_id LIMIT %(limit)s
) l CROSS JOIN LATERAL (
    SELECT * FROM runs r WHERE r.scheduled_at = l.scheduled_at AND r.run_id = l.run_id OFFSET 0
) r
ORDER BY l.shard, l.job_id, l.run_id
"""

END = """
WITH b AS MATERIALIZED (
    SELECT * FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[]) b(scheduled_at, run_id)
), ended AS (
    UPDATE runs r SET state = 'FAILED', reason = 'WORKER_LOST', error = %(error)s,
        finished_at = statement_timestamp()
    FROM b WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id
      AND r.state = ANY ('{PENDING,RETRYING}'::text[])
    RETURNING r.scheduled_at, r.run_id, r.job_id, r.shard, r.parent
), gone AS (
    DELETE FROM live l USING ended e
    WHERE l.shard = e.shard AND l.job_id = e.job_id AND l.run_id = e.run_id
), buried AS (
    INSERT INTO dead_letters (run_id, scheduled_at, job_id, fingerprint)
    SELECT run_id, scheduled_at, job_id, %(fingerprint)s FROM ended WHERE parent IS NULL
    ON CONFLICT DO NOTHING
)
SELECT scheduled_at, run_id FROM ended
"""

_NO_ID = Id.from_int(0)

NoteOf = Callable[[datetime, datetime, Pause | None], str]
"""Returns the note of a recovery, from the restore point, the end of the lost time, and the present
pause."""


def read_mark(connection: Connection) -> Mark:
    found = database_identity.probe_server(connection).mark
    assert found is not None
    return found


def mark(connection: Connection, term: Term) -> Mark | None:
    """Write the next mark. None: the term has ended."""
    if not holds_term(connection, term):
        return None
    connection.exec_driver_sql(MARK)
    return read_mark(connection)


def write_audit_entry(connection: Connection, term: Term, entry: AuditRecord) -> bool:
    """Write an audit entry. False: the term has ended."""
    if not holds_term(connection, term):
        return False
    audit.write_all(connection, [entry])
    return True


def begin(
    connection: Connection,
    term: Term | None,
    until: datetime | None,
    note: NoteOf,
    entry: cluster_pauses.AuditOf,
) -> Pause | None:
    """Pause the cluster from its newest mark on, and record all incarnations of workers as lost.
    None: the term has ended. `until` None: the lost database may have been used until now.
    """
    if term is not None and not holds_term(connection, term):
        return None
    before = cluster_pauses.locked(connection)
    began, lost_until = connection.exec_driver_sql(WENT_BACK_TO, {"until": until}).one()
    present = before.present
    statement = BEGIN if present is None else TURN
    values = {
        "began": began,
        "until": lost_until,
        "note": arrays.clean(note(began, lost_until, present)),
    }
    connection.exec_driver_sql(statement, values)
    connection.exec_driver_sql(cluster_pauses.SWITCH, (True,))
    connection.exec_driver_sql(NO_REGISTRATIONS)
    connection.exec_driver_sql(NOTHING_IN_FLIGHT)
    connection.exec_driver_sql(LOSE_ALL)
    connection.exec_driver_sql(END_BACKFILLS, {"until": lost_until})
    connection.exec_driver_sql(STOP_REDRIVES, {"until": lost_until})
    return cluster_pauses.audited(connection, before, entry).present


def waiting(
    connection: Connection, after: WaitingRun | None, until: datetime, limit: int
) -> list[WaitingRun]:
    """Return the next live runs. `doubtful`: created by `until`, and not RUNNING."""
    where = {
        "shard": after.shard if after else -1,
        "job": after.job_id if after else _NO_ID,
        "run": after.key.run_id if after else _NO_ID,
        "until": until,
        "limit": limit,
    }
    return [
        WaitingRun(RunKey(at, RunId(run)), JobId(job), ShardId(shard), doubtful)
        for shard, job, run, at, doubtful in connection.exec_driver_sql(WAITING, where)
    ]


def end(
    connection: Connection, term: Term | None, keys: Sequence[RunKey], error: str, fingerprint: str
) -> int | None:
    """End the waiting ones of these runs as WORKER_LOST. Returns how many. None: the term ended."""
    if term is not None and not holds_term(connection, term):
        return None
    arguments = key_arguments(keys)
    lock_runs(connection, arguments)
    arguments |= {"error": arrays.clean(error), "fingerprint": fingerprint}
    return len(connection.exec_driver_sql(END, arguments).all())


@operations("recovery")
@dataclass(frozen=True, slots=True)
class RecoveryStore:
    """Marks and recovery. Each writing call is one transaction that compares the term. None or
    False: the term has ended. `term` None: an operator's call, while no member runs.
    """

    database: Database

    read_mark = in_transaction(read_mark)
    mark = in_transaction(mark)
    tell = in_transaction(write_audit_entry)
    begin = in_transaction(begin)

    async def holding(self) -> Pause | None:
        present = (await self.database.call(cluster_pauses.read_pauses)).present
        return present if present is not None and present.recovering else None

    waiting = in_transaction(waiting)
    definitions = in_transaction(job_rows.definitions)
    end = in_transaction(end)
