"""Read the runs that changed since a cursor, from the rows' transaction ids.

A row names the transaction that wrote it (`xmin`). A snapshot names the oldest transaction that may
still be running: all earlier ones are visible. So "changed since" needs no column and no log, and
writers pay nothing for it. There is no index on `xmin`, so the newest rows are scanned, and the
older runs that haven't ended (`live`). The answer says how far the scan went.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ARRAY, BigInteger, Connection, Label, Uuid, any_, literal, literal_column

from schedd.core.ids import JobId, RunId
from schedd.core.runs.change_stream import Change, Cursor, MissedChanges, Scope
from schedd.core.runs.lifecycle import LIVE
from schedd.store.cluster import cluster_events
from schedd.store.cluster.fence import BY_INDEX
from schedd.store.connection.database import Database, in_transaction
from schedd.store.connection.primary_selection import TIMELINE
from schedd.store.runs.run_records import record, record_name, records
from schedd.store.schema.tables import runs
from schedd.store.statements.arrays import ids
from schedd.store.statements.rows import decoded
from schedkit.records import dataclass

MOST: Final = 20_000
"""Rows in one scan, of all jobs together."""
LEAST: Final = 100
"""Rows of each job in one scan, at least."""
MOST_OLDER: Final = 5_000
"""Older runs that haven't ended in one scan. Each needs its own lookup."""

EPOCH: Final = 1 << 32
"""Rows store the lower 32 bits of the transaction id."""
LATER: Final = 1 << 20
"""Transactions that may begin between two statements, at most."""

NOW: Final = f"""
SELECT {TIMELINE}, pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint
FROM pg_current_snapshot() s
"""

CHANGED: Final = """(({row}.xmin::text::bigint - %(low)s) & 4294967295) < %(span)s"""

NEWEST: Final = """
WITH looked AS MATERIALIZED (
    SELECT run_id, scheduled_at, xmin FROM runs
    ORDER BY scheduled_at DESC, run_id DESC LIMIT %(most)s
), ends AS (
    SELECT min(scheduled_at) AS before FROM looked HAVING count(*) = %(most)s
)
"""

NEWEST_OF_JOBS: Final = """
WITH looked AS MATERIALIZED (
    SELECT r.run_id, r.scheduled_at, r.xmin, r.job_id
    FROM unnest(%(jobs)s::uuid[]) j(job_id) CROSS JOIN LATERAL (
        SELECT run_id, scheduled_at, xmin, job_id FROM runs
        WHERE job_id = j.job_id ORDER BY scheduled_at DESC LIMIT %(most)s
    ) r
), ends AS (
    SELECT max(before) AS before FROM (
        SELECT min(scheduled_at) AS before FROM looked GROUP BY job_id HAVING count(*) = %(most)s
    ) each_job
)
"""

UNENDED: Final = "live l"
UNENDED_OF_JOBS: Final = """unnest(%(jobs)s::uuid[]) w(job_id)
    JOIN jobs j ON j.job_id = w.job_id
    JOIN live l ON l.shard = j.shard AND l.job_id = j.job_id"""

LOOK: Final = """
{looked}
SELECT run_id, scheduled_at, 'changed' FROM looked l WHERE {changed}
UNION ALL
SELECT l.run_id, l.scheduled_at, CASE WHEN {run_changed} THEN 'changed' END
FROM (
    SELECT l.run_id, l.scheduled_at FROM ends CROSS JOIN {unended}
    WHERE l.scheduled_at <= ends.before LIMIT %(older)s
) l JOIN runs r ON r.scheduled_at = l.scheduled_at AND r.run_id = l.run_id
UNION ALL
SELECT NULL, before, 'ends' FROM ends
ORDER BY 2
"""


ROWS: Final = "FROM runs ORDER BY scheduled_at DESC, run_id DESC"
ROWS_OF_JOB: Final = "FROM runs WHERE job_id = %(job)s ORDER BY scheduled_at DESC"

LIVING: Final = """
SELECT r.run_id
FROM (SELECT run_id, scheduled_at, job_id, state {rows} LIMIT %(looked)s) r
JOIN jobs j ON j.job_id = r.job_id
WHERE r.state = ANY (%(living)s) AND j.namespace = %(namespace)s
ORDER BY r.scheduled_at DESC, r.run_id DESC LIMIT %(most)s
"""
"""The scan ends when it has found enough rows, usually early."""

END: Final = "SELECT scheduled_at {rows} OFFSET %(looked)s - 1 LIMIT 1"
"""The oldest row of the scan. Older runs may exist that haven't ended."""

FREELY: Final = "".join(
    f"SET LOCAL enable_{way} TO DEFAULT;" for way in ("seqscan", "bitmapscan", "hashjoin")
)
"""Resets the planner: the next statement reads all live runs, unordered, not row by row."""

OLDER: Final = """
SELECT l.run_id FROM live l JOIN jobs j ON j.shard = l.shard AND j.job_id = l.job_id
WHERE l.scheduled_at <= %(before)s AND j.namespace = %(namespace)s
  AND (%(job)s::uuid IS NULL OR l.job_id = %(job)s)
ORDER BY l.scheduled_at DESC, l.run_id DESC LIMIT %(most)s
"""


def _changes_statement(looked: str, unended: str) -> str:
    return LOOK.format(
        looked=looked,
        unended=unended,
        changed=CHANGED.format(row="l"),
        run_changed=CHANGED.format(row="r"),
    )


OF_ALL: Final = _changes_statement(NEWEST, UNENDED)
OF_JOBS: Final = _changes_statement(NEWEST_OF_JOBS, UNENDED_OF_JOBS)


def scan_changes(
    connection: Connection, cursor: Cursor, of: Sequence[JobId] | None, most: int
) -> MissedChanges:
    """Scan the newest `most` rows of these jobs, or of all, and their live runs."""
    present, span = span_since(connection, cursor)
    if span is None:
        return MissedChanges(present, unknown=True)
    connection.exec_driver_sql(f"SELECT {BY_INDEX}")
    values = {
        "most": most if of is None else min(most, max(LEAST, most // max(1, len(of)))),
        "older": MOST_OLDER,
        "jobs": ids(of or ()),
        **span,
    }
    found = connection.exec_driver_sql(OF_ALL if of is None else OF_JOBS, values).all()
    before = next((at for _, at, what in found if what == "ends"), None)
    older = [RunId(run) for run, at, _ in found if run and before and at < before]
    return MissedChanges(
        present,
        tuple(dict.fromkeys(RunId(run) for run, _, what in found if what == "changed")),
        frozenset(older if len(older) < MOST_OLDER else ()),
        before,
        tuple(cluster_events.read_events(connection, cursor, present)),
    )


def unended(connection: Connection, scope: Scope, most: int, looked: int) -> list[RunId]:
    """Return the newest live runs, the oldest of them first."""
    connection.exec_driver_sql(f"SELECT {BY_INDEX}")
    of = ROWS if scope.job is None else ROWS_OF_JOB
    asked = {
        "namespace": scope.namespace,
        "job": scope.job and str(scope.job),
        "looked": looked,
        "most": most,
        "living": sorted(state.value for state in LIVE),
    }
    found = connection.exec_driver_sql(LIVING.format(rows=of), asked).scalars().all()
    if len(found) < most:
        before = connection.exec_driver_sql(END.format(rows=of), asked).scalar()
        if before is not None:
            connection.exec_driver_sql(FREELY)
            rest = connection.exec_driver_sql(OLDER, asked | {"before": before}).scalars()
            found = [*dict.fromkeys([*found, *rest])][:most]
    return [RunId(run) for run in found[::-1]]


def read_changes(connection: Connection, run_ids: Sequence[RunId]) -> list[Change]:
    _, following = _now(connection)
    written: Label[int] = literal_column("runs.xmin::text::bigint", BigInteger).label("written")
    these = any_(literal(ids(run_ids)).cast(ARRAY(Uuid)))
    query = records().add_columns(written).where(runs.c.run_id == these)
    changes = decoded(
        "runs", connection.execute(query), lambda row: _change(row, following), record_name
    )
    found = {change.run_id: change for change in changes}
    return [found[run_id] for run_id in run_ids if run_id in found]


def _change(row: Any, following: int) -> Change:
    """Return the change with the full transaction id: at most `LATER` past `following`."""
    last = following + LATER
    return Change(record(row), last - (last - row.written) % EPOCH)


def moment(connection: Connection) -> Cursor:
    return _now(connection)[0]


def span_since(connection: Connection, cursor: Cursor) -> tuple[Cursor, dict[str, int] | None]:
    """Return the present cursor, and the arguments of `CHANGED`; None: the given cursor isn't from
    this database's past.
    """
    present, following = _now(connection)
    return present, _span(cursor, present, following)


def _span(cursor: Cursor, present: Cursor, following: int) -> dict[str, int] | None:
    if cursor.timeline != present.timeline or cursor.transaction > following:
        return None
    return {
        "low": cursor.transaction % EPOCH,
        "span": min(EPOCH, following + LATER - cursor.transaction),
    }


def _now(connection: Connection) -> tuple[Cursor, int]:
    """Return the present cursor, and the first transaction that hasn't begun."""
    timeline, oldest, following = connection.exec_driver_sql(NOW).one()
    return Cursor(timeline, oldest), following


@dataclass(frozen=True, slots=True)
class ChangeStore:
    database: Database
    most: int = MOST

    now = in_transaction(moment)

    async def since(self, cursor: Cursor, of: Sequence[JobId] | None) -> MissedChanges:
        return await self.database.call(scan_changes, cursor, of, self.most)

    async def unended(self, scope: Scope, most: int) -> list[RunId]:
        return await self.database.call(unended, scope, most, self.most)

    read = in_transaction(read_changes)
