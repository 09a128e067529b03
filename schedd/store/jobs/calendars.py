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
from typing import Any, Final

from sqlalchemy import Connection, column, text

from schedd.core.ids import JobId
from schedd.core.runs.model import AuditRecord
from schedd.core.runs.records import CalendarRecord, PinnedCalendar
from schedd.store import audit
from schedd.store.connection.database import Database, in_transaction
from schedd.store.statements import arrays
from schedd.store.statements.arrays import clean
from schedd.store.statements.operations import operations
from schedd.store.statements.rows import decoded, record_of
from schedkit.records import dataclass, replace

_OF_JOB: Final = """
    SELECT array_agg(c.name) AS names, array_agg(c.version) AS versions, array_agg(v.spec) AS specs
    FROM job_calendars c JOIN calendar_versions v USING (namespace, name, version)
    WHERE c.job_id = {}.job_id
"""
PINNED = f"""
LEFT JOIN LATERAL ({_OF_JOB.format("j")})
  pinned ON EXISTS (SELECT FROM job_calendars c WHERE c.job_id = j.job_id)
"""
"""A join for `jobs j`: the job's pinned calendars. Most jobs have none, and aggregate nothing."""

CURRENT: Final = """
SELECT name, version, v.spec
FROM calendars c JOIN calendar_versions v USING (namespace, name, version)
WHERE namespace = %(namespace)s AND name = ANY (%(names)s::text[]) AND c.deleted_at IS NULL
ORDER BY name
"""

HOLD: Final = """
SELECT name, version FROM calendars
WHERE namespace = %(namespace)s AND name = ANY (%(names)s::text[]) AND deleted_at IS NULL
ORDER BY name FOR SHARE
"""

PIN: Final = """
INSERT INTO job_calendars (job_id, name, namespace, version)
SELECT %(job)s, name, %(namespace)s, version
FROM unnest(%(names)s::text[], %(versions)s::int[]) b(name, version)
"""

ADD: Final = """
INSERT INTO calendars (namespace, name, version, updated_at, updated_by, deleted_at)
VALUES (%(namespace)s, %(name)s, 0, clock_timestamp(), %(actor)s, clock_timestamp())
ON CONFLICT DO NOTHING
"""

LOCK: Final = """
SELECT deleted_at IS NULL FROM calendars
WHERE namespace = %(namespace)s AND name = %(name)s FOR UPDATE
"""

RAISE: Final = """
WITH next AS (
    UPDATE calendars SET version = version + 1, deleted_at = NULL, updated_by = %(actor)s,
        updated_at = clock_timestamp()
    WHERE namespace = %(namespace)s AND name = %(name)s
    RETURNING namespace, name, version, updated_at, updated_by
)
INSERT INTO calendar_versions (namespace, name, version, spec, updated_at, updated_by)
SELECT namespace, name, version, %(spec)s, updated_at, updated_by FROM next
"""

RECORDS: Final = """
SELECT c.namespace, c.name, v.version, v.spec, v.updated_at, v.updated_by, used.jobs, used.behind
FROM calendars c JOIN calendar_versions v ON v.namespace = c.namespace AND v.name = c.name
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs, count(*) FILTER (WHERE p.version < c.version) AS behind
    FROM job_calendars p JOIN jobs j ON j.job_id = p.job_id
    WHERE p.namespace = c.namespace AND p.name = c.name AND j.deleted_at IS NULL
) used
WHERE c.namespace = %(namespace)s AND
"""
NEWEST: Final = "v.version = c.version AND c.deleted_at IS NULL"

USERS: Final = """
SELECT j.job_id, j.name FROM job_calendars p JOIN jobs j ON j.job_id = p.job_id
WHERE p.namespace = %(namespace)s AND p.name = %(name)s AND j.deleted_at IS NULL
"""
"""The jobs that use any version of the calendar."""


PINNED_LATERAL: Final = (
    text(_OF_JOB.format("jobs"))
    .columns(column("names"), column("versions"), column("specs"))
    .lateral("pinned")
)
"""`PINNED` for SQLAlchemy, to join with `jobs` ON true."""


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
    asked = {"namespace": clean(namespace), "names": arrays.texts(names)}
    rows = connection.exec_driver_sql(CURRENT, asked)
    return tuple(PinnedCalendar(name, version, bytes(spec)) for name, version, spec in rows)


def pin(
    connection: Connection, job_id: JobId, namespace: str, wanted: Sequence[PinnedCalendar]
) -> bool:
    """Pin these calendars to a job. False, and nothing changes, if one isn't the newest version."""
    values = {
        "job": job_id,
        "namespace": namespace,
        "names": arrays.texts(one.name for one in wanted),
        "versions": arrays.numbers(one.version for one in wanted),
    }
    rows = connection.exec_driver_sql(HOLD, values)
    if {tuple(row) for row in rows} != {(one.name, one.version) for one in wanted}:
        return False
    forget(connection, job_id)
    connection.exec_driver_sql(PIN, values)
    return True


def forget(connection: Connection, job_id: JobId) -> None:
    connection.exec_driver_sql("DELETE FROM job_calendars WHERE job_id = %s", (job_id,))


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
    values = {"namespace": namespace, "name": name, "spec": spec, "actor": clean(actor)}
    connection.exec_driver_sql(ADD, values)
    connection.exec_driver_sql(LOCK, values)
    before = get_calendar(connection, namespace, name)
    if before is not None and before.spec == spec:
        return before
    connection.exec_driver_sql(RAISE, values)
    was, now = (entry.before, entry.after) if noted is None else noted(before)
    audit.write_all(connection, [replace(entry, before=was, after=now)])
    made = get_calendar(connection, namespace, name)
    assert made is not None, "it was written in this transaction"
    return made


def get_calendar(
    connection: Connection, namespace: str, name: str, version: int = 0
) -> CalendarRecord | None:
    """Return the newest version, or the one with this number, also of a deleted calendar."""
    which = "v.version = %(version)s" if version else NEWEST
    row = connection.exec_driver_sql(
        f"{RECORDS} c.name = %(name)s AND {which}",
        {"namespace": clean(namespace), "name": clean(name), "version": version},
    ).first()
    return None if row is None else _record(row)


def list_calendars(
    connection: Connection, namespace: str, after: str, limit: int
) -> list[CalendarRecord]:
    """Return calendars after `after`, by name."""
    rows = connection.exec_driver_sql(
        f"{RECORDS} c.name > %(after)s AND {NEWEST} ORDER BY c.name LIMIT %(limit)s",
        {"namespace": clean(namespace), "after": clean(after), "limit": limit},
    )
    return decoded("calendars", rows, _record)


def jobs_of_earlier_versions(
    connection: Connection, namespace: str, name: str, version: int, limit: int
) -> list[JobId]:
    rows = connection.exec_driver_sql(
        f"{USERS} AND p.version < %(version)s LIMIT %(limit)s",
        {"namespace": clean(namespace), "name": clean(name), "version": version, "limit": limit},
    )
    return [row.job_id for row in rows]


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
    where = {"namespace": clean(namespace), "name": clean(name), "most": most}
    if not connection.exec_driver_sql(LOCK, where).scalar():
        return False
    users = connection.exec_driver_sql(f"{USERS} ORDER BY j.name LIMIT %(most)s", where)
    if names := [row.name for row in users]:
        return names
    gone = get_calendar(connection, namespace, name)
    assert gone is not None, "its row is locked"
    connection.exec_driver_sql(
        "UPDATE calendars SET deleted_at = clock_timestamp()"
        " WHERE namespace = %(namespace)s AND name = %(name)s",
        where,
    )
    before = entry.before if noted is None else noted(gone)
    audit.write_all(connection, [replace(entry, before=before)])
    return True


def _record(row: Any) -> CalendarRecord:
    return record_of(CalendarRecord, row, spec=bytes(row.spec))


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
