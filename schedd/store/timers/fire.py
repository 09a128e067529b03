"""Fire due timers: one statement advances timers and inserts their runs.

    firings ─→ UPDATE timers WHERE they are unchanged ─→ INSERT INTO runs FROM the advanced timers

Invariants (docs/protocol-rules.md, P3.4)
- Every inserted row, merged ones included, joins a timer that advanced. A paused, edited, moved or
  already advanced timer inserts nothing.
- No timer advances during a cluster pause, or by a step computed before the last pause or resume.
- The database's clock rejects a step that is too early, whatever the owner's clock says.
- An existing row of the same job and scheduled time doesn't change, and doesn't count again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection

from schedd.core.ids import JobId, RunId, ShardId, TenureId
from schedd.core.jobs.notifications import NotifiableEvent
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import Firing, LiveRun, NewRun, Timer
from schedd.core.timers import packed_timer
from schedd.core.timers.packed_timer import LastLoad
from schedd.store.cluster.fence import BY_INDEX
from schedd.store.notify import outbox
from schedd.store.statements import arrays
from schedd.store.statements.rows import PACKED_TIMER, TIMER_COLUMNS, cut, timer
from schedd.store.timers import run_quota

NEW_DUE = f"""
SELECT string_agg({PACKED_TIMER}, '' ORDER BY t.due_at, t.shard),
    pg_snapshot_xmin(pg_current_snapshot())::xid::text
FROM (
    SELECT * FROM timers t
    WHERE t.shard = ANY (%(shards)s::int[]) AND t.due_at <= %(until)s
      AND NOT t.paused AND t.due_at IS NOT NULL AND {{new}}
    LIMIT %(limit)s
) t
"""
ALL_DUE = NEW_DUE.format(new="true")
NEW_SINCE = NEW_DUE.format(
    new="""(t.due_at > %(read_until)s OR age(t.xmin) <= age(%(oldest)s::xid)
        OR t.job_id = ANY (%(again)s::uuid[]))"""
)
"""A row names the transaction that wrote it (`xmin`); its age counts younger transactions. So a row
that the last load didn't see is read, and a row that a writer held then may be read twice.

Timers of a herd fire in this order: by shard, few of a batch are on one page, where their new rows
then have room, and few shards are locked.
"""
BY_BITMAP = f"""{BY_INDEX},
    set_config('enable_indexscan', 'off', true), set_config('enable_bitmapscan', 'on', true)"""
"""Read all rows that the index names, by page: 100,000 in 16 ms instead of 50. By the order of the
index, each row is on another page. A load up to a limit must not read the index as a whole.
"""
FIRST_DUE = f"""
SELECT string_agg({PACKED_TIMER}, '') FROM (
    SELECT * FROM ({{of_each_shard}}) t ORDER BY t.due_at {{order}} LIMIT %(limit)s
) t
"""
DUE_OF_SHARD = """(
    SELECT * FROM timers t
    WHERE t.shard = {shard} AND t.due_at <= %(until)s AND NOT t.paused AND t.due_at IS NOT NULL
    ORDER BY t.due_at {order} LIMIT %(limit)s
)"""
"""PostgreSQL merges the shards in the order of the index, and reads only what it returns. One
`ORDER BY` of several shards would read and sort all due timers, which are millions after an outage.
"""

TIMERS = f"""
SELECT {TIMER_COLUMNS} FROM unnest(%(jobs)s::uuid[]) b(job_id) JOIN timers t USING (job_id)
"""

FIRE = """
WITH b AS (
    SELECT * FROM unnest(%(jobs)s::uuid[], %(shards)s::int[], %(generations)s::int[],
        %(due)s::timestamptz[], %(next_due)s::timestamptz[], %(next_nominal)s::timestamptz[],
        %(last)s::timestamptz[], %(priorities)s::smallint[],
        %(scheduled)s::timestamptz[], %(runs)s::uuid[], %(run_due)s::timestamptz[],
        %(ready)s::timestamptz[], %(states)s::text[], %(reasons)s::text[], %(counts)s::int[],
        %(until)s::timestamptz[], %(fired)s::int[], %(counted)s::int[], %(excluded)s::text[])
      AS b(job_id, shard, generation, due_at, next_due, next_nominal, last_instant, priority,
        scheduled_at, run_id, run_due, ready, state, reason, count, scheduled_until, fired, counted,
        excluded_by)
), advanced AS (
    UPDATE timers t SET due_at = b.next_due, nominal = b.next_nominal,
        fired = t.fired + b.counted FROM b
    WHERE t.job_id = b.job_id AND t.shard = b.shard AND t.generation = b.generation
      AND t.due_at IS NOT DISTINCT FROM b.due_at AND t.fired = b.fired AND NOT t.paused
      AND b.last_instant <= clock_timestamp() + %(horizon)s
      AND EXISTS (SELECT FROM cluster WHERE one AND NOT paused AND switched = %(switched)s)
    RETURNING b.*
), fired AS (
    SELECT shard, generation, priority, job_id, scheduled_at, run_id, run_due, ready, state, reason,
        count, scheduled_until, excluded_by
    FROM advanced WHERE run_id IS NOT NULL{more}
), inserted AS (
    INSERT INTO runs (scheduled_at, run_id, job_id, due_at, shard, priority, count,
        scheduled_until, fired_by, trigger, state, ready_at, generation, reason,
        finished_at, excluded_by)
    SELECT scheduled_at, run_id, job_id, run_due, shard, priority, count, scheduled_until,
        %(tenure)s, 'SCHEDULE', state, COALESCE(ready, run_due), generation, reason,
        CASE WHEN state <> 'PENDING' THEN clock_timestamp() END, excluded_by
    FROM fired
    ON CONFLICT DO NOTHING RETURNING shard, job_id, run_id, scheduled_at, state
), waiting AS (
    INSERT INTO live (shard, job_id, run_id, scheduled_at)
    SELECT shard, job_id, run_id, scheduled_at FROM inserted WHERE state = 'PENDING'
    ON CONFLICT DO NOTHING
), whole AS (
    SELECT (SELECT count(*) FROM advanced) = %(firings)s
      AND (SELECT count(*) FROM inserted) = %(made)s AS so
)
SELECT true, NULL::uuid, NULL::uuid FROM whole WHERE so
UNION ALL SELECT false, job_id, NULL FROM advanced WHERE NOT (SELECT so FROM whole)
UNION ALL SELECT false, NULL, run_id FROM inserted WHERE NOT (SELECT so FROM whole)
"""
"""The first run of a firing is in the firing's row. Most firings have one run and don't need
`MORE`. The statement returns single results only if a timer didn't advance or a run already
existed.
"""

MORE = """
    UNION ALL
    SELECT a.shard, a.generation, a.priority, n.* FROM advanced a
    JOIN unnest(%(more_jobs)s::uuid[], %(more_scheduled)s::timestamptz[], %(more_runs)s::uuid[],
        %(more_run_due)s::timestamptz[], %(more_ready)s::timestamptz[],
        %(more_states)s::text[], %(more_reasons)s::text[], %(more_counts)s::int[],
        %(more_until)s::timestamptz[], %(more_excluded)s::text[])
      AS n(job_id, scheduled_at, run_id, run_due, ready, state, reason, count, scheduled_until,
        excluded_by)
      USING (job_id)"""

FIRE_ONE_EACH, FIRE_MORE = (FIRE.format(more=more) for more in ("", MORE))


def new_timers(
    connection: Connection,
    shards: Collection[ShardId],
    until: datetime,
    limit: int,
    since: LastLoad | None,
    again: Collection[JobId] = (),
) -> tuple[list[bytes], str]:
    """Return due timers, packed, soonest first: all of them, or those that are new since a load,
    and those of `again`. Also the `oldest` of this load. If `limit` timers are returned, they are
    any of those due.

    There is no lower bound: a new timer may commit behind any watermark.
    """
    values = {"shards": arrays.numbers(shards), "until": until, "limit": limit}
    way, statement = BY_INDEX, ALL_DUE
    if since is not None:
        way, statement = BY_BITMAP, NEW_SINCE
        values |= {"read_until": since.until, "oldest": since.oldest, "again": arrays.ids(again)}
    connection.exec_driver_sql(f"SELECT {way}")
    packed, oldest = connection.exec_driver_sql(statement, values).one()
    return cut(packed, packed_timer.WIDTH), oldest


def due_timers(
    connection: Connection,
    shards: Collection[ShardId],
    until: datetime,
    limit: int,
    *,
    latest: bool = False,
) -> list[bytes]:
    """Return the first due timers, packed, soonest first, without a lower bound. With `latest`, the
    last ones, latest first.
    """
    values = {"until": until, "limit": limit}
    connection.exec_driver_sql(f"SELECT {BY_INDEX}")
    order = "DESC" if latest else ""
    parts = (DUE_OF_SHARD.format(shard=int(shard), order=order) for shard in shards)
    statement = FIRST_DUE.format(of_each_shard=" UNION ALL ".join(parts), order=order)
    return cut(connection.exec_driver_sql(statement, values).scalar_one(), packed_timer.WIDTH)


def timers(connection: Connection, jobs: Collection[JobId]) -> list[Timer]:
    """Return the timers of these jobs, paused ones too; none for a deleted job."""
    return [timer(row) for row in connection.exec_driver_sql(TIMERS, {"jobs": arrays.ids(jobs)})]


def fire(
    connection: Connection,
    tenure: TenureId,
    firings: Sequence[Firing],
    horizon: timedelta,
    switched: int,
) -> tuple[list[LiveRun], list[JobId]]:
    """Advance timers and insert their runs. Returns the new live runs, and the jobs whose timers
    didn't advance.

    At most one firing for each job.
    """
    more = any(len(firing.runs) > 1 for firing in firings)
    arguments = _arguments(tenure, firings, horizon, switched)
    rows = connection.exec_driver_sql(FIRE_MORE if more else FIRE_ONE_EACH, arguments).all()
    if rows and rows[0][0]:
        advanced = {firing.job_id for firing in firings}
        inserted = {run.key.run_id for firing in firings for run in firing.runs}
    else:
        advanced = {job_id for _, job_id, _ in rows}
        inserted = {run_id for _, _, run_id in rows}
    live = [
        LiveRun(
            new.key,
            firing.job_id,
            firing.shard,
            State.PENDING,
            firing.priority,
            new.due_at,
            new.ready_at or new.due_at,
            generation=firing.generation,
            created_at=new.ready_at or new.due_at,
            paced=new.paced,
        )
        for firing in firings
        if firing.job_id in advanced
        for new in firing.runs
        if new.state is State.PENDING and new.key.run_id in inserted
    ]
    run_quota.take_no_more(
        connection,
        {
            firing.job_id: kept
            for firing in firings
            if firing.counted
            and firing.job_id in advanced
            and (kept := _count_existing(firing, inserted))
        },
    )
    outbox.write_notifications(
        connection,
        (
            NotifiableEvent(
                new.key.scheduled_at, new.key.run_id, firing.job_id, firing.shard, firing.notices
            )
            for firing in firings
            if firing.notices is not None and firing.job_id in advanced
            for new in firing.runs
            if new.state is State.MISSED and new.key.run_id in inserted
        ),
    )
    return live, [firing.job_id for firing in firings if firing.job_id not in advanced]


def _count_existing(firing: Firing, inserted: Collection[RunId]) -> int:
    """Return how many of the firing's runs existed already, and were counted then."""
    made = (run.key.run_id for run in firing.runs if run.state is State.PENDING)
    return sum(run_id not in inserted for run_id in made)


def _arguments(
    tenure: TenureId, firings: Sequence[Firing], horizon: timedelta, switched: int
) -> dict[str, object]:
    first = [each.runs[0] if each.runs else None for each in firings]
    more = [(each.job_id, run) for each in firings for run in each.runs[1:]]
    rest = _columns([run for _, run in more])
    return _columns(first) | {
        "tenure": tenure,
        "firings": len(firings),
        "made": sum(len(each.runs) for each in firings),
        "horizon": horizon,
        "switched": switched,
        "jobs": arrays.ids([each.job_id for each in firings]),
        "shards": arrays.numbers([each.shard for each in firings]),
        "generations": arrays.numbers([each.generation for each in firings]),
        "due": arrays.instants([each.due_at for each in firings]),
        "next_due": arrays.instants([each.next_due_at for each in firings]),
        "next_nominal": arrays.instants([each.next_nominal for each in firings]),
        "last": arrays.instants([each.last_instant for each in firings]),
        "priorities": arrays.numbers([each.priority.value for each in firings]),
        "fired": arrays.numbers([each.fired for each in firings]),
        "counted": arrays.numbers([each.counted for each in firings]),
        "more_jobs": arrays.ids([job_id for job_id, _ in more]),
        **{f"more_{name}": column for name, column in rest.items()},
    }


def _columns(runs: Sequence[NewRun | None]) -> dict[str, object]:
    """Return the columns of runs; NULL for a firing without one."""
    return {
        "scheduled": arrays.instants(
            [None if run is None else run.key.scheduled_at for run in runs]
        ),
        "runs": arrays.ids([None if run is None else run.key.run_id for run in runs]),
        "run_due": arrays.instants([None if run is None else run.due_at for run in runs]),
        "ready": arrays.instants([None if run is None else run.ready_at for run in runs]),
        "states": arrays.texts([None if run is None else run.state.value for run in runs]),
        "reasons": arrays.texts(
            [None if run is None or run.reason is None else run.reason.value for run in runs]
        ),
        "counts": arrays.numbers([None if run is None else run.count for run in runs]),
        "until": arrays.instants([None if run is None else run.scheduled_until for run in runs]),
        "excluded": arrays.texts(
            [None if run is None else run.excluded_by or None for run in runs]
        ),
    }
