"""The graph of chains: which job runs after which. It has no cycle (P5.3).

    after.jobs ─→ the graph's lock ─→ the parents' timers, shared ─→ no path back ─→ edges

Invariants
- Adding edges takes the graph's lock before any row. Of two calls that would close a cycle together
  the second sees the edges of the first.
- A parent can't be deleted while a child names it: adding an edge locks the parent's timer, shared,
  and deleting a job locks its timer before it reads the children.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from sqlalchemy import Connection

from schedd.core.ids import JobId
from schedd.core.jobs.chains import MOST_ANCESTORS, path_text
from schedd.core.runs.records import ChainRefused
from schedd.store.statements import arrays

_LOCK: Final = 7_420_005
"""The advisory lock of the graph."""

PARENTS = """
SELECT j.name, j.job_id FROM jobs j JOIN timers t USING (job_id)
WHERE j.namespace = %(namespace)s AND j.name = ANY (%(names)s::text[])
  AND j.deleted_at IS NULL AND NOT j.ephemeral
ORDER BY t.job_id FOR SHARE OF t
"""

ABOVE = "SELECT child, parent FROM chain_edges WHERE child = ANY (%(jobs)s::uuid[])"

NAMES = "SELECT job_id, name FROM jobs WHERE job_id = ANY (%(jobs)s::uuid[])"

LINK = (
    "DELETE FROM chain_edges WHERE child = %(job)s",
    """
    INSERT INTO chain_edges (child, parent)
    SELECT %(job)s, parent FROM unnest(%(parents)s::uuid[]) b(parent)
    """,
    "DELETE FROM chain_arrivals WHERE child = %(job)s AND parent <> ALL (%(parents)s::uuid[])",
)

CHILDREN = """
SELECT j.name FROM chain_edges e JOIN jobs j ON j.job_id = e.child WHERE e.parent = %s ORDER BY 1
"""

FORGET_ORPHANS = """
DELETE FROM chain_arrivals a WHERE NOT EXISTS (
    SELECT FROM chain_edges e WHERE e.child = a.child AND e.parent = a.parent)
"""


def lock(connection: Connection) -> None:
    """Take the graph's lock, before any row is locked."""
    connection.exec_driver_sql("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))


def fault(
    connection: Connection, job_id: JobId | None, namespace: str, name: str, after: Collection[str]
) -> ChainRefused | dict[str, JobId]:
    """Return why a job can't run after these, or the ids of the parents, locked against deletion.
    `job_id` None: a new job. The caller holds the graph's lock.
    """
    if name in after:
        return ChainRefused("cycle", path_text([name, name]))
    rows = connection.exec_driver_sql(
        PARENTS, {"namespace": arrays.clean(namespace), "names": arrays.texts(after)}
    )
    parents = {found: JobId(parent) for found, parent in rows}
    if missing := sorted(set(after) - parents.keys()):
        return ChainRefused("parent", ", ".join(name[:140] for name in missing[:5]))
    way = _way_back(connection, job_id, list(parents.values()))
    if way is None:
        return ChainRefused("ancestors", f"{MOST_ANCESTORS:,}")
    if way:
        rows = connection.exec_driver_sql(NAMES, {"jobs": arrays.ids(way)})
        names: dict[JobId, str] = {row.job_id: row.name for row in rows}
        return ChainRefused("cycle", path_text([names[job] for job in way]))
    return parents


def link(connection: Connection, job_id: JobId, parents: Mapping[str, JobId]) -> None:
    """Set the job's parents to exactly these."""
    values = {"job": job_id, "parents": arrays.ids(parents.values())}
    for statement in LINK:
        connection.exec_driver_sql(statement, values)


def children(connection: Connection, job_id: JobId) -> list[str]:
    """Return the names of the jobs that run after this one."""
    return [*connection.exec_driver_sql(CHILDREN, (job_id,)).scalars()]


def forget(connection: Connection, job_id: JobId) -> None:
    """Delete the edges and chain events of a deleted job."""
    link(connection, job_id, {})


def forget_orphans(connection: Connection) -> None:
    """Delete chain events that reached a job while it or its edges were being deleted."""
    connection.exec_driver_sql(FORGET_ORPHANS)


def _way_back(
    connection: Connection, job_id: JobId | None, parents: list[JobId]
) -> list[JobId] | None:
    """Return the cycle that these parents would close, in run order. Empty: there is none. None:
    there are more than `MOST_ANCESTORS` ancestors.
    """
    below: dict[JobId, JobId | None] = dict.fromkeys(parents)
    frontier = parents
    while frontier and job_id not in below:
        found = connection.exec_driver_sql(ABOVE, {"jobs": arrays.ids(frontier)}).all()
        frontier = []
        for child, parent in found:
            if parent not in below:
                below[parent] = child
                frontier.append(parent)
        if len(below) > MOST_ANCESTORS:
            return None
    if job_id is None or job_id not in below:
        return []
    way, at = [], job_id
    while True:
        way.append(at)
        step = below[at]
        if step is None:
            return [*way, job_id]
        at = step
