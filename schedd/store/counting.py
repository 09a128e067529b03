"""The live work at a glance, at a cost that doesn't grow with what is idle or over."""

from __future__ import annotations

from sqlalchemy import Connection

from schedd.ports import Counts

EXACT = 50_000
"""Up to so many rows are counted one by one; past it the planner's statistics answer."""

ROWS = """
SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {where} LIMIT %(limit)s) rows
"""

ESTIMATE = (
    "SELECT GREATEST(reltuples, %(limit)s)::bigint FROM pg_class WHERE oid = %(of)s::regclass"
)

LIVE = """
SELECT count(*) FILTER (WHERE r.state = 'PENDING'), count(*) FILTER (WHERE r.state = 'RUNNING'),
    count(*) FILTER (WHERE r.state = 'RETRYING')
FROM live l JOIN runs r ON r.scheduled_at = l.scheduled_at AND r.run_id = l.run_id
"""


def counts(connection: Connection) -> Counts:
    """Jobs that people made, runs that haven't ended by state, dead letters."""
    jobs = _count(connection, "jobs", "deleted_at IS NULL AND NOT ephemeral", "jobs_name")
    dead = _count(connection, "dead_letters", "true", "dead_letters")
    pending, running, retrying = connection.exec_driver_sql(LIVE).one()
    return Counts(jobs, pending, running, retrying, dead)


def _count(connection: Connection, table: str, where: str, statistics: str) -> int:
    statement = ROWS.format(table=table, where=where)
    limit = {"limit": EXACT}
    counted: int = connection.exec_driver_sql(statement, limit).scalar_one()
    if counted < EXACT:
        return counted
    estimate: int = connection.exec_driver_sql(ESTIMATE, limit | {"of": statistics}).scalar_one()
    return estimate
