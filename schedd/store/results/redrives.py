"""Redrives as people see them: asked for, told of, stopped and resumed. Their runs: `redriving`.

    choose letters that wait ─→ promise them ─→ one row ─→ audit

Invariants
- A letter is promised to one redrive at a time; what one that is stopped hasn't done is free for
  another, which takes it over.
- Who asks for one does so alone, so that two of the same group don't promise each letter twice.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, case, func, select, tuple_

from schedd.core.ids import RedriveId, ShardId
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import AuditEntry
from schedd.core.runs.records import Idempotency, StoreConflict
from schedd.core.runs.redrive import LetterFilter, RedriveRecord, RedriveRequest
from schedd.store import audit
from schedd.store.cluster.fence import BY_INDEX
from schedd.store.connection.database import RolledBack
from schedd.store.results.dead_letters import alone, locked, oldest
from schedd.store.schema.tables import dead_letters, redrives
from schedd.store.statements import idempotency
from schedd.store.statements.arrays import clean
from schedd.store.statements.rows import decoded
from schedkit.records import replace

STATES = """
SELECT r.state, count(*) FROM dead_letters l
CROSS JOIN LATERAL (
    SELECT state FROM runs r WHERE r.scheduled_at = l.scheduled_at AND r.run_id = l.became OFFSET 0
) r WHERE l.redrive = %(redrive)s AND l.became IS NOT NULL GROUP BY r.state
"""
"""Of all its runs: who waits for them goes by none being live. They are MOST_AT_ONCE at most, which
takes a fifth of a second.
"""

WAITING = """
SELECT count(*) FROM dead_letters l WHERE l.redrive = %(redrive)s AND l.settled IS NULL
"""


def planned(connection: Connection, choice: LetterFilter) -> int:
    """How many letters it would choose now."""
    query = select(func.count()).select_from(oldest(choice).order_by(None).subquery())
    return int(connection.execute(query).scalar_one())


def create(
    connection: Connection,
    wish: RedriveRequest,
    wanted: Idempotency | None,
    entry: AuditEntry,
    noted: Callable[[int], str],
) -> RedriveRecord | None:
    """Store it with the letters that are chosen now; with a key used before, the one of then.
    Ends the transaction with None when no letter is free, with a Conflict where they are more than
    may be. `noted`: what the audit has of it, by how
    many they are.
    """
    earlier = idempotency.claim(connection, wanted, wish.redrive_id)
    if earlier is not None:
        return get(connection, RedriveId(earlier))
    alone(connection)
    group = wish.choice.group
    chosen = group or wish.choice
    promised = connection.execute(
        dead_letters.update()
        .where(dead_letters.c.run_id.in_(locked(wish.choice)))
        .values(redrive=wish.redrive_id)
    ).rowcount
    if not promised:
        raise RolledBack(None)  # the key isn't used up either
    if wish.choice.is_more(promised):
        raise RolledBack(StoreConflict("letters"))
    connection.execute(
        redrives.insert().values(
            redrive_id=wish.redrive_id,
            shard=wish.shard,
            namespace=clean(wish.choice.namespace),
            job=clean(chosen.job),
            fingerprint=clean(chosen.fingerprint),
            rate=wish.rate,
            payload=wish.payload,
            total=promised,
            made=0,
            open=True,
            created_at=func.clock_timestamp(),
            created_by=clean(wish.by),
            stopped_by="",
            submitted=group.submitted if group else None,
        )
    )
    audit.write_all(connection, [replace(entry, after=noted(promised))])
    return get(connection, wish.redrive_id)


def get(connection: Connection, redrive_id: RedriveId) -> RedriveRecord | None:
    """One, with how its runs stand, and how many letters wait, counted one by one."""
    record = _bare(connection, redrive_id)
    if record is None:
        return None
    connection.exec_driver_sql(f"SELECT {BY_INDEX}")
    mine = {"redrive": redrive_id}
    states = {State(state): count for state, count in connection.exec_driver_sql(STATES, mine)}
    waiting = connection.exec_driver_sql(WAITING, mine).scalar_one()
    return replace(record, states=states, waiting=waiting)


def _bare(connection: Connection, redrive_id: RedriveId) -> RedriveRecord | None:
    row = connection.execute(_records().where(redrives.c.redrive_id == redrive_id)).first()
    return None if row is None else _record(row)


def newest(
    connection: Connection,
    namespace: str,
    after: tuple[datetime, RedriveId] | None,
    limit: int,
) -> list[RedriveRecord]:
    """Newest first, past `after` (created_at, id), without how their runs stand."""
    query = _records().where(redrives.c.namespace == clean(namespace))
    if after is not None:
        query = query.where(tuple_(redrives.c.created_at, redrives.c.redrive_id) < after)
    query = query.order_by(redrives.c.created_at.desc(), redrives.c.redrive_id.desc())
    return decoded("redrives", connection.execute(query.limit(limit)), _record)


def switch(
    connection: Connection,
    redrive_id: RedriveId,
    by: str,
    entry: AuditEntry,
    noted: Callable[[RedriveRecord], str],
    *,
    on: bool,
) -> RedriveRecord | None:
    """Stop it, or have it go on; one that is done, or so already, stays as it is. None: there is
    none. Its rate begins anew. Told without how its runs stand: to stop it takes no more than that.
    `noted`: what the audit has of how it stands.
    """
    mine = redrives.c.redrive_id == redrive_id
    connection.execute(select(redrives.c.redrive_id).where(mine).with_for_update(key_share=True))
    was = _bare(connection, redrive_id)
    if was is None:
        return None
    if was.finished_at is None and was.open is not on:
        stopped: dict[str, Any] = {"stopped_at": None, "stopped_by": ""}
        if not on:
            stopped = {"stopped_at": func.clock_timestamp(), "stopped_by": clean(by)}
        connection.execute(redrives.update().where(mine).values(open=on, fed_until=None, **stopped))
        now = _bare(connection, redrive_id)
        assert now is not None, "its row is held"
        audit.write_all(connection, [replace(entry, before=noted(was), after=noted(now))])
        return now
    return was


def _records() -> Select[Any]:
    """What stands in their own rows: `waiting` is at most so many."""
    finished = redrives.c.finished_at.is_not(None)
    return select(
        *(column for column in redrives.c if column.name != "payload"),
        redrives.c.payload.is_not(None).label("edited"),
        case((finished, 0), else_=redrives.c.total - redrives.c.made).label("waiting"),
    )


def _record(row: Row[Any]) -> RedriveRecord:
    return RedriveRecord(
        RedriveId(row.redrive_id),
        ShardId(row.shard),
        row.namespace,
        row.job,
        row.fingerprint,
        row.rate,
        row.edited,
        row.total,
        row.waiting,
        row.made,
        row.open,
        {},
        row.created_at,
        row.created_by,
        row.stopped_at,
        row.stopped_by,
        row.finished_at,
        row.submitted,
    )
