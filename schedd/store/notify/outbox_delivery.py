"""The outbox: which notifications may be delivered, by whom they are tried, and what became of it.

    waiting ─→ claim: one more try, under the shard's lock ─→ delivered by the owner ─→ settle
                                                    ├ delivered, or not asked for any more: deleted
                                                    ├ failed: tried again later
                                                    └ given up: deleted, with a line of the audit

Invariants
- Nothing is delivered that wasn't claimed under its shard's lock; a row that another tenure tried
  is free as soon as the shard is this one's.
- A try is settled by the number that it was claimed with.
- Of each job and way some rows are looked at: thousands to one dead receiver hide no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection

from schedd.core.ids import JobId, RunId, ShardId, TenureId
from schedd.core.jobs.notifications import (
    GIVEN_UP_AFTER,
    DeliveryOutcome,
    Notification,
    NotificationChannel,
    NotificationKind,
    Overdue,
    PendingNotification,
)
from schedd.core.runs.model import AuditEntry
from schedd.store import audit
from schedd.store.notify import outbox_reroute
from schedd.store.statements import arrays
from schedd.store.statements.rows import decoded

OF_EACH: Final = 4
"""Rows of one job and way that are looked at."""
AT_ONCE: Final = 500
"""Rows of one look."""
LEASE: Final = 120.0
"""Seconds after which a try that was never settled is taken for failed: longer than any takes."""
MOST_COUNTED: Final = 10_000
MOST_EXPIRED: Final = 1_000
"""Rows that one transaction ends: it holds locks."""

WAITING = f"""
SELECT notification_id, way, job_id, shard, kind FROM (
    SELECT *, row_number() OVER (
        PARTITION BY job_id, way ORDER BY next_at, notification_id) AS place
    FROM (
        SELECT * FROM notifications
        WHERE shard = ANY (%(shards)s::int[]) AND next_at <= clock_timestamp()
        UNION ALL
        SELECT * FROM notifications
        WHERE shard = ANY (%(shards)s::int[]) AND tried_by <> %(tenure)s
          AND next_at > clock_timestamp()
    ) free WHERE NOT EXISTS (
        SELECT FROM unnest(%(busy)s::uuid[], %(busy_ways)s::text[]) b(job_id, way)
        WHERE b.job_id = free.job_id AND b.way = free.way)
) n WHERE place <= {OF_EACH} ORDER BY next_at LIMIT {AT_ONCE}
"""

CLAIM = f"""
WITH claimed AS (
    UPDATE notifications n SET tries = n.tries + 1, tried_by = %(tenure)s,
        next_at = clock_timestamp() + {LEASE} * interval '1 s'
    FROM unnest(%(ids)s::uuid[], %(ways)s::text[], %(generations)s::int[])
      b(notification_id, way, generation), jobs j
    WHERE n.notification_id = b.notification_id AND n.way = b.way
      AND n.shard = ANY (%(shards)s::int[])
      AND j.job_id = n.job_id AND (b.generation = 0 OR j.generation = b.generation)
      AND (n.next_at <= clock_timestamp() OR n.tried_by <> %(tenure)s)
    RETURNING n.*
)
SELECT n.notification_id, n.way, n.job_id, n.shard, n.kind, j.namespace, j.name, n.run_id,
    n.scheduled_at, r.due_at, r.started_at, r.finished_at, COALESCE(r.state, ''),
    COALESCE(r.reason, ''), COALESCE(r.error, ''), r.exit_code, COALESCE(r.attempt, 0),
    COALESCE(r.count, 1), COALESCE(r.worker, ''), n.failures, n.held_back, n.occurred_at,
    n.ready_at, n.tries
FROM claimed n JOIN jobs j USING (job_id) LEFT JOIN LATERAL (
    SELECT * FROM runs r WHERE r.scheduled_at = n.scheduled_at AND r.run_id = n.run_id OFFSET 0
) r ON true
"""

OVER = """
DELETE FROM notifications n USING unnest(%(ids)s::uuid[], %(ways)s::text[], %(tries)s::int[])
  b(notification_id, way, tries)
WHERE n.notification_id = b.notification_id AND n.way = b.way AND n.tries = b.tries
RETURNING n.notification_id, n.way
"""

AGAIN = """
UPDATE notifications n SET tried_by = NULL, error = b.error,
    next_at = clock_timestamp() + b.wait * interval '1 s'
FROM unnest(%(ids)s::uuid[], %(ways)s::text[], %(tries)s::int[], %(errors)s::text[],
    %(waits)s::float8[]) b(notification_id, way, tries, error, wait)
WHERE n.notification_id = b.notification_id AND n.way = b.way AND n.tries = b.tries
"""

OVERDUE = """
SELECT s.shard FROM unnest(%(shards)s::int[]) s(shard) WHERE EXISTS (
    SELECT FROM notifications n
    WHERE n.shard = s.shard AND n.next_at < clock_timestamp() - %(after)s::interval)
"""

EXPIRE = """
WITH old AS (
    SELECT notification_id, way FROM notifications
    WHERE shard = ANY (%(shards)s::int[]) AND next_at < clock_timestamp() - %(after)s::interval
    ORDER BY shard, next_at LIMIT %(limit)s
), gone AS (
    DELETE FROM notifications n USING old o
    WHERE n.notification_id = o.notification_id AND n.way = o.way
    RETURNING n.job_id, n.kind, n.way, n.ready_at
)
SELECT j.namespace, j.name, g.kind, g.way, count(*), min(g.ready_at)
FROM gone g JOIN jobs j USING (job_id) GROUP BY j.namespace, j.name, g.kind, g.way
"""

COUNT = f"""
SELECT count(*) FROM (
    SELECT FROM notifications WHERE shard = ANY (%(shards)s::int[]) LIMIT {MOST_COUNTED}
) n
"""


def waiting(
    connection: Connection,
    tenure: TenureId,
    shards: Collection[ShardId],
    busy: Collection[tuple[JobId, NotificationChannel]],
) -> list[PendingNotification]:
    """Those of these shards that may be tried now, but for the `busy` ones, longest waiting first.
    A hint.
    """
    arguments = {
        "shards": arrays.numbers(shards),
        "tenure": tenure,
        "busy": arrays.ids(job for job, _ in busy),
        "busy_ways": arrays.texts(way.value for _, way in busy),
    }
    return decoded("notifications", connection.exec_driver_sql(WAITING, arguments), _waits)


def _waits(row: Sequence[Any]) -> PendingNotification:
    identity, way, job, shard, kind = row
    return PendingNotification(
        identity, NotificationChannel(way), JobId(job), ShardId(shard), NotificationKind(kind)
    )


def counted(connection: Connection, shards: Collection[ShardId]) -> int:
    """How many of these shards aren't delivered, at most `MOST_COUNTED`."""
    found = connection.exec_driver_sql(COUNT, {"shards": arrays.numbers(shards)})
    return int(found.scalar_one())


def claim(
    connection: Connection,
    tenure: TenureId,
    wanted: Sequence[PendingNotification],
    shards: Collection[ShardId],
) -> list[Notification]:
    """Those of these that are still free, each to be tried once now. Whom to tell is known from a
    definition: where that isn't the newest any more, it isn't tried. Those that go by other ways
    instead are tried as what they become.
    """
    if turned := [one for one in wanted if one.instead]:
        outbox_reroute.instead(connection, turned, shards)
        wanted = [one for one in wanted if not one.instead]
    arguments = {
        "generations": arrays.numbers(one.generation for one in wanted),
        "ids": arrays.ids(one.notification_id for one in wanted),
        "ways": arrays.texts(one.way.value for one in wanted),
        "shards": arrays.numbers(shards),
        "tenure": tenure,
    }
    return [
        Notification(
            identity,
            NotificationChannel(way),
            JobId(job),
            ShardId(shard),
            NotificationKind(kind),
            namespace,
            name,
            RunId(run),
            *rest,
        )
        for identity, way, job, shard, kind, namespace, name, run, *rest in (
            connection.exec_driver_sql(CLAIM, arguments)
        )
    ]


def settle(connection: Connection, settled: Sequence[DeliveryOutcome]) -> list[DeliveryOutcome]:
    """Write down what became of these tries; gives them."""
    again = [one for one in settled if one.wait is not None]
    over = [one for one in settled if one.wait is None]
    if again:
        more = {
            "errors": arrays.texts(one.error for one in again),
            "waits": arrays.numbers(
                one.wait.total_seconds() if one.wait else None for one in again
            ),
        }
        connection.exec_driver_sql(AGAIN, _keys(again) | more)
    if over:
        gone = {(row[0], row[1]) for row in connection.exec_driver_sql(OVER, _keys(over))}
        audit.write_all(
            connection,
            [
                _given_up(one)
                for one in over
                if one.error and (one.notification.notification_id, one.notification.way) in gone
            ],
        )
    return list(settled)


def overdue(connection: Connection, shards: Collection[ShardId]) -> list[Overdue]:
    """Those of these in which some weren't as much as tried for as long as one is tried."""
    arguments = {"shards": arrays.numbers(shards), "after": GIVEN_UP_AFTER}
    return [Overdue(ShardId(row[0])) for row in connection.exec_driver_sql(OVERDUE, arguments)]


def expire(
    connection: Connection, shards: Collection[ShardId]
) -> list[tuple[NotificationChannel, int]]:
    """End some of those. How many by each way; told in a line of the audit for each job."""
    arguments = {
        "shards": arrays.numbers(shards),
        "after": GIVEN_UP_AFTER,
        "limit": MOST_EXPIRED,
    }
    ended: Counter[NotificationChannel] = Counter()
    entries: list[AuditEntry] = []
    for namespace, name, kind, way, count, since in connection.exec_driver_sql(EXPIRE, arguments):
        ended[NotificationChannel(way)] += count
        entries.append(_expired(namespace, name, f"{count} of {kind} by {way.lower()}", since))
    audit.write_all(connection, entries)
    return list(ended.items())


def _expired(namespace: str, name: str, what: str, since: datetime) -> AuditEntry:
    hours = GIVEN_UP_AFTER.total_seconds() / 3600
    return AuditEntry(
        actor="schedd",
        action="notify",
        object=f"job/{namespace}/{name}",
        outcome="failed",
        reason=f"{what}, from {since:%Y-%m-%d %H:%M} on: waited {hours:.0f} h for their receiver,"
        " which takes fewer than come",
    )


def _keys(settled: Sequence[DeliveryOutcome]) -> dict[str, object]:
    return {
        "ids": arrays.ids(one.notification.notification_id for one in settled),
        "ways": arrays.texts(one.notification.way.value for one in settled),
        "tries": arrays.numbers(one.notification.tries for one in settled),
    }


def _given_up(one: DeliveryOutcome) -> AuditEntry:
    told = one.notification
    return AuditEntry(
        actor="schedd",
        action="notify",
        object=f"job/{told.namespace}/{told.job}",
        outcome="failed",
        reason=f"{told.kind.value} by {told.way.value.lower()}, {told.tries} tries: {one.error}",
        run_id=told.run_id,
        source=f"notification:{told.notification_id}",
    )
