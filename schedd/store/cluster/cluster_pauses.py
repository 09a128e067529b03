"""Pause the whole cluster: written under every shard's lock, checked by fire and assign.

    lock all shard rows, ids ascending ─→ the cluster's row ─→ its pause ─→ audit

Invariants (docs/protocol-rules.md, P3.11 and P3.12)
- A pause locks every shard's row first, so no owner's batch runs at the same time. Fire and assign
  read the cluster's row under a shard's lock, so every transaction that commits after a pause has
  seen it.
- `switched` grows with each pause and each resume. A timer step that was computed before one of
  them advances nothing after it.
- A pause ends only runs that were inserted early for a scheduled time inside it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from sqlalchemy import Connection
from sqlalchemy.exc import NoResultFound

from schedd.core.runs.model import AuditRecord, RunKey
from schedd.core.timers.cluster_pauses import NO_PAUSES, Pause, Pauses
from schedd.store import audit
from schedd.store.connection.database import Database, in_autocommit, in_transaction
from schedd.store.statements.arrays import clean
from schedd.store.statements.operations import operations
from schedd.store.timers import run_quota
from schedkit.records import dataclass, replace

_READ = """
SELECT c.switched, p.began, p.paused_by, p.note, p.ended, p.caught_up,
    p.lost_until, p.caught_up_since FROM cluster c LEFT JOIN
"""
LOOK = f"{_READ} LATERAL (SELECT * FROM pauses ORDER BY id DESC LIMIT 1) p ON true"
"""The newest pause only: the cost doesn't depend on the number of pauses."""
ALL = f"{_READ} pauses p ON true ORDER BY p.id"

LOCK_ALL_SHARDS = "SELECT 1 FROM shards ORDER BY id FOR NO KEY UPDATE"

SWITCH = """
UPDATE cluster SET paused = %s, switched = switched + 1
"""

BEGIN = """
INSERT INTO pauses (began, paused_by, note) VALUES (clock_timestamp(), %s, %s)
"""

END = """
UPDATE pauses SET ended = clock_timestamp(), caught_up = %s, caught_up_since = %s
WHERE ended IS NULL
"""

INSERTED_EARLY = """
SELECT r.scheduled_at, r.run_id, r.shard, r.job_id FROM runs r
WHERE r.scheduled_at > %(began)s AND r.scheduled_at <= %(last)s
  AND r.state = 'PENDING' AND r.losses = 0
  AND r.trigger = 'SCHEDULE' AND r.parent IS NULL
ORDER BY r.scheduled_at, r.run_id FOR NO KEY UPDATE
"""

SKIP = f"""
WITH early AS ({INSERTED_EARLY}), skipped AS (
    UPDATE runs r SET state = 'SKIPPED', reason = 'PAUSED', finished_at = clock_timestamp(),
        excluded_by = %(by)s, fired_by = NULL
    FROM early e WHERE r.scheduled_at = e.scheduled_at AND r.run_id = e.run_id
)
DELETE FROM live l USING early e
WHERE l.shard = e.shard AND l.job_id = e.job_id AND l.run_id = e.run_id
RETURNING l.scheduled_at, l.run_id
"""

DOUBTFUL = """
(SELECT max(LEAST(lost_until, ended)) FROM pauses WHERE id > 0 AND lost_until IS NOT NULL)"""
"""A run that was dispatched by then may have ended and been dispatched again in a lost database.
NULL: no database was ever lost. The condition uses the index: its statements allow no other scan.
"""

AuditOf = Callable[[Pauses, Pauses], AuditRecord]
"""Returns the audit entry for a change from the first to the second."""


def read_pauses(connection: Connection, known: Pauses = NO_PAUSES) -> Pauses:
    """Return all pauses, past ones too. They are read again only if they differ from `known`."""
    newest = _pauses(connection, LOOK)
    if newest.switched == known.switched and _newest_pause_start(newest) == _newest_pause_start(
        known
    ):
        return replace(known, all=known.all[:-1] + newest.all)  # its note may have changed
    return _pauses(connection, ALL)


def pause(connection: Connection, by: str, note: str, entry: AuditOf) -> Pauses:
    """Pause the cluster. A paused cluster gets the new note, if one is given. During recovery the
    note is appended to the present one, which says what was lost and how to resume. Nothing is
    written if the note is the same.
    """
    before = locked(connection)
    if before.present is None:
        connection.exec_driver_sql(SWITCH, (True,))
        connection.exec_driver_sql(BEGIN, (clean(by), clean(note)))
    else:
        present, added = before.present.note, clean(f" ({by}: {note})")
        same = present.endswith(added) if before.present.recovering else present == clean(note)
        if same or not note:
            return before
        kept = f"{present}{added}" if before.present.recovering else clean(note)
        connection.exec_driver_sql("UPDATE pauses SET note = %s WHERE ended IS NULL", (kept,))
    return audited(connection, before, entry)


def resume(
    connection: Connection, catch_up: bool | None, since: datetime | None, entry: AuditOf
) -> Pauses | None:
    """Resume the cluster. Runs inserted early for a scheduled time of the pause become SKIPPED,
    unless the catch-up covers them. Nothing changes if the cluster isn't paused. None: the cluster
    is in recovery, and neither `catch_up` nor `since` was given.
    """
    before = locked(connection)
    if before.present is None:
        return before
    if before.present.recovering and catch_up is None and since is None:
        return None
    connection.exec_driver_sql(END, (bool(catch_up), since))
    ended = read_pauses(connection).all[-1]
    last = ended.skipped_until()
    if last is not None:
        span = {"began": before.present.began, "last": last, "by": clean(ended.text)}
        skipped = connection.exec_driver_sql(SKIP, span).all()
        run_quota.give_back(connection, [RunKey(*row) for row in skipped])
    connection.exec_driver_sql(SWITCH, (False,))
    return audited(connection, before, entry)


def _pauses(connection: Connection, statement: str) -> Pauses:
    rows = connection.exec_driver_sql(statement).all()
    if not rows:  # a restore hasn't filled the table yet
        raise NoResultFound(
            "the table `cluster` in PostgreSQL is empty: a restore of the database may not"
            " have completed; complete it"
        )
    return Pauses(rows[0][0], tuple(Pause(*row[1:]) for row in rows if row[1] is not None))


def _newest_pause_start(pauses: Pauses) -> datetime | None:
    """Return when the newest pause began. `switched` alone isn't enough: a restored database may
    count to the same number again.
    """
    return pauses.all[-1].began if pauses.all else None


def locked(connection: Connection) -> Pauses:
    """Lock every shard's row and the cluster's. Returns all pauses."""
    connection.exec_driver_sql(LOCK_ALL_SHARDS)
    connection.exec_driver_sql("SELECT 1 FROM cluster FOR NO KEY UPDATE")
    return read_pauses(connection)


def audited(connection: Connection, before: Pauses, entry: AuditOf) -> Pauses:
    after = read_pauses(connection)
    audit.write_all(connection, [entry(before, after)])
    return after


@operations("pauses")
@dataclass(frozen=True, slots=True)
class PauseStore:
    """Pauses of the whole cluster. Both writes hold every shard's row (P3.11)."""

    database: Database

    read = in_autocommit(read_pauses)

    async def present(self) -> Pause | None:
        return (await self.database.read(_pauses, LOOK)).present

    pause = in_transaction(pause)
    resume = in_transaction(resume)
