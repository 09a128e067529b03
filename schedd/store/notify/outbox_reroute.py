"""Reroute waiting notifications to the channels of the job's newest definition.

    an edit: removed channels, new channels, shorter shortened_intervals ─→ waiting rows
    a row of a channel that the newest definition doesn't name ─→ rows of the channels it names

An edit reroutes earlier rows in its own transaction. A member that doesn't know the edit yet may
still write rows afterwards. The member that delivers those reroutes them.

Invariants
- A row keeps its id on every channel, so receivers recognize repeats. Its tries start again at 0.
- If a channel is removed and another one stays, the removed channel's rows don't move: the other
  channel has its own rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from sqlalchemy import Connection

from schedd.core.ids import JobId, ShardId
from schedd.core.jobs.notifications import PendingNotification, ReroutedNotifications
from schedd.store.notify.outbox import COLUMNS
from schedd.store.statements import arrays

INTO: Final = """
INSERT INTO notifications (notification_id, way, shard, job_id, kind, run_id, scheduled_at,
    failures, held_back, occurred_at, ready_at, next_at)
SELECT DISTINCT ON (g.notification_id, w.way) g.notification_id, w.way, g.shard, g.job_id, g.kind,
    g.run_id, g.scheduled_at, g.failures, g.held_back, g.occurred_at, g.ready_at, g.ready_at
"""

LOCK: Final = "SELECT 1 FROM notices WHERE job_id = %(job)s FOR UPDATE"

TURN: Final = f"""
WITH gone AS (
    DELETE FROM notifications n
    USING unnest(%(left_kinds)s::text[], %(left_ways)s::text[]) b(kind, way)
    WHERE n.job_id = %(job)s AND n.kind = b.kind AND n.way = b.way RETURNING n.*
)
{INTO}
FROM gone g JOIN unnest(%(kinds)s::text[], %(ways)s::text[]) w(kind, way) ON w.kind = g.kind
ON CONFLICT DO NOTHING
"""

SHORTEN: Final = """
UPDATE notifications n SET
    ready_at = GREATEST(statement_timestamp(), n.ready_at - b.less * interval '1 s'),
    next_at = GREATEST(statement_timestamp(), n.ready_at - b.less * interval '1 s')
FROM unnest(%(silent)s::text[], %(less)s::float8[]) b(kind, less)
WHERE n.job_id = %(job)s AND n.kind = b.kind AND n.tries = 0
  AND n.ready_at > statement_timestamp()
"""

SOONER: Final = """
UPDATE notices SET
    {0} = GREATEST(statement_timestamp(), {0} - %(less)s * interval '1 s')
WHERE job_id = %(job)s AND {0} > statement_timestamp()
"""

INSTEAD: Final = f"""
WITH gone AS (
    DELETE FROM notifications n
    USING unnest(%(ids)s::uuid[], %(ways)s::text[], %(generations)s::int[], %(instead)s::text[])
      b(notification_id, way, generation, instead), jobs j
    WHERE n.notification_id = b.notification_id AND n.way = b.way
      AND n.shard = ANY (%(shards)s::int[])
      AND j.job_id = n.job_id AND j.generation = b.generation
    RETURNING n.*, b.instead
)
{INTO}
FROM gone g CROSS JOIN LATERAL unnest(string_to_array(g.instead, ',')) w(way)
ON CONFLICT DO NOTHING
"""


def edited(connection: Connection, job_id: JobId, what: ReroutedNotifications) -> None:
    """Reroute the job's waiting notifications after an edit, in the edit's transaction."""
    if not what:
        return
    job = {"job": job_id}
    connection.exec_driver_sql(LOCK, job)
    if what.left:
        ways = {
            "left_kinds": arrays.texts(kind.value for kind, _ in what.left),
            "left_ways": arrays.texts(way.value for _, way in what.left),
            "kinds": arrays.texts(kind.value for kind, _ in what.joined),
            "ways": arrays.texts(way.value for _, way in what.joined),
        }
        connection.exec_driver_sql(TURN, job | ways)
    if what.shortened_intervals:
        shorter = {
            "silent": arrays.texts(kind.value for kind, _ in what.shortened_intervals),
            "less": arrays.numbers(less.total_seconds() for _, less in what.shortened_intervals),
        }
        connection.exec_driver_sql(SHORTEN, job | shorter)
    for kind, less in what.shortened_intervals:
        sooner = SOONER.format(COLUMNS[kind])
        connection.exec_driver_sql(sooner, job | {"less": less.total_seconds()})


def instead(
    connection: Connection, wanted: Sequence[PendingNotification], shards: Collection[ShardId]
) -> None:
    """Move these notifications to their `instead` channels, unless the jobs' definitions changed
    meanwhile. The caller holds the locks of their shards.
    """
    arguments = {
        "ids": arrays.ids(one.notification_id for one in wanted),
        "ways": arrays.texts(one.way.value for one in wanted),
        "generations": arrays.numbers(one.generation for one in wanted),
        "instead": arrays.texts(",".join(way.value for way in one.instead) for one in wanted),
        "shards": arrays.numbers(shards),
    }
    connection.exec_driver_sql(INSTEAD, arguments)
