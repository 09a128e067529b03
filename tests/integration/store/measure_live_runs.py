"""Measures how to find live runs: one partial index on `runs`, or a narrow table beside it.

    python tests/integration/store/measure_live_runs.py [runs]

Wall time is that of a shared machine; the backend's own CPU time is what to compare.
Both shapes carry the same row through its life in batches of 500 on one connection of a server
with fsync on: insert (fire), assign, complete; then a new owner's look at one shard. The result
stands in docs/evidence/notes/2026-11-21-live-runs-table.md.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg2

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.postgres import private_postgres

BATCH = 500
RATE = 1667
"""Runs a second of the instants, not of the measurement."""
START = datetime(2026, 1, 1, tzinfo=UTC)
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}

RUNS = """
DROP TABLE IF EXISTS runs, live;
CREATE TABLE runs (
    scheduled_at timestamptz NOT NULL, run_id uuid NOT NULL, job_id uuid NOT NULL,
    shard int NOT NULL, priority smallint NOT NULL, attempt int NOT NULL DEFAULT 0,
    state text NOT NULL,
    due_at timestamptz NOT NULL, ready_at timestamptz NOT NULL, created_at timestamptz NOT NULL,
    token bigint NOT NULL DEFAULT 0, generation int, worker text, incarnation uuid,
    assigned_at timestamptz, start_by timestamptz, started_at timestamptz, finished_at timestamptz,
    exit_code int, reason text, error text, digest bytea,
    PRIMARY KEY (scheduled_at, run_id)
) PARTITION BY RANGE (scheduled_at);
CREATE INDEX runs_id ON runs (run_id);
CREATE INDEX runs_job ON runs (job_id, scheduled_at);
CREATE TABLE runs_default PARTITION OF runs DEFAULT WITH (fillfactor = {fillfactor});
CREATE TABLE live (shard int, job_id uuid, run_id uuid, scheduled_at timestamptz,
    PRIMARY KEY (shard, job_id, run_id));
"""
PARTIAL = """CREATE INDEX runs_live ON runs (shard, job_id)
    WHERE state IN ('PENDING', 'RUNNING', 'RETRYING')"""

INSERT = """WITH i AS (
    INSERT INTO runs (scheduled_at, run_id, job_id, shard, priority, state, due_at, ready_at,
        created_at)
    SELECT s, r, j, h, 2, 'PENDING', s, s, clock_timestamp()
    FROM unnest(%s::timestamptz[], %s::uuid[], %s::uuid[], %s::int[]) b(s, r, j, h)
    ON CONFLICT DO NOTHING RETURNING shard, job_id, run_id, scheduled_at)
"""
ASSIGN = """UPDATE runs r SET state = 'RUNNING', token = 1::bigint << 40, attempt = 1,
    generation = 1, worker = 'worker-1', incarnation = '7b0ff6a4-1f7f-4f7e-9a3c-3f4d3b1d2f11',
    assigned_at = clock_timestamp(), start_by = clock_timestamp() + interval '5 s'
    FROM unnest(%s::timestamptz[], %s::uuid[]) b(s, r)
    WHERE r.scheduled_at = b.s AND r.run_id = b.r AND r.state IN ('PENDING', 'RETRYING')"""
COMPLETE = """WITH u AS (
    UPDATE runs r SET state = 'SUCCEEDED', started_at = clock_timestamp(), exit_code = 0,
    finished_at = clock_timestamp(), digest = '\\x00112233445566778899aabbccddeeff'::bytea
    FROM unnest(%s::timestamptz[], %s::uuid[]) b(s, r)
    WHERE r.scheduled_at = b.s AND r.run_id = b.r AND r.state = 'RUNNING'
    RETURNING r.shard, r.job_id, r.run_id)
"""
SHAPES = {
    "partial index": (INSERT + "SELECT count(*) FROM i", COMPLETE + "SELECT count(*) FROM u"),
    "live table": (
        INSERT + ", l AS (INSERT INTO live SELECT * FROM i RETURNING 1) SELECT count(*) FROM l",
        COMPLETE
        + """, d AS (DELETE FROM live l USING u WHERE l.shard = u.shard AND l.job_id = u.job_id
            AND l.run_id = u.run_id RETURNING 1) SELECT count(*) FROM d""",
    ),
}
LOOK = {
    "partial index": """SELECT * FROM runs WHERE shard = 7
        AND state IN ('PENDING', 'RUNNING', 'RETRYING')""",
    "live table": """SELECT r.* FROM live l JOIN runs r USING (scheduled_at, run_id)
        WHERE l.shard = 7""",
}


def batches(runs: int) -> Iterator[tuple[str, str, str, str]]:
    """Array literals of a batch: instants, run ids, job ids, shards."""
    jobs = [uuid.uuid4() for _ in range(20_000)]
    for start in range(0, runs, BATCH):
        numbers = range(start, start + BATCH)
        of_jobs = [jobs[number % len(jobs)] for number in numbers]
        yield (
            array((START + timedelta(seconds=number // RATE)).isoformat() for number in numbers),
            array(str(uuid.uuid4()) for _ in numbers),
            array(str(job) for job in of_jobs),
            array(str(job.int % 256) for job in of_jobs),
        )


def cpu_seconds(pid: int) -> float:
    """Return what the process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def array(items: Iterator[str]) -> str:
    return "{" + ",".join(items) + "}"


def measure(dsn: str, shape: str, runs: int, fillfactor: int, ahead: int = 40) -> None:
    """Keep `ahead` batches live: insert one, assign one, complete one, a transaction each."""
    insert, complete = SHAPES[shape]
    with psycopg2.connect(dsn) as db, db.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0;" + RUNS.format(fillfactor=fillfactor))
        if shape == "partial index":
            cursor.execute(PARTIAL)
        cursor.execute("SELECT pg_current_wal_insert_lsn()")
        (before,) = cursor.fetchone()
        db.commit()
        busy = cpu_seconds(db.info.backend_pid)
        seconds = dict.fromkeys(("insert", "assign", "complete"), 0.0)

        def step(name: str, sql: str, arguments: tuple[str, ...]) -> None:
            started = time.perf_counter()
            cursor.execute(sql, arguments)
            db.commit()
            seconds[name] += time.perf_counter() - started

        waiting = []
        for batch in batches(runs):
            step("insert", insert, batch)
            waiting.append(batch)
            if len(waiting) > ahead:
                batch = waiting.pop(0)
                step("assign", ASSIGN, batch[:2])
                step("complete", complete, batch[:2])
        busy = cpu_seconds(db.info.backend_pid) - busy
        cursor.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %s)", (before,))
        wal = int(cursor.fetchone()[0])
        cursor.execute("SELECT pg_stat_force_next_flush()")
        db.commit()
        cursor.execute(
            "SELECT n_tup_upd, n_tup_hot_upd, pg_total_relation_size(relid)"
            " FROM pg_stat_user_tables WHERE relname = 'runs_default'"
        )
        updated, hot, size = cursor.fetchone()
        started = time.perf_counter()
        cursor.execute(LOOK[shape])
        found = len(cursor.fetchall())
        look = time.perf_counter() - started
        done = runs - ahead * BATCH
        rates = ", ".join(
            f"{name} {(runs if name == 'insert' else done) / taken:,.0f}/s"
            for name, taken in seconds.items()
        )
        total = done / sum(seconds.values())
        print(
            f"{shape:14} fillfactor {fillfactor}: {rates}; whole life {total:,.0f} runs/s;"
            f" {busy / done * 1e6:.0f} µs of CPU,"
            f" {wal / runs:,.0f} B of WAL a run; {100 * hot / max(updated, 1):.0f} % HOT;"
            f" {size / runs:,.0f} B on disk a run; {found} live runs"
            f" of a shard in {look * 1e3:.1f} ms",
            flush=True,
        )


if __name__ == "__main__":
    amount = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with private_postgres(**DURABLE) as server:
        url = server.create_database()
        for factor in (100, 70, 50, 33):
            for name in SHAPES:
                measure(url, name, amount, factor)
