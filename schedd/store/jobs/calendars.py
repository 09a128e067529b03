"""Calendars: their versions, and the jobs that use each version.

    calendars ──▶ the newest version of each          job_calendars ──▶ a job's own versions
         └──────── calendar_versions: the content of each ──┘

Invariants
- A version's content never changes. The numbers of a name only grow, also over its deletion.
- A job uses the versions that are pinned to it. They are written with its definition, under its
  locks, while the rows of its calendars are locked FOR SHARE and still have those versions. So a
  job is never pinned to a version that was replaced or deleted before.
- Locks: shard, job, timer, then calendars by name. A change of a calendar locks only its row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, func, select, true
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.selectable import LateralFromClause

from schedd.core.ids import JobId
from schedd.core.runs.model import AuditRecord
from schedd.core.runs.records import CalendarRecord, PinnedCalendar
from schedd.store import audit
from schedd.store.connection.database import Database, in_transaction
from schedd.store.schema.tables import calendar_versions, calendars, job_calendars, jobs
from schedd.store.statements.arrays import clean
from schedd.store.statements.operations import operations
from schedd.store.statements.rows import decoded, record_of
from schedkit.records import dataclass, replace

PINNED = """
LEFT JOIN LATERAL (
    SELECT array_agg(c.name) AS names, array_agg(c.version) AS versions, array_agg(v.spec) AS specs
    FROM job_calendars c JOIN calendar_versions v USING (namespace, name, version)
    WHERE c.job_id = j.job_id
) pinned ON EXISTS (SELECT FROM job_calendars c WHERE c.job_id = j.job_id)
"""
"""A join for `jobs j`: the job's pinned calendars. Most jobs have none, and aggregate nothing."""


def pinned_lateral() -> LateralFromClause:
    both = job_calendars.join(
        calendar_versions,
        (calendar_versions.c.namespace == job_calendars.c.namespace)
        & (calendar_versions.c.name == job_calendars.c.name)
        & (calendar_versions.c.version == job_calendars.c.version),
    )
    return (
        select(
            func.array_agg(job_calendars.c.name).label("names"),
            func.array_agg(job_calendars.c.version).label("versions"),
            func.array_agg(calendar_versions.c.spec).label("specs"),
        )
        .select_from(both)
        .where(job_calendars.c.job_id == jobs.c.job_id)
        .lateral("pinned")
    )


def pinned(
    names: Sequence[str] | None, versions: Sequence[int] | None, specs: Sequence[Any] | None
) -> tuple[PinnedCalendar, ...]:
    """Decode the columns of `PINNED`: all NULL for a job without calendars."""
    if not names or not versions or not specs:
        return ()
    rows = sorted(zip(names, versions, specs, strict=True), key=lambda row: row[0])
    return tuple(PinnedCalendar(name, version, bytes(spec)) for name, version, spec in rows)


def current(
    connection: Connection, namespace: str, names: Collection[str]
) -> tuple[PinnedCalendar, ...]:
    """Return the newest version of each of these calendars that exists, by name."""
    both = calendars.join(
        calendar_versions,
        (calendar_versions.c.namespace == calendars.c.namespace)
        & (calendar_versions.c.name == calendars.c.name)
        & (calendar_versions.c.version == calendars.c.version),
    )
    rows = connection.execute(
        select(calendars.c.name, calendars.c.version, calendar_versions.c.spec)
        .select_from(both)
        .where(
            calendars.c.namespace == clean(namespace),
            calendars.c.name.in_([clean(name) for name in names]),
            calendars.c.deleted_at.is_(None),
        )
        .order_by(calendars.c.name)
    )
    return tuple(PinnedCalendar(name, version, bytes(spec)) for name, version, spec in rows)


def pin(
    connection: Connection, job_id: JobId, namespace: str, wanted: Sequence[PinnedCalendar]
) -> bool:
    """Pin these calendars to a job. False, and nothing changes, if one isn't the newest version."""
    names = sorted(one.name for one in wanted)
    rows = connection.execute(
        select(calendars.c.name, calendars.c.version)
        .where(
            calendars.c.namespace == namespace,
            calendars.c.name.in_(names),
            calendars.c.deleted_at.is_(None),
        )
        .order_by(calendars.c.name)
        .with_for_update(read=True)
    )
    if {tuple(row) for row in rows} != {(one.name, one.version) for one in wanted}:
        return False
    forget(connection, job_id)
    for one in wanted:
        connection.execute(
            job_calendars.insert().values(
                job_id=job_id, name=one.name, namespace=namespace, version=one.version
            )
        )
    return True


def forget(connection: Connection, job_id: JobId) -> None:
    connection.execute(job_calendars.delete().where(job_calendars.c.job_id == job_id))


def apply_calendar(
    connection: Connection,
    namespace: str,
    name: str,
    spec: bytes,
    actor: str,
    entry: AuditRecord,
    noted: Callable[[CalendarRecord | None], tuple[str, str]] | None = None,
) -> CalendarRecord:
    """Write the calendar's next version, unless the newest one is equal. `noted`: returns the audit
    log's texts before and after, for the earlier version.
    """
    connection.execute(
        insert(calendars)
        .values(
            namespace=namespace,
            name=name,
            version=0,
            updated_at=func.clock_timestamp(),
            updated_by=clean(actor),
            deleted_at=func.clock_timestamp(),
        )
        .on_conflict_do_nothing()
    )
    here = (calendars.c.namespace == namespace) & (calendars.c.name == name)
    connection.execute(select(calendars.c.name).where(here).with_for_update())
    before = get_calendar(connection, namespace, name)
    if before is not None and before.spec == spec:
        return before
    changed = {"updated_at": func.clock_timestamp(), "updated_by": clean(actor)}
    version = connection.execute(
        calendars.update()
        .where(here)
        .values(version=calendars.c.version + 1, deleted_at=None, **changed)
        .returning(calendars.c.version)
    ).scalar_one()
    connection.execute(
        calendar_versions.insert().values(
            namespace=namespace, name=name, version=version, spec=spec, **changed
        )
    )
    was, now = (entry.before, entry.after) if noted is None else noted(before)
    audit.write_all(connection, [replace(entry, before=was, after=now)])
    made = get_calendar(connection, namespace, name)
    assert made is not None, "it was written in this transaction"
    return made


def get_calendar(
    connection: Connection, namespace: str, name: str, version: int = 0
) -> CalendarRecord | None:
    """Return the newest version, or the one with this number, also of a deleted calendar."""
    query = _records().where(
        calendars.c.namespace == clean(namespace), calendars.c.name == clean(name)
    )
    if version:
        query = query.where(calendar_versions.c.version == version)
    else:
        query = query.where(
            calendar_versions.c.version == calendars.c.version, calendars.c.deleted_at.is_(None)
        )
    row = connection.execute(query).first()
    return None if row is None else record_of(CalendarRecord, row)


def list_calendars(
    connection: Connection, namespace: str, after: str, limit: int
) -> list[CalendarRecord]:
    rows = connection.execute(
        _records()
        .where(
            calendars.c.namespace == clean(namespace),
            calendars.c.name > clean(after),
            calendars.c.deleted_at.is_(None),
            calendar_versions.c.version == calendars.c.version,
        )
        .order_by(calendars.c.name)
        .limit(limit)
    )
    return decoded("calendars", rows, partial(record_of, CalendarRecord))


def jobs_of_earlier_versions(
    connection: Connection, namespace: str, name: str, version: int, limit: int
) -> list[JobId]:
    query = _users(namespace, name).where(job_calendars.c.version < version)
    return [JobId(row.job_id) for row in connection.execute(query.limit(limit))]


def delete_calendar(
    connection: Connection,
    namespace: str,
    name: str,
    entry: AuditRecord,
    most: int,
    noted: Callable[[CalendarRecord], str] | None = None,
) -> bool | list[str]:
    """Delete the calendar. False: it doesn't exist. Names, at most `most`: these jobs use it, and
    it isn't deleted. `noted`: returns the audit log's text for the deleted calendar.
    """
    here = (calendars.c.namespace == clean(namespace)) & (calendars.c.name == clean(name))
    found = connection.execute(
        select(calendars.c.name).where(here, calendars.c.deleted_at.is_(None)).with_for_update()
    )
    if found.first() is None:
        return False
    users = connection.execute(_users(namespace, name).order_by(jobs.c.name).limit(most))
    if names := [row.name for row in users]:
        return names
    gone = get_calendar(connection, namespace, name)
    assert gone is not None, "its row is locked"
    connection.execute(calendars.update().where(here).values(deleted_at=func.clock_timestamp()))
    before = entry.before if noted is None else noted(gone)
    audit.write_all(connection, [replace(entry, before=before)])
    return True


def _users(namespace: str, name: str) -> Any:
    return (
        select(jobs.c.job_id, jobs.c.name)
        .select_from(job_calendars.join(jobs, jobs.c.job_id == job_calendars.c.job_id))
        .where(
            job_calendars.c.namespace == clean(namespace),
            job_calendars.c.name == clean(name),
            jobs.c.deleted_at.is_(None),
        )
    )


def _records() -> Any:
    used = (
        select(
            func.count().label("jobs"),
            func.count().filter(job_calendars.c.version < calendars.c.version).label("behind"),
        )
        .select_from(job_calendars.join(jobs, jobs.c.job_id == job_calendars.c.job_id))
        .where(
            job_calendars.c.namespace == calendars.c.namespace,
            job_calendars.c.name == calendars.c.name,
            jobs.c.deleted_at.is_(None),
        )
        .lateral("used")
    )
    versions = calendars.join(
        calendar_versions,
        (calendar_versions.c.namespace == calendars.c.namespace)
        & (calendar_versions.c.name == calendars.c.name),
    )
    return select(
        calendars.c.namespace,
        calendars.c.name,
        calendar_versions.c.version,
        calendar_versions.c.spec,
        calendar_versions.c.updated_at,
        calendar_versions.c.updated_by,
        used.c.jobs,
        used.c.behind,
    ).select_from(versions.join(used, true()))


@operations("calendars")
@dataclass(frozen=True, slots=True)
class CalendarStore:
    """Reads and writes of user calls on calendars. Definitions pin versions of calendars."""

    database: Database

    current = in_transaction(current)
    apply = in_transaction(apply_calendar)
    get = in_transaction(get_calendar)
    list = in_transaction(list_calendars)
    behind = in_transaction(jobs_of_earlier_versions)
    delete = in_transaction(delete_calendar)
