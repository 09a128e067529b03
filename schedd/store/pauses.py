"""Pausing the whole cluster: written under every shard's lock, judged by fire and assign.

    lock all shard rows, ids ascending ─→ the cluster's row ─→ its pause ─→ audit

Invariants (PROTOCOL 3)
- Whoever pauses holds every shard's row first, so no owner's batch is in flight beside it; the
  statements that fire and assign read the cluster's row under a shard's lock, so what commits after
  a pause has seen it.
- `switched` grows with each pause and each resume: a step of a timer that was reckoned before one
  of them advances nothing after it.
- A pause ends no run but those that were inserted early for an instant inside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection

from schedd.core.model import AuditEntry
from schedd.core.pauses import Pause, Pauses
from schedd.store import audit
from schedd.store.arrays import clean
from schedd.store.database import Database

READ = """
SELECT c.switched, p.began, p.paused_by, p.note, p.ended, p.caught_up
FROM cluster c LEFT JOIN pauses p ON true ORDER BY p.id
"""

LOCK_ALL_SHARDS = "SELECT 1 FROM shards ORDER BY id FOR NO KEY UPDATE"

SWITCH = """
UPDATE cluster SET paused = %s, switched = switched + 1
"""

BEGIN = """
INSERT INTO pauses (began, paused_by, note) VALUES (clock_timestamp(), %s, %s)
"""

END = """
UPDATE pauses SET ended = clock_timestamp(), caught_up = %s WHERE ended IS NULL
"""

INSERTED_EARLY = """
SELECT r.scheduled_at, r.run_id, r.shard, r.job_id FROM runs r
WHERE r.scheduled_at > %(began)s AND r.scheduled_at <= clock_timestamp()
  AND r.state = 'PENDING' AND r.token = 0 AND r.trigger = 'SCHEDULE'
ORDER BY r.scheduled_at, r.run_id FOR NO KEY UPDATE
"""

SKIP = f"""
WITH early AS ({INSERTED_EARLY}), skipped AS (
    UPDATE runs r SET state = 'SKIPPED', reason = 'PAUSED', finished_at = clock_timestamp()
    FROM early e WHERE r.scheduled_at = e.scheduled_at AND r.run_id = e.run_id
)
DELETE FROM live l USING early e
WHERE l.shard = e.shard AND l.job_id = e.job_id AND l.run_id = e.run_id
"""

AuditOf = Callable[[Pauses, Pauses], AuditEntry]
"""The audit's line for a change from one to the other."""


def read(connection: Connection) -> Pauses:
    """All pauses there were."""
    rows = connection.exec_driver_sql(READ).all()
    found = tuple(Pause(*row[1:]) for row in rows if row[1] is not None)
    return Pauses(rows[0][0], found)


def pause(connection: Connection, by: str, note: str, entry: AuditOf) -> Pauses:
    """Pause the cluster; one that is paused already gets the new note."""
    before = _locked(connection)
    if before.present is None:
        connection.exec_driver_sql(SWITCH, (True,))
        connection.exec_driver_sql(BEGIN, (clean(by), clean(note)))
    else:
        connection.exec_driver_sql(
            "UPDATE pauses SET note = %s WHERE ended IS NULL", (clean(note),)
        )
    return _audited(connection, before, entry)


def resume(connection: Connection, catch_up: bool, entry: AuditOf) -> Pauses:
    """Let it go on. What was inserted early for an instant of the pause is SKIPPED, unless it is
    to be caught up. Nothing to do: the cluster isn't paused.
    """
    before = _locked(connection)
    if before.present is None:
        return before
    if not catch_up:
        connection.exec_driver_sql(SKIP, {"began": before.present.began})
    connection.exec_driver_sql(END, (catch_up,))
    connection.exec_driver_sql(SWITCH, (False,))
    return _audited(connection, before, entry)


def _locked(connection: Connection) -> Pauses:
    connection.exec_driver_sql(LOCK_ALL_SHARDS)
    connection.exec_driver_sql("SELECT 1 FROM cluster FOR NO KEY UPDATE")
    return read(connection)


def _audited(connection: Connection, before: Pauses, entry: AuditOf) -> Pauses:
    after = read(connection)
    audit.write_all(connection, [entry(before, after)])
    return after


@dataclass(frozen=True, slots=True)
class PostgresPauseStore:
    """`schedd.ports.PauseStore` over PostgreSQL."""

    database: Database

    async def read(self) -> Pauses:
        """All pauses there were."""
        return await self.database.call(read)

    async def pause(self, by: str, note: str, entry: AuditOf) -> Pauses:
        """Nothing fires or starts from the commit on."""
        return await self.database.call(lambda c: pause(c, by, note, entry))

    async def resume(self, catch_up: bool, entry: AuditOf) -> Pauses:
        """Fire and start again."""
        return await self.database.call(lambda c: resume(c, catch_up, entry))
