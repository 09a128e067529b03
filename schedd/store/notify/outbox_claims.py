"""Deliver notifications from the outbox: select, claim, record the outcome.

    waiting ─→ claim: one more try, under the shard's lock ─→ the owner delivers ─→ record_outcomes
                                                    ├ delivered, or not requested any more: deleted
                                                    ├ failed: tried again later
                                                    └ abandoned: deleted, with an audit entry

Invariants
- Every delivery was claimed under its shard's lock. A row that another tenure tried is free once
  this tenure owns the shard.
- An outcome is recorded only for the number of the try that was claimed.
- A few rows of each job and channel are read: thousands for one unreachable receiver don't block
  the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection

from schedd.core.ids import JobId, ShardId, TenureId
from schedd.core.jobs.notifications import (
    ABANDONED_AFTER,
    DeliveryOutcome,
    NotificationChannel,
    NotificationKind,
    OutboxNotification,
    Overdue,
    PendingNotification,
)
from schedd.core.runs.model import AuditRecord, Claim
from schedd.store import audit
from schedd.store.cluster.fenced_transaction import in_fence, shards_of
from schedd.store.connection.database import Database, in_transaction
from schedd.store.notify import outbox, outbox_reroute
from schedd.store.statements import arrays
from schedd.store.statements.operations import operations
from schedd.store.statements.rows import decoded
from schedkit import failpoints
from schedkit.records import dataclass

AFTER_CLAIM = failpoints.awaited("notify.after_claim")

OF_EACH: Final = 4
"""Rows of one job and channel in one read."""
AT_ONCE: Final = 500
"""Rows in one read."""
LEASE: Final = 120.0
"""Seconds after which a try without an outcome counts as failed: longer than any try takes."""
MOST_COUNTED: Final = 10_000
MOST_EXPIRED: Final = 1_000
"""Rows that one transaction expires, as it holds locks."""

WAITING = f"""
SELECT notification_id, way, job_id, shard, kind FROM (
    SELECT *, row_number() OVER (
        PARTITION BY job_id, way ORDER BY next_at, notification_id) AS place
    FROM (
        SELECT * FROM notifications
        WHERE shard = ANY (%(shards)s::int[]) AND next_at <= statement_timestamp()
        UNION ALL
        SELECT * FROM notifications
        WHERE shard = ANY (%(shards)s::int[]) AND tried_by <> %(tenure)s
          AND next_at > statement_timestamp()
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
      AND (n.next_at <= statement_timestamp() OR n.tried_by <> %(tenure)s)
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
    WHERE n.shard = s.shard AND n.next_at < statement_timestamp() - %(after)s::interval)
"""

EXPIRE = """
WITH old AS (
    SELECT notification_id, way FROM notifications
    WHERE shard = ANY (%(shards)s::int[]) AND next_at < statement_timestamp() - %(after)s::interval
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
    """Return notifications of these shards that may be tried now, without the `busy` ones, longest
    waiting first. A hint: `claim` decides.
    """
    arguments = {
        "shards": arrays.numbers(shards),
        "tenure": tenure,
        "busy": arrays.ids(job for job, _ in busy),
        "busy_ways": arrays.texts(way.value for _, way in busy),
    }
    return decoded(
        "notifications", connection.exec_driver_sql(WAITING, arguments), _pending_notification
    )


def _pending_notification(row: Sequence[Any]) -> PendingNotification:
    identity, way, job, shard, kind = row
    return PendingNotification(
        identity, NotificationChannel(way), job, shard, NotificationKind(kind)
    )


def counted(connection: Connection, shards: Collection[ShardId]) -> int:
    """Return how many notifications of these shards are undelivered, at most `MOST_COUNTED`."""
    found = connection.exec_driver_sql(COUNT, {"shards": arrays.numbers(shards)})
    return int(found.scalar_one())


def claim_notifications(
    connection: Connection, claim: Claim, wanted: Sequence[PendingNotification]
) -> list[OutboxNotification]:
    """Claim these notifications for one try each, if they are still free. The receiver comes from a
    definition: if that isn't the newest any more, nothing is claimed. Notifications with `instead`
    move to those channels first.
    """
    shards = shards_of(wanted)
    if rerouted := [one for one in wanted if one.instead]:
        outbox_reroute.instead(connection, rerouted, shards)
        wanted = [one for one in wanted if not one.instead]
    arguments = {
        "generations": arrays.numbers(one.generation for one in wanted),
        "ids": arrays.ids(one.notification_id for one in wanted),
        "ways": arrays.texts(one.way.value for one in wanted),
        "shards": arrays.numbers(shards),
        "tenure": claim.tenure,
    }
    return [
        OutboxNotification(
            identity, NotificationChannel(way), job, shard, NotificationKind(kind), *of
        )
        for identity, way, job, shard, kind, *of in connection.exec_driver_sql(CLAIM, arguments)
    ]


def record_outcomes(
    connection: Connection, _: Claim, outcomes: Sequence[DeliveryOutcome]
) -> list[DeliveryOutcome]:
    """Record the outcomes of tries. Returns them."""
    again = [one for one in outcomes if one.wait is not None]
    over = [one for one in outcomes if one.wait is None]
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
                _abandoned(one)
                for one in over
                if one.error and (one.notification.notification_id, one.notification.way) in gone
            ],
        )
    return list(outcomes)


def overdue(connection: Connection, shards: Collection[ShardId]) -> list[Overdue]:
    """Return which of these shards have notifications that waited `ABANDONED_AFTER` for a try."""
    arguments = {"shards": arrays.numbers(shards), "after": ABANDONED_AFTER}
    return [Overdue(ShardId(row[0])) for row in connection.exec_driver_sql(OVERDUE, arguments)]


def expire(
    connection: Connection, _: Claim, wanted: Sequence[Overdue]
) -> list[tuple[NotificationChannel, int]]:
    """Expire overdue notifications, with an audit entry for each job. Returns counts by channel."""
    arguments = {
        "shards": arrays.numbers(shards_of(wanted)),
        "after": ABANDONED_AFTER,
        "limit": MOST_EXPIRED,
    }
    ended: Counter[NotificationChannel] = Counter()
    entries: list[AuditRecord] = []
    for namespace, name, kind, way, count, since in connection.exec_driver_sql(EXPIRE, arguments):
        ended[NotificationChannel(way)] += count
        entries.append(_expired(namespace, name, f"{count} of {kind} by {way.lower()}", since))
    audit.write_all(connection, entries)
    return list(ended.items())


def _expired(namespace: str, name: str, what: str, since: datetime) -> AuditRecord:
    hours = ABANDONED_AFTER.total_seconds() / 3600
    return AuditRecord(
        actor="schedd",
        action="notify",
        object=f"job/{namespace}/{name}",
        outcome="failed",
        reason=f"{what}, from {since:%Y-%m-%d %H:%M} on: undelivered for {hours:.0f} h, the"
        " receiver accepts fewer than arrive",
    )


def _keys(outcomes: Sequence[DeliveryOutcome]) -> dict[str, object]:
    return {
        "ids": arrays.ids(one.notification.notification_id for one in outcomes),
        "ways": arrays.texts(one.notification.way.value for one in outcomes),
        "tries": arrays.numbers(one.notification.tries for one in outcomes),
    }


def _abandoned(one: DeliveryOutcome) -> AuditRecord:
    abandoned = one.notification
    return AuditRecord(
        actor="schedd",
        action="notify",
        object=f"job/{abandoned.namespace}/{abandoned.job}",
        outcome="failed",
        reason=f"{abandoned.kind.value} by {abandoned.way.value.lower()}, {abandoned.tries} tries:"
        f" {one.error}",
        run_id=abandoned.run_id,
        source=f"notification:{abandoned.notification_id}",
    )


@operations("notifications")
@dataclass(frozen=True, slots=True)
class NotificationStore:
    """Reads and writes of an owner for the outbox. Each write is fenced."""

    database: Database

    waiting = in_transaction(waiting)
    counted = in_transaction(counted)
    _claim = in_fence(claim_notifications)

    async def claim(
        self, claim: Claim, wanted: Sequence[PendingNotification]
    ) -> list[OutboxNotification]:
        """Claim these notifications for one try each, if they are still free."""
        claimed = await self._claim(claim, wanted)
        await AFTER_CLAIM()
        return claimed

    record_outcomes = in_fence(record_outcomes)
    overdue = in_transaction(overdue)
    expire = in_fence(expire)
    tell_late = in_fence(outbox.tell_late)
