"""List, group and discard dead letters. `redrive_feed` runs them again.

Invariant: a letter is resolved once. Each change locks its row, and finds it unresolved.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Subquery,
    and_,
    func,
    or_,
    select,
    true,
    tuple_,
)
from sqlalchemy.dialects.postgresql import aggregate_order_by

from schedd.core.ids import RedriveId, RunId
from schedd.core.runs.model import AuditRecord
from schedd.core.runs.records import DeadLetterGroupRecord, DeadLetterRecord, StoreConflict
from schedd.core.runs.redrive import LetterFilter, LetterOutcome
from schedd.store import audit
from schedd.store.cluster.fence import BY_INDEX
from schedd.store.connection.database import RolledBack
from schedd.store.runs.run_records import newest_first, of_job, record, record_name, records
from schedd.store.schema.tables import dead_letters, jobs, redrives, runs
from schedd.store.statements.arrays import clean
from schedd.store.statements.rows import decoded, record_of
from schedkit.records import replace

MOST_AT_ONCE = 50_000
"""Letters that one redrive queues, or one call discards."""


def listed(
    connection: Connection,
    choice: LetterFilter,
    redrive: RedriveId | None,
    after: tuple[datetime, RunId] | None,
    limit: int,
    *,
    resolved: bool,
) -> list[DeadLetterRecord]:
    """Return letters after `after`, newest scheduled time first. Only waiting ones, unless
    `resolved` or a redrive is given.
    """
    query = _letters(newest_first(limit)).where(jobs.c.namespace == clean(choice.namespace))
    if not resolved and redrive is None:
        query = query.where(dead_letters.c.resolution.is_(None))
    if choice.job:
        query = query.where(of_job(runs.c.job_id, choice.namespace, choice.job))
    if choice.fingerprint:
        query = query.where(dead_letters.c.fingerprint == clean(choice.fingerprint))
    if redrive is not None:
        query = query.where(dead_letters.c.redrive == redrive)
    if after is not None:
        query = query.where(tuple_(runs.c.scheduled_at, runs.c.run_id) < after)
    return decoded("dead_letters", connection.execute(query), _letter, record_name)


def get(connection: Connection, run_id: RunId) -> DeadLetterRecord | None:
    row = connection.execute(_letters(records()).where(dead_letters.c.run_id == run_id)).first()
    return None if row is None else _letter(row)


def groups(
    connection: Connection, choice: LetterFilter, most: int
) -> tuple[list[DeadLetterGroupRecord], int]:
    """Return groups of waiting letters by job and fingerprint, largest first, and their number.
    Joins use index lookups: few jobs have letters.
    """
    connection.exec_driver_sql(f"SELECT {BY_INDEX}")
    greatest = _greatest(choice, most)
    newest = dead_letters.alias("newest")
    its = (runs.c.scheduled_at == newest.c.scheduled_at, runs.c.run_id == newest.c.run_id)
    said = select(runs.c.reason, runs.c.exit_code, runs.c.error).where(*its)
    run = said.offset(0).lateral("run")  # otherwise the planner scans all days for its id
    query = (
        select(greatest, run)
        .join(newest, newest.c.run_id == greatest.c.run_id)
        .join(run, true())
        .order_by(greatest.c.how_many.desc(), greatest.c.last_died_at.desc())
    )
    rows = connection.execute(query).all()
    found = [
        record_of(
            DeadLetterGroupRecord,
            row,
            namespace=choice.namespace,
            job=row.name,
            count=row.how_many,
            submitted=row.ephemeral,
        )
        for row in rows
    ]
    return found, int(rows[0].in_all) if rows else 0


def discard(
    connection: Connection,
    choice: LetterFilter,
    by: str,
    note: str,
    entry: AuditRecord,
    noted: Callable[[int], str],
) -> list[RunId] | StoreConflict:
    """Discard waiting letters, except those queued for an open redrive. Returns them. Rolls back
    with a `StoreConflict` if there are more than allowed. `noted`: returns the audit log's text for
    their number.
    """
    alone(connection)
    changed = connection.execute(
        dead_letters.update()
        .where(dead_letters.c.run_id.in_(locked(choice)))
        .values(
            resolution=LetterOutcome.DISCARDED.value,
            resolved_at=func.clock_timestamp(),
            resolved_by=clean(by),
            note=clean(note),
        )
        .returning(dead_letters.c.run_id)
    )
    found = [RunId(one) for one in changed.scalars()]
    if choice.is_more(len(found)):
        raise RolledBack(StoreConflict("letters"))
    if found:
        audit.write_all(connection, [replace(entry, after=noted(len(found)))])
    return found


def chosen(choice: LetterFilter) -> ColumnElement[bool]:
    conditions = [jobs.c.namespace == clean(choice.namespace)]
    if choice.job:
        conditions.append(of_job(dead_letters.c.job_id, choice.namespace, choice.job))
    if choice.fingerprint:
        conditions.append(dead_letters.c.fingerprint == clean(choice.fingerprint))
    if choice.run_ids:
        conditions.append(dead_letters.c.run_id.in_(choice.run_ids))
    if choice.group is not None:
        conditions += [
            jobs.c.name == clean(choice.group.job),
            jobs.c.ephemeral.is_(choice.group.submitted),
            dead_letters.c.fingerprint == clean(choice.group.fingerprint),
        ]
    if choice.until is not None:
        conditions.append(dead_letters.c.died_at <= choice.until)
    return and_(*conditions)


def free(choice: LetterFilter) -> ColumnElement[bool]:
    """Return the condition that a letter matches, waits, and isn't queued for an open redrive."""
    there = select(dead_letters.c.run_id.label("it")).select_from(
        dead_letters.join(jobs, jobs.c.job_id == dead_letters.c.job_id)
    )
    return and_(
        dead_letters.c.run_id.in_(there.where(chosen(choice))),
        dead_letters.c.resolution.is_(None),
        or_(dead_letters.c.redrive.is_(None), dead_letters.c.redrive.not_in(_under_way())),
    )


def alone(connection: Connection) -> None:
    """Lock redrives and discards: until this transaction ends no other one queues or discards
    letters, so each sees the changes of the one before.
    """
    connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('schedd redrives'))")


def _under_way() -> Select[Any]:
    return select(redrives.c.redrive_id).where(redrives.c.open)


def oldest(choice: LetterFilter) -> Select[Any]:
    return (
        select(dead_letters.c.run_id)
        .where(free(choice))
        .order_by(dead_letters.c.scheduled_at, dead_letters.c.run_id)
        .limit(MOST_AT_ONCE)
    )


def locked(choice: LetterFilter) -> Select[Any]:
    return oldest(choice).with_for_update()


def _greatest(choice: LetterFilter, most: int) -> Subquery:
    """Select one row for each group, with the run of its newest letter."""
    newest = (dead_letters.c.died_at.desc(), dead_letters.c.run_id)
    return (
        select(
            dead_letters.c.fingerprint,
            jobs.c.name,
            jobs.c.ephemeral,
            func.count().label("how_many"),
            func.sum(func.count()).over().label("in_all"),
            func.count().filter(dead_letters.c.redrive.in_(_under_way())).label("queued"),
            func.min(dead_letters.c.died_at).label("first_died_at"),
            func.max(dead_letters.c.died_at).label("last_died_at"),
            func.array_agg(aggregate_order_by(dead_letters.c.run_id, *newest))[1].label("run_id"),
        )
        .select_from(dead_letters.join(jobs, jobs.c.job_id == dead_letters.c.job_id))
        .where(chosen(choice), dead_letters.c.resolution.is_(None))
        .group_by(dead_letters.c.fingerprint, jobs.c.name, jobs.c.ephemeral)
        .order_by(func.count().desc(), func.max(dead_letters.c.died_at).desc())
        .limit(most)
        .subquery("greatest")
    )


def _letters(query: Select[Any]) -> Select[Any]:
    return query.add_columns(
        *(
            column
            for column in dead_letters.c
            if column.name not in {"run_id", "scheduled_at", "job_id"}
        )
    ).join(
        dead_letters,
        (dead_letters.c.run_id == runs.c.run_id)
        & (dead_letters.c.scheduled_at == runs.c.scheduled_at),
    )


def _letter(row: Row[Any]) -> DeadLetterRecord:
    return record_of(
        DeadLetterRecord,
        row,
        run=record(row),
        resolved=row.resolution and LetterOutcome(row.resolution),
    )
