"""Write notifications about runs into the outbox, in the transaction that changes the runs.

    runs ended, or are late ─→ their jobs' memories, locked in order ─→ follow ─→ notifications

Runs and notifications are committed together, so a crash can't separate them. Jobs without
notifications cost nothing here.

Invariants
- A job's memory is locked while it is updated. Of two members that end runs of one job the second
  sees the notifications of the first.
- A run is reported late once. Its row has a flag for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection

from schedd.core.ids import JobId, RunId, new_id
from schedd.core.jobs.notifications import (
    DueNotification,
    NotifiableEvent,
    NotificationChannel,
    NotificationHistory,
    NotificationKind,
    follow,
)
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import Claim, RunKey
from schedd.store.statements import arrays
from schedd.store.statements.keys import key_arguments, lock_runs

COLUMNS = {
    NotificationKind.FAILURE: "failure_at",
    NotificationKind.DEAD_LETTER: "dead_letter_at",
    NotificationKind.RECOVERY: "recovery_at",
    NotificationKind.LATE: "late_at",
}
_ALL = ", ".join(f"n.{column}" for column in COLUMNS.values())

REMEMBER = """
INSERT INTO notices (job_id)
SELECT j.job_id FROM jobs j WHERE j.job_id = ANY (%(jobs)s::uuid[]) AND j.deleted_at IS NULL
ORDER BY j.job_id ON CONFLICT DO NOTHING
"""
"""A deleted job gets no row, as nothing would delete it. The statement locks only new rows, which
no other transaction sees yet. `RECALL` locks existing rows, in one order.
"""

RECALL = f"""
SELECT n.job_id, n.failures, n.notified, {_ALL} FROM notices n
WHERE n.job_id = ANY (%(jobs)s::uuid[])
  AND (n.failures > 0 OR n.notified OR n.job_id = ANY (%(unwell)s::uuid[]))
ORDER BY n.job_id FOR UPDATE
"""

KEEP = f"""
UPDATE notices n SET failures = b.failures, notified = b.notified,
    {", ".join(f"{column} = b.{column}" for column in COLUMNS.values())}
FROM unnest(%(jobs)s::uuid[], %(failures)s::int[], %(notified)s::bool[],
    {", ".join(f"%({column})s::timestamptz[]" for column in COLUMNS.values())})
  b(job_id, failures, notified, {", ".join(COLUMNS.values())})
WHERE n.job_id = b.job_id
"""

JOIN = """
WITH joined AS (
    UPDATE notifications n SET run_id = b.run_id, scheduled_at = b.scheduled_at,
        failures = b.failures, held_back = n.held_back + b.held_back, occurred_at = %(now)s,
        ready_at = LEAST(n.ready_at, b.ready_at), next_at = LEAST(n.next_at, b.ready_at)
    FROM unnest(%(jobs)s::uuid[], %(kinds)s::text[], %(runs)s::uuid[], %(scheduled)s::timestamptz[],
        %(failures)s::int[], %(held_back)s::int[], %(ready)s::timestamptz[], %(ways)s::text[])
      b(job_id, kind, run_id, scheduled_at, failures, held_back, ready_at, ways)
    WHERE n.job_id = b.job_id AND n.kind = b.kind AND n.tries = 0 AND n.ready_at > %(now)s
    RETURNING n.*, b.ways
), more AS (  -- channels that the definition didn't name yet at the first notification
    INSERT INTO notifications (notification_id, way, shard, job_id, kind, run_id, scheduled_at,
        failures, held_back, occurred_at, ready_at, next_at)
    SELECT DISTINCT ON (j.notification_id, w.way) j.notification_id, w.way, j.shard, j.job_id,
        j.kind, j.run_id, j.scheduled_at, j.failures, j.held_back, j.occurred_at, j.ready_at,
        j.ready_at
    FROM joined j CROSS JOIN LATERAL unnest(string_to_array(j.ways, ',')) w(way)
    ON CONFLICT DO NOTHING
)
SELECT DISTINCT job_id, kind FROM joined
"""

INSERT = """
INSERT INTO notifications (notification_id, way, shard, job_id, kind, run_id, scheduled_at,
    failures, held_back, occurred_at, ready_at, next_at)
SELECT notification_id, way, shard, job_id, kind, run_id, scheduled_at, failures, held_back,
    %(now)s, ready_at, ready_at
FROM unnest(%(ids)s::uuid[], %(ways)s::text[], %(shards)s::int[], %(jobs)s::uuid[],
    %(kinds)s::text[], %(runs)s::uuid[], %(scheduled)s::timestamptz[], %(failures)s::int[],
    %(held_back)s::int[], %(ready)s::timestamptz[])
  b(notification_id, way, shard, job_id, kind, run_id, scheduled_at, failures, held_back, ready_at)
"""

MARK_LATE = """
UPDATE runs r SET late_notified = true
FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[]) b(scheduled_at, run_id)
WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id AND NOT r.late_notified
  AND (NOT %(waiting)s OR r.state = 'PENDING' AND r.losses = 0)
RETURNING r.run_id
"""


def write_notifications(connection: Connection, happened: Iterable[NotifiableEvent]) -> None:
    """Write the notifications for these events, of one job in the given order."""
    jobs: dict[JobId, list[NotifiableEvent]] = defaultdict(list)
    for one in happened:
        jobs[one.job_id].append(one)
    if not jobs:
        return
    memories = _memories(connection, jobs)
    if not memories:
        return
    now = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
    kept: dict[JobId, NotificationHistory] = {}
    due: list[DueNotification] = []
    for job, memory in memories.items():
        kept[job], more = follow(memory, jobs[job], now)
        due += more
    _write_memories(connection, kept)
    _write(connection, due, now)


def tell_late(connection: Connection, _: Claim, late: Sequence[NotifiableEvent]) -> list[RunId]:
    """Write notifications for the runs among these that still wait for their first start and
    weren't reported late. Returns their ids. The caller holds the locks of their shards.
    """
    keys = [RunKey(one.scheduled_at, one.run_id) for one in late]
    lock_runs(connection, key_arguments(keys))
    first = first_time_late(connection, keys, waiting=True)
    write_notifications(connection, [one for one in late if one.run_id in first])
    return sorted(first)


def first_time_late(
    connection: Connection, keys: Collection[RunKey], *, waiting: bool = False
) -> set[RunId]:
    """Flag these runs, whose rows are locked, as late. Returns those that weren't flagged before.
    `waiting`: only runs that still wait.
    """
    if not keys:
        return set()
    arguments = key_arguments(list(keys)) | {"waiting": waiting}
    return {row[0] for row in connection.exec_driver_sql(MARK_LATE, arguments)}


def forget(connection: Connection, job_id: JobId) -> None:
    """Delete the job's memory. Notifications that wait are still delivered."""
    connection.exec_driver_sql("DELETE FROM notices WHERE job_id = %s", (job_id,))


def _memories(
    connection: Connection, jobs: Mapping[JobId, Sequence[NotifiableEvent]]
) -> dict[JobId, NotificationHistory]:
    """Lock and return the jobs' memories. Jobs that only succeeded are left out, unless they have
    failed before.
    """
    well = {
        job for job, those in jobs.items() if all(one.state is State.SUCCEEDED for one in those)
    }
    found: dict[JobId, NotificationHistory] = {}
    unwell = arrays.ids(sorted(jobs.keys() - well))
    if jobs.keys() - well:
        connection.exec_driver_sql(REMEMBER, {"jobs": unwell})
    rows = connection.exec_driver_sql(RECALL, {"jobs": arrays.ids(jobs), "unwell": unwell})
    for job, failures, notified, *latest in rows:
        seen = zip(COLUMNS, latest, strict=True)
        found[job] = NotificationHistory(
            failures, notified, {kind: at for kind, at in seen if at is not None}
        )
    return {job: NotificationHistory() for job in jobs.keys() - well} | found


def _write_memories(connection: Connection, memories: Mapping[JobId, NotificationHistory]) -> None:
    values = memories.values()
    columns = {
        column: arrays.instants(memory.latest.get(kind) for memory in values)
        for kind, column in COLUMNS.items()
    }
    connection.exec_driver_sql(
        KEEP,
        columns
        | {
            "jobs": arrays.ids(memories),
            "failures": arrays.numbers(memory.failures for memory in values),
            "notified": arrays.flags(memory.notified for memory in values),
        },
    )


def _write(connection: Connection, due: Sequence[DueNotification], now: datetime) -> None:
    joining = [one for one in due if one.joins]
    joined: set[tuple[JobId, str]] = set()
    if joining:
        more = {
            "ready": arrays.instants(one.ready_at for one in joining),
            "ways": arrays.texts(",".join(way.value for way in _ways(one)) for one in joining),
            "now": now,
        }
        found = connection.exec_driver_sql(JOIN, _columns(joining) | more)
        joined = {(job, kind) for job, kind in found}
    # A notification can't join one whose delivery has begun: it gets its own row.
    rows = [
        (one, way, identity)
        for one in due
        if (one.of.job_id, one.kind.value) not in joined or not one.joins
        for identity in (new_id(),)
        for way in _ways(one)
    ]
    if rows:
        connection.exec_driver_sql(
            INSERT,
            _columns([one for one, _, _ in rows])
            | {
                "ids": arrays.ids(identity for _, _, identity in rows),
                "ways": arrays.texts(way.value for _, way, _ in rows),
                "shards": arrays.numbers(one.of.shard for one, _, _ in rows),
                "ready": arrays.instants(one.ready_at for one, _, _ in rows),
                "now": now,
            },
        )


def _ways(one: DueNotification) -> tuple[NotificationChannel, ...]:
    notice = one.of.notices.notice_of_kind(one.kind)
    return () if notice is None else notice.ways


def _columns(due: Sequence[DueNotification]) -> dict[str, object]:
    return {
        "jobs": arrays.ids(one.of.job_id for one in due),
        "kinds": arrays.texts(one.kind.value for one in due),
        "runs": arrays.ids(one.of.run_id for one in due),
        "scheduled": arrays.instants(one.of.scheduled_at for one in due),
        "failures": arrays.numbers(one.failures for one in due),
        "held_back": arrays.numbers(one.held_back for one in due),
    }
