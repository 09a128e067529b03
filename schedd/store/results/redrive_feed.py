"""Create runs that repeat failed ones: a single one on request, and those of redrives (P3.20).

    one       the failed run ─→ its letter locked ─→ its job's timer FOR SHARE ─→ insert, resolve
    redrive   its row locked ─→ its rate ─→ timers FOR SHARE ─→ letters locked ─→ insert, resolve

Invariants
- The run's pool is locked until the run is inserted: in a deleted pool it would wait for ever.
  After a submitted run has ended nothing else protects its pool.
- The new run's id derives from the failed run's, with the same scheduled time and chain cycle. So
  it can't be inserted twice.
- A letter is resolved in the transaction that inserts the run. Letters and timers that another
  transaction has locked are left for the next time.
- Creating a redrive's runs locks its row. So its rate holds across owners, and no run is created
  after it was stopped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Row

from schedd.core.ids import JobId, RunId, ShardId, TenureId, redriven_run_id
from schedd.core.jobs.chains import OF_SCHEDULES
from schedd.core.jobs.definition import Priority
from schedd.core.runs.model import AuditRecord, Claim, LiveRun, NewRun, RunKey, Trigger
from schedd.core.runs.records import StoreConflict
from schedd.core.runs.redrive import MOST_IN_LINE, OpenRedrive, RedriveLine, allowance
from schedd.core.runs.run_records import RunRecord
from schedd.store import audit
from schedd.store.jobs import pools
from schedd.store.runs.run_records import record, records
from schedd.store.schema.tables import runs
from schedd.store.statements import arrays
from schedd.store.statements.arrays import clean
from schedd.store.statements.rows import RUN_COLUMNS, decoded, live_run, run_id_of
from schedd.store.timers.run_insert import insert_run_row

MOST_WAITING: Final = 900
"""Live runs of a job above which a single redrive is rejected: above a thousand in a buffer, runs
are skipped.
"""
AT_ONCE: Final = 200
"""Runs of a redrive that one transaction creates."""

OPEN = f"""
SELECT d.redrive_id, d.shard, ARRAY(
    SELECT DISTINCT job_id FROM (
        SELECT l.job_id FROM dead_letters l
        WHERE l.redrive = d.redrive_id AND l.resolution IS NULL
        ORDER BY l.scheduled_at, l.run_id LIMIT {AT_ONCE}) first)
FROM redrives d WHERE d.open AND d.shard = ANY (%(shards)s::int[])
  AND NOT (SELECT paused FROM cluster WHERE one)
  AND (d.fed_until IS NULL OR d.fed_until + interval '1 s' / d.rate <= statement_timestamp())
ORDER BY d.looked_at NULLS FIRST, d.created_at LIMIT 20
"""
"""The redrive that was read longest ago comes first: one without progress blocks no other."""

LOCK = """
SELECT d.redrive_id, d.rate, d.fed_until, d.payload, clock_timestamp() FROM redrives d
WHERE d.redrive_id = %(redrive)s AND d.open AND NOT (SELECT paused FROM cluster WHERE one)
FOR NO KEY UPDATE SKIP LOCKED
"""
"""A redrive that is being stopped or resumed is skipped: waiting would block whole shards."""

LETTERS = """
SELECT l.run_id, l.scheduled_at, l.job_id FROM dead_letters l
WHERE l.redrive = %(redrive)s AND l.resolution IS NULL AND l.job_id = ANY (%(jobs)s::uuid[])
ORDER BY l.scheduled_at, l.run_id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""

TIMERS = """
SELECT t.job_id, t.shard, t.generation, (
    SELECT count(*) FROM (SELECT 1 FROM live v WHERE v.shard = t.shard AND v.job_id = t.job_id
        LIMIT %(most)s) line)
FROM timers t WHERE t.job_id = ANY (%(jobs)s::uuid[]) ORDER BY t.job_id FOR SHARE SKIP LOCKED
"""

POOLS = """
SELECT j.job_id, EXISTS (SELECT FROM pools p WHERE p.namespace = j.namespace AND p.name = j.pool)
FROM jobs j WHERE j.job_id = ANY (%(jobs)s::uuid[]) AND j.pool IS NOT NULL
"""

HOLD_POOLS = """
SELECT j.job_id FROM jobs j JOIN pools p ON p.namespace = j.namespace AND p.name = j.pool
WHERE j.job_id = ANY (%(jobs)s::uuid[]) ORDER BY p.namespace, p.name
FOR KEY SHARE OF p SKIP LOCKED
"""

GONE = """
UPDATE dead_letters l SET redrive = NULL
WHERE l.redrive = %(redrive)s AND l.resolution IS NULL AND l.run_id = ANY (%(letters)s::uuid[])
  AND (NOT EXISTS (SELECT FROM timers t WHERE t.job_id = l.job_id)
       OR EXISTS (SELECT FROM jobs j WHERE j.job_id = l.job_id AND j.pool IS NOT NULL
                  AND NOT EXISTS (SELECT FROM pools p
                                  WHERE p.namespace = j.namespace AND p.name = j.pool)))
"""
"""Letters of deleted jobs or pools leave the redrive, and still wait."""

MAKE = f"""
WITH b AS MATERIALIZED (
    SELECT * FROM unnest(%(letters)s::uuid[], %(scheduled)s::timestamptz[], %(jobs)s::uuid[],
        %(shards)s::int[], %(generations)s::int[], %(overlaps)s::text[], %(runs)s::uuid[])
      b(letter, scheduled_at, job_id, shard, generation, overlap, run_id)
), inserted AS (
    INSERT INTO runs AS r (scheduled_at, run_id, job_id, due_at, shard, priority, trigger, state,
        ready_at, generation, overlap, payload, redrive_of, root, fired_by)
    SELECT b.scheduled_at, b.run_id, b.job_id, %(now)s, b.shard, o.priority, 'MANUAL',
        'PENDING', %(now)s, b.generation, b.overlap,
        COALESCE(%(payload)s, o.payload), b.letter,
        COALESCE(o.root, CASE o.trigger WHEN 'SCHEDULE' THEN '{OF_SCHEDULES}'::uuid
            ELSE o.run_id END),
        %(tenure)s
    FROM b JOIN runs o ON o.scheduled_at = b.scheduled_at AND o.run_id = b.letter
    ON CONFLICT DO NOTHING RETURNING {RUN_COLUMNS}
), waiting AS (
    INSERT INTO live (shard, job_id, run_id, scheduled_at)
    SELECT shard, job_id, run_id, scheduled_at FROM inserted ON CONFLICT DO NOTHING
), resolved AS (
    UPDATE dead_letters l SET resolution = 'REDRIVEN', resolved_at = statement_timestamp(),
        resolved_by = d.created_by, became = b.run_id
    FROM b, redrives d WHERE l.run_id = b.letter AND d.redrive_id = %(redrive)s
)
SELECT * FROM inserted
"""

DEAD = """
SELECT scheduled_at, job_id, priority, payload, root, trigger FROM runs WHERE run_id = %s LIMIT 1
"""

RESOLVE = """
UPDATE dead_letters SET resolution = 'REDRIVEN', resolved_at = clock_timestamp(),
    resolved_by = %(by)s, became = %(made)s
WHERE run_id = %(run)s AND resolution IS NULL
"""

FED = """
UPDATE redrives d SET fed_until = %(until)s, looked_at = clock_timestamp(), open = more.there,
    made = d.made + %(made)s,
    finished_at = CASE WHEN more.there THEN NULL ELSE clock_timestamp() END
FROM (SELECT EXISTS (SELECT FROM dead_letters l
    WHERE l.redrive = %(redrive)s AND l.resolution IS NULL) AS there) more
WHERE d.redrive_id = %(redrive)s
"""
"""A separate statement, so it sees the letters that MAKE resolved."""


def to_feed(connection: Connection, shards: Collection[ShardId]) -> list[OpenRedrive]:
    """Return the open redrives of these shards that may get runs now. A hint."""
    found = connection.exec_driver_sql(OPEN, {"shards": arrays.numbers(shards)})
    return [OpenRedrive(redrive, shard, tuple(jobs)) for redrive, shard, jobs in found]


def feed(
    connection: Connection,
    claim: Claim,
    wanted: Sequence[OpenRedrive],
    lines: Mapping[JobId, RedriveLine],
) -> list[LiveRun]:
    """Create the next runs of these redrives, as many as their rates allow. The caller holds the
    locks of their shards. `lines`: what the runs of each job need, from its known definition.
    Letters of other jobs wait, and of jobs whose definition has changed.
    """
    made: list[LiveRun] = []
    for one in sorted(wanted, key=lambda one: one.redrive_id):
        row = connection.exec_driver_sql(LOCK, {"redrive": one.redrive_id}).first()
        if row is not None:
            made += _fed(connection, claim.tenure, one, row, lines)
    return made


def _fed(
    connection: Connection,
    tenure: TenureId,
    one: OpenRedrive,
    row: Row[Any],
    lines: Mapping[JobId, RedriveLine],
) -> list[LiveRun]:
    redrive, rate, fed_until, payload, now = tuple(row)
    most, _ = allowance(rate, fed_until, now, AT_ONCE)
    if one.jobs and not most:
        return []
    places = _places(connection, one.jobs, lines)
    waits = {job for job, (_, _, room) in places.items() if room <= 0}
    jobs = arrays.ids(job for job in one.jobs if job not in waits)
    letters = connection.exec_driver_sql(
        LETTERS, {"redrive": redrive, "jobs": jobs, "limit": max(1, most)}
    ).all()
    rows = []
    for letter, scheduled_at, job in letters:
        place = places.get(job)
        if place is None or place[2] <= 0:
            continue
        shard, generation, room = place
        places[job] = (shard, generation, room - 1)
        overlap = lines[job].overlap
        run_id = redriven_run_id(letter)
        rows.append((letter, scheduled_at, job, shard, generation, overlap, run_id))
    connection.exec_driver_sql(
        GONE, {"redrive": redrive, "letters": arrays.ids(letter for letter, _, _ in letters)}
    )
    made = _made(connection, tenure, redrive, payload, now, rows) if rows else []
    _, until = allowance(rate, fed_until, now, len(rows))
    until = until if rows else fed_until
    connection.exec_driver_sql(FED, {"redrive": redrive, "until": until, "made": len(made)})
    return made


def _places(
    connection: Connection, jobs: Collection[JobId], lines: Mapping[JobId, RedriveLine]
) -> dict[JobId, tuple[ShardId, int, int]]:
    """Return shard, generation and room for new runs of each existing job. The room is limited by
    the job's buffer; it is 0 if the definition can't be read or has changed, or the pool is locked.
    Jobs with a deleted pool are left out.
    """
    found = connection.exec_driver_sql(TIMERS, {"jobs": arrays.ids(jobs), "most": MOST_IN_LINE})
    places = {
        job: (shard, generation, _room(lines.get(job), generation, waiting))
        for job, shard, generation, waiting in found
    }
    pooled = dict(_pooled(connection, places))
    held: set[JobId] = set()
    if any(pooled.values()):
        found = connection.exec_driver_sql(HOLD_POOLS, {"jobs": arrays.ids(pooled)})
        held = {job for (job,) in found}
    for job, there in pooled.items():
        shard, generation, _ = places[job]
        if not there:
            del places[job]
        elif job not in held:
            places[job] = (shard, generation, 0)
    return places


def _pooled(connection: Connection, jobs: Collection[JobId]) -> list[tuple[JobId, bool]]:
    """Return which of these jobs name a pool, each with whether the pool exists."""
    found = connection.exec_driver_sql(POOLS, {"jobs": arrays.ids(jobs)})
    return [(JobId(job), there) for job, there in found]


def _room(line: RedriveLine | None, generation: int, waiting: int) -> int:
    if line is None or line.generation != generation:
        return 0
    return AT_ONCE if line.most is None else line.most - waiting


def _made(
    connection: Connection,
    tenure: TenureId,
    redrive: object,
    payload: bytes | None,
    now: datetime,
    rows: Sequence[tuple[Any, ...]],
) -> list[LiveRun]:
    """Insert the runs. `now`: when the rate allowed them, also the rows' due time."""
    letters, scheduled, jobs, shards, generations, overlaps, run_ids = zip(*rows, strict=True)
    values = {
        "letters": arrays.ids(letters),
        "scheduled": arrays.instants(scheduled),
        "jobs": arrays.ids(jobs),
        "shards": arrays.numbers(shards),
        "generations": arrays.numbers(generations),
        "overlaps": arrays.texts(overlaps),
        "runs": arrays.ids(run_ids),
        "payload": payload,
        "now": now,
        "tenure": tenure,
        "redrive": redrive,
    }
    made = connection.exec_driver_sql(MAKE, values)
    return decoded("runs", made, live_run, run_id_of)


def once_more(
    connection: Connection,
    run_id: RunId,
    payload: bytes | None,
    line: RedriveLine,
    by: str,
    entry: AuditRecord,
) -> RunRecord | StoreConflict | None:
    """Redrive one run. Returns the new run. None: its job is deleted. `StoreConflict`: its
    definition changed since `line` was read, its pool is deleted, or too many runs wait. The
    caller has checked that the run may be redriven: ended runs never change.
    """
    made = redriven_run_id(run_id)
    dead = connection.exec_driver_sql(DEAD, (run_id,)).one()
    old = None if dead.payload is None else bytes(dead.payload)
    connection.exec_driver_sql("SELECT 1 FROM dead_letters WHERE run_id = %s FOR UPDATE", (run_id,))
    shard = _place(connection, dead.job_id, made, line)
    if isinstance(shard, StoreConflict) and shard.what == "pool":  # a repeated call: the run exists
        return _stored(connection, made) or shard
    if shard is None or isinstance(shard, StoreConflict):
        return shard
    now = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
    new = NewRun(RunKey(dead.scheduled_at, made), now)
    inserted = insert_run_row(
        connection,
        *(dead.job_id, shard, line.generation, new, Trigger.MANUAL, Priority(dead.priority)),
        *(old if payload is None else payload, line.overlap),
        redrive_of=run_id,
        root=dead.root or (OF_SCHEDULES if dead.trigger == Trigger.SCHEDULE else run_id),
    )
    if inserted:
        connection.exec_driver_sql(RESOLVE, {"run": run_id, "by": clean(by), "made": made})
        audit.write_all(connection, [entry])
    stored = _stored(connection, made)
    if stored is None or inserted or payload is None:
        return stored
    its = connection.exec_driver_sql(DEAD, (made,)).one().payload
    return stored if its is not None and bytes(its) == payload else StoreConflict("payload")


def _stored(connection: Connection, run_id: RunId) -> RunRecord | None:
    row = connection.execute(records().where(runs.c.run_id == run_id)).first()
    return None if row is None else record(row)


def _place(
    connection: Connection, job: JobId, made: RunId, line: RedriveLine
) -> ShardId | StoreConflict | None:
    """Return the shard of the job's runs. Locks the definition until the transaction ends."""
    timer = connection.exec_driver_sql(
        "SELECT shard, generation FROM timers WHERE job_id = %s FOR SHARE", (job,)
    ).first()
    if timer is None:
        return None
    if timer.generation != line.generation:
        return StoreConflict("etag", job)
    if not pools.hold_of(connection, job):
        return StoreConflict("pool", job)
    found = connection.exec_driver_sql(
        "SELECT run_id FROM live WHERE shard = %s AND job_id = %s LIMIT %s",
        (timer.shard, job, MOST_WAITING),
    )
    waiting = set(found.scalars())
    if line.most is not None and len(waiting) == MOST_WAITING and made not in waiting:
        return StoreConflict("line", job)
    return ShardId(timer.shard)
