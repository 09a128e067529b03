"""Chain events: ends of parents' runs that their children haven't processed yet.

a parent's run ends ─→ chain_arrivals, by the trigger of its `live` row, in that transaction
due, read ─→ locked, if unchanged since ─→ judged (`chain_joins`) ─→ over | later
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import Connection

from schedd.core.ids import Id, JobId, RunId, ShardId, chained_run_id
from schedd.core.jobs.chains import ChainJoin, Cycle, ParentEnded, Wanted
from schedd.core.runs.lifecycle import State
from schedd.store.cluster.fence import BY_INDEX
from schedd.store.statements import arrays
from schedd.store.statements.rows import decoded

AT_ONCE: Final = 200
"""Events in one read: judging them holds locks."""

_JOINS = """unnest(%(children)s::uuid[], %(scheduled)s::timestamptz[], %(roots)s::uuid[])
    WITH ORDINALITY w(child, scheduled_at, root, n)"""

DUE = f"""
SELECT DISTINCT child, shard, scheduled_at, root FROM (
    SELECT a.child, t.shard, a.scheduled_at, a.root
    FROM chain_arrivals a JOIN timers t ON t.job_id = a.child
    WHERE a.look_at <= statement_timestamp() AND t.shard = ANY (%(shards)s::int[])
      AND NOT (SELECT paused FROM cluster WHERE one)
    ORDER BY a.look_at LIMIT {AT_ONCE}
) due
"""

ARRIVED = f"""
SELECT w.n, a.parent, j.name, a.run_id, a.state, a.arrived_at
FROM {_JOINS} JOIN chain_arrivals a USING (child, scheduled_at, root)
JOIN jobs j ON j.job_id = a.parent
"""

SKIPPED = """
SELECT b.run_id, r.parents
FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[]) b(scheduled_at, run_id)
CROSS JOIN LATERAL (
    SELECT * FROM runs r WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id OFFSET 0
) r WHERE r.state = 'SKIPPED' AND r.parents IS NOT NULL
"""

LOCK = f"""
SELECT w.n, a.parent, a.run_id
FROM {_JOINS} JOIN chain_arrivals a USING (child, scheduled_at, root)
ORDER BY a.child, a.scheduled_at, a.root, a.parent FOR UPDATE OF a
"""

_ARRIVALS = """unnest(%(children)s::uuid[], %(scheduled)s::timestamptz[], %(roots)s::uuid[],
    %(parents)s::uuid[], %(runs)s::uuid[]"""

_SAME = """a.child = w.child AND a.scheduled_at = w.scheduled_at AND a.root = w.root
  AND a.parent = w.parent AND a.run_id = w.run_id"""

OVER = f"""
DELETE FROM chain_arrivals a USING {_ARRIVALS}) w(child, scheduled_at, root, parent, run_id)
WHERE {_SAME}
"""

LATER = f"""
UPDATE chain_arrivals a SET look_at = clock_timestamp() + w.wait * interval '1 s'
FROM {_ARRIVALS}, %(waits)s::float8[]) w(child, scheduled_at, root, parent, run_id, wait)
WHERE {_SAME}
"""


def due(connection: Connection, shards: Collection[ShardId]) -> list[ChainJoin]:
    """Return the joins of these shards that are due to be judged. A hint."""
    connection.exec_driver_sql(f"SELECT {BY_INDEX}")
    found = connection.exec_driver_sql(DUE, {"shards": arrays.numbers(shards)}).all()
    return _read(connection, [(JobId(c), ShardId(s), Cycle(at, root)) for c, s, at, root in found])


def of_job(connection: Connection, job_id: JobId, at: datetime) -> list[ChainJoin]:
    found = connection.exec_driver_sql(
        "SELECT DISTINCT a.child, t.shard, a.scheduled_at, a.root"
        " FROM chain_arrivals a JOIN timers t ON t.job_id = a.child"
        " WHERE a.child = %s AND a.scheduled_at = %s LIMIT 20",
        (job_id, at),
    ).all()
    return _read(connection, [(JobId(c), ShardId(s), Cycle(at, root)) for c, s, at, root in found])


def _read(connection: Connection, found: Sequence[tuple[JobId, ShardId, Cycle]]) -> list[ChainJoin]:
    if not found:
        return []
    arrived: dict[int, dict[JobId, ParentEnded]] = {}
    first: dict[int, datetime] = {}
    columns = keys([(child, cycle) for child, _, cycle in found])
    rows = connection.exec_driver_sql(ARRIVED, columns)
    for n, parent, ended, at in decoded("chain_arrivals", rows, _arrived, itemgetter(3)):
        arrived.setdefault(n, {})[parent] = ended
        first[n] = min(at, first.get(n, at))
    skipped = _skipped_by(connection, [(child, cycle) for child, _, cycle in found])
    return [
        ChainJoin(
            child, shard, cycle, arrived[n], first[n], skipped.get(_first_run(child, cycle), {})
        )
        for n, (child, shard, cycle) in enumerate(found, 1)
        if n in arrived
    ]


def _arrived(row: Sequence[Any]) -> tuple[int, JobId, ParentEnded, datetime]:
    n, parent, name, run_id, state, at = row
    return n, JobId(parent), ParentEnded(name, RunId(run_id), State(state)), at


def _skipped_by(
    connection: Connection, joins: Sequence[tuple[JobId, Cycle]]
) -> dict[RunId, dict[JobId, ParentEnded]]:
    """Return the skipped runs of these joins, with the parents that caused the skip."""
    values = {
        "scheduled": arrays.instants(cycle.scheduled_at for _, cycle in joins),
        "runs": arrays.ids(_first_run(child, cycle) for child, cycle in joins),
    }
    rows = connection.exec_driver_sql(SKIPPED, values)
    return dict(decoded("runs", rows, lambda row: (RunId(row[0]), parents_of(row[1]))))


def _first_run(child: JobId, cycle: Cycle) -> RunId:
    return chained_run_id(child, cycle.scheduled_at, cycle.root)


def parents_of(rows: Any) -> dict[JobId, ParentEnded]:
    return {
        JobId(Id.parse(one["id"])): ParentEnded(
            one["job"], RunId(Id.parse(one["run"])), State(one["state"])
        )
        for one in rows or ()
    }


def unchanged(connection: Connection, wanted: Sequence[Wanted]) -> list[Wanted]:
    """Lock the events, and return the joins whose events are unchanged since they were read."""
    if not wanted:
        return []
    found: dict[int, dict[JobId, RunId]] = {}
    columns = keys([(one.join.child, one.join.cycle) for one in wanted])
    for n, parent, run_id in connection.exec_driver_sql(LOCK, columns):
        found.setdefault(n, {})[JobId(parent)] = RunId(run_id)
    return [
        one
        for n, one in enumerate(wanted, 1)
        if found.get(n) == {job: ended.run_id for job, ended in one.join.arrived.items()}
    ]


def delete_decided(connection: Connection, joins: Sequence[ChainJoin]) -> None:
    if joins:
        connection.exec_driver_sql(OVER, _each([(one, 0.0) for one in joins]))


def later(connection: Connection, joins: Sequence[tuple[ChainJoin, timedelta]]) -> None:
    """Judge these joins after a delay, or when a new event arrives."""
    if joins:
        waits = [(one, wait.total_seconds()) for one, wait in joins]
        connection.exec_driver_sql(LATER, _each(waits))


def _each(joins: Sequence[tuple[ChainJoin, float]]) -> dict[str, object]:
    rows = [
        (one.child, one.cycle, parent, ended.run_id, wait)
        for one, wait in joins
        for parent, ended in one.arrived.items()
    ]
    return keys([(child, cycle) for child, cycle, *_ in rows]) | {
        "parents": arrays.ids(parent for _, _, parent, _, _ in rows),
        "runs": arrays.ids(run_id for _, _, _, run_id, _ in rows),
        "waits": arrays.numbers(wait for *_, wait in rows),
    }


def keys(joins: Sequence[tuple[JobId, Cycle]]) -> dict[str, object]:
    return {
        "children": arrays.ids(child for child, _ in joins),
        "scheduled": arrays.instants(cycle.scheduled_at for _, cycle in joins),
        "roots": arrays.ids(cycle.root for _, cycle in joins),
    }
