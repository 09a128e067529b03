"""Create, list, stop and resume redrives. `redrive_feed` creates their runs.

    select waiting letters ─→ queue them ─→ one row ─→ audit

Invariants
- A letter is queued for one redrive at a time. Another redrive may take over the remaining letters
  of a stopped one.
- Redrives are created one after the other, so two of the same group don't queue a letter twice.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, case, func, select, tuple_

from schedd.core.ids import RedriveId
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import AuditRecord
from schedd.core.runs.records import Idempotency, StoreConflict
from schedd.core.runs.redrive import LetterFilter, RedriveRecord, RedriveRequest
from schedd.store import audit
from schedd.store.cluster.fence import BY_INDEX
from schedd.store.connection.database import Database, RolledBack, in_transaction
from schedd.store.results import dead_letters as letters
from schedd.store.results import redrive_feed
from schedd.store.schema.tables import dead_letters, redrives
from schedd.store.statements import idempotency
from schedd.store.statements.arrays import clean
from schedd.store.statements.operations import operations
from schedd.store.statements.rows import decoded, record_of
from schedkit.records import dataclass, replace

STATES = """
SELECT r.state, count(*) FROM dead_letters l
CROSS JOIN LATERAL (
    SELECT state FROM runs r WHERE r.scheduled_at = l.scheduled_at AND r.run_id = l.became OFFSET 0
) r WHERE l.redrive = %(redrive)s AND l.became IS NOT NULL GROUP BY r.state
"""
"""The states of all its runs: callers wait until none is live. At most MOST_AT_ONCE runs, which
takes a fifth of a second.
"""

WAITING = """
SELECT count(*) FROM dead_letters l WHERE l.redrive = %(redrive)s AND l.resolution IS NULL
"""


def planned(connection: Connection, choice: LetterFilter) -> int:
    query = select(func.count()).select_from(letters.oldest(choice).order_by(None).subquery())
    return int(connection.execute(query).scalar_one())


def create(
    connection: Connection,
    request: RedriveRequest,
    wanted: Idempotency | None,
    entry: AuditRecord,
    noted: Callable[[int], str],
) -> RedriveRecord | StoreConflict | None:
    """Store a redrive with the letters that are selected now. With a key used before, return the
    earlier one. Rolls back with None if no letter is free, with a `StoreConflict` if there are more
    than allowed. `noted`: returns the audit log's text for their number.
    """
    earlier = idempotency.claim(connection, wanted, request.redrive_id)
    if earlier is not None:
        return get_redrive(connection, RedriveId(earlier))
    letters.alone(connection)
    group = request.choice.group
    chosen = group or request.choice
    queued = connection.execute(
        dead_letters.update()
        .where(dead_letters.c.run_id.in_(letters.locked(request.choice)))
        .values(redrive=request.redrive_id)
    ).rowcount
    if not queued:
        raise RolledBack(None)  # which frees the idempotency key, too
    if request.choice.is_more(queued):
        raise RolledBack(StoreConflict("letters"))
    connection.execute(
        redrives.insert().values(
            redrive_id=request.redrive_id,
            shard=request.shard,
            namespace=clean(request.choice.namespace),
            job=clean(chosen.job),
            fingerprint=clean(chosen.fingerprint),
            rate=request.rate,
            payload=request.payload,
            total=queued,
            made=0,
            open=True,
            created_at=func.clock_timestamp(),
            created_by=clean(request.by),
            stopped_by="",
            submitted=group.submitted if group else None,
        )
    )
    audit.write_all(connection, [replace(entry, after=noted(queued))])
    return get_redrive(connection, request.redrive_id)


def get_redrive(connection: Connection, redrive_id: RedriveId) -> RedriveRecord | None:
    """Return one redrive, with the states of its runs and the exact number of waiting letters."""
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
    connection: Connection, namespace: str, after: tuple[datetime, RedriveId] | None, limit: int
) -> list[RedriveRecord]:
    """Return redrives after `after` (created_at, id), newest first, without states of runs."""
    query = _records().where(redrives.c.namespace == clean(namespace))
    if after is not None:
        query = query.where(tuple_(redrives.c.created_at, redrives.c.redrive_id) < after)
    query = query.order_by(redrives.c.created_at.desc(), redrives.c.redrive_id.desc())
    return decoded("redrives", connection.execute(query.limit(limit)), _record)


def switch(
    connection: Connection,
    redrive_id: RedriveId,
    by: str,
    entry: AuditRecord,
    noted: Callable[[RedriveRecord], str],
    *,
    on: bool,
) -> RedriveRecord | None:
    """Stop or resume a redrive. A finished one doesn't change, nor one that is already in that
    state. None: it doesn't exist. Its rate starts again. The record has no states of runs, which
    keeps a stop cheap. `noted`: returns the audit log's text for the state.
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
        assert now is not None, "its row is locked"
        audit.write_all(connection, [replace(entry, before=noted(was), after=noted(now))])
        return now
    return was


def _records() -> Select[Any]:
    """Select the redrives' own columns. `waiting` is an upper bound."""
    finished = redrives.c.finished_at.is_not(None)
    return select(
        *(column for column in redrives.c if column.name != "payload"),
        redrives.c.payload.is_not(None).label("edited"),
        case((finished, 0), else_=redrives.c.total - redrives.c.made).label("waiting"),
    )


def _record(row: Row[Any]) -> RedriveRecord:
    return record_of(RedriveRecord, row, states={})


@operations("dead_letters")
@dataclass(frozen=True, slots=True)
class DeadLetterStore:
    """Dead letters and redrives as users see them. Owners create the runs of redrives."""

    database: Database

    listed = in_transaction(letters.listed)
    get = in_transaction(letters.get)
    groups = in_transaction(letters.groups)
    discard = in_transaction(letters.discard)
    once_more = in_transaction(redrive_feed.once_more)
    planned = in_transaction(planned)
    create = in_transaction(create)
    redrive = in_transaction(get_redrive)
    switch = in_transaction(switch)
    redrives = in_transaction(newest)
