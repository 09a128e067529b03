"""Measures the owner's and the results' transactions: one thread, batches, fsync on.

    python tests/integration/store/measure_batches.py [runs] [batch] [days of partitions]

Each step is the whole call of a port: lock, statement, COMMIT, values in and out.
"""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from schedd.core.ids import new_id

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from schedd.core.runs.records import JobRecord
from schedd.store.schema import migrate
from support.postgres import private_postgres
from support.store import World, draft, firing, job_record, report

DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
SPREAD = 60
"""Seconds over which the jobs' due instants are spread."""


async def made(world: World, count: int) -> list[JobRecord]:
    """So many jobs in the shards of lane 0, all due by now."""
    now = datetime.now(UTC).replace(microsecond=0)
    jobs = [
        job_record(shard=2 * (n % 128), due=now - timedelta(seconds=n * SPREAD // count + 1))
        for n in range(count)
    ]
    for start in range(0, count, 5000):
        await world.jobs(jobs[start : start + 5000])
    return jobs


async def measure(dsn: str, runs: int, batch: int, days: int) -> None:
    async with World.at(dsn) as world:
        me = await world.member()
        await me.store.ensure_partitions(days)
        jobs = await made(world, runs)
        raw = me.store.database._engine.raw_connection()
        raw.driver_connection.autocommit = True
        with raw.cursor() as cursor:
            cursor.execute("ANALYZE")
        raw.driver_connection.autocommit = False
        raw.close()
        seconds = dict.fromkeys(("fire", "assign", "accept"), 0.0)
        [(before,)] = await world.sql("SELECT pg_current_wal_insert_lsn()")
        incarnation = new_id()
        for start in range(0, runs, batch):
            some = jobs[start : start + batch]
            clock = time.perf_counter()
            fired = await me.fire(*[firing(job) for job in some])
            seconds["fire"] += time.perf_counter() - clock
            assert len(fired.runs) == len(some)
            drafts = [draft(run, incarnation=incarnation) for run in fired.runs]
            clock = time.perf_counter()
            assigned = await me.assigned(*drafts)
            seconds["assign"] += time.perf_counter() - clock
            reports = [report(run) for run in assigned]
            clock = time.perf_counter()
            verdicts = await me.store.results.accept(reports)
            seconds["accept"] += time.perf_counter() - clock
            assert {str(each) for each in verdicts} == {"ACCEPTED"}
        [(wal,)] = await world.sql(
            "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %s)", before
        )
        rates = ", ".join(f"{name} {runs / taken:,.0f}/s" for name, taken in seconds.items())
        print(
            f"batches of {batch}, {days} days of partitions: {rates}; one after the other"
            f" {runs / sum(seconds.values()):,.0f} runs/s; {int(wal) / runs:,.0f} B of WAL a run",
            flush=True,
        )


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]] + [30_000, 500, 7][len(sys.argv) - 1 :]
    with private_postgres(**DURABLE) as server:
        url = server.create_database()
        migrate.upgrade(url)
        asyncio.run(measure(url, *given))
