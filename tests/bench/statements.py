"""Measure the cost of the statements that fire timers, assign runs and accept results.

Each step is one transaction of a member, with the functions of `schedd.store`, over one connection:
lock rows, execute the statements, COMMIT. The database has idle timers, ended runs of today, and
tables of forty days. The drivers alternate from batch to batch. PostgreSQL is as durable as in a
cluster. The output has one JSON line for each step of each driver: microseconds per run of the
client's CPU time, of PostgreSQL's CPU time, and of waiting. Waiting time is also printed for each
statement, which is named by its last words.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import psycopg
from sqlalchemy import Connection, Engine, create_engine, event

from bench.numbers import from_zero, plain_parser, positive
from bench.rig import note, run, tell
from schedd.core.ids import IncarnationId, ShardId, new_id, token_of
from schedd.core.jobs.definition import Priority
from schedd.core.runs.model import Claim, Firing, FiringToSlot, LiveRun, SlotBatch, Timer
from schedd.core.timers.pre_dispatch import GUARD
from schedd.store.cluster.fence import lock_shards
from schedd.store.connection import type_adapters
from schedd.store.connection.database import CONNECTION, url_of
from schedd.store.dispatch import assign
from schedd.store.results import accept
from schedd.store.schema import migrate
from schedd.store.timers import fire
from schedd.store.timers.fire_running import fire_running
from support.postgres import ScratchServer, private_postgres
from support.store import Member, World, draft, job_record, new_run, report, terms

T = TypeVar("T")

DURABLE: Final = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "128MB",
}
LOOKED_AT: Final = {
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track_planning": "on",
}
DAYS: Final = 38
"""Days in the future that have a partition; with yesterday and today as many as in a cluster."""

IDLE: Final = """
INSERT INTO timers (job_id, shard, due_at, nominal, generation)
SELECT gen_random_uuid(), n % 256, due, due, 1 FROM generate_series(1, {}) n,
    LATERAL (SELECT now() + interval '90 days' + n * interval '1 s' AS due) d
"""
ENDED: Final = """
INSERT INTO runs (scheduled_at, run_id, job_id, due_at, shard, priority, trigger, state, ready_at)
SELECT at, gen_random_uuid(), gen_random_uuid(), at, n % 256, 2, 'SCHEDULE', 'SUCCEEDED', at
FROM generate_series(1, {}) n,
    LATERAL (SELECT date_trunc('day', now()) + n * interval '1 ms' AS at) d
"""
PLANNED: Final = """
SELECT round(total_plan_time / calls * 1e3), round(total_exec_time / calls * 1e3), calls,
    left(regexp_replace(query, '\\s+', ' ', 'g'), 70)
FROM pg_stat_statements WHERE calls > 9 ORDER BY total_plan_time + total_exec_time DESC LIMIT 10
"""
INDEXES: Final = """
SELECT idx_scan, idx_tup_read, indexrelname FROM pg_stat_user_indexes
WHERE idx_scan > 999 ORDER BY idx_scan DESC
"""
"""Number of scans of each index, and of entries read."""


class BinaryCursor(psycopg.Cursor[Any]):
    """Cursor that sends values in PostgreSQL's binary format."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.format = psycopg.pq.Format.BINARY


@dataclass
class Spent:
    """Costs of one step: seconds of the client's CPU, of PostgreSQL's CPU, and of waiting; bytes of
    WAL.
    """

    client: float = 0.0
    server: float = 0.0
    waited: float = 0.0
    wal: int = 0
    runs: int = 0

    def figures(self) -> dict[str, float]:
        """Return the costs per run, in microseconds."""
        seconds = {"client_us": self.client, "postgres_us": self.server, "waited_us": self.waited}
        return {name: round(one / self.runs * 1e6, 1) for name, one in seconds.items()} | {
            "wal_bytes": round(self.wal / self.runs)
        }


@dataclass
class Driver:
    """A connection with one driver."""

    name: str
    connection: Connection
    pid: int
    spent: dict[str, Spent] = field(default_factory=lambda: defaultdict(Spent))
    each: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """CPU seconds of PostgreSQL, by statement."""

    def __post_init__(self) -> None:
        event.listen(self.connection, "before_cursor_execute", self._before)
        event.listen(self.connection, "after_cursor_execute", self._after)

    def _before(self, *_: Any) -> None:
        self._began = _processor(self.pid)

    def _after(self, _: Any, __: Any, statement: str, *___: Any) -> None:
        self.each[" ".join(statement.split())[-50:]] += _processor(self.pid) - self._began

    def transact(self, step: str, runs: int, body: Callable[[Connection], T]) -> T:
        """Run one transaction, and return its costs."""
        wal = self._wal()
        began = time.thread_time(), _processor(self.pid), time.perf_counter()
        with self.connection.begin():
            answer = body(self.connection)
        took = time.thread_time(), _processor(self.pid), time.perf_counter()
        spent = self.spent[step]
        client, server, waited = (after - before for before, after in zip(began, took, strict=True))
        spent.client += client
        spent.server += server
        spent.waited += waited
        spent.wal += self._wal() - wal
        spent.runs += runs
        return answer

    def _wal(self) -> int:
        with self.connection.begin():
            statement = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
            return int(self.connection.exec_driver_sql(statement).scalar_one())


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return the exit code."""
    asked = plain_parser("bench.statements", __doc__)
    asked.add_argument(
        "--drivers",
        nargs="+",
        default=["psycopg2"],
        choices=DRIVERS,
        help="PostgreSQL drivers to compare",
    )
    asked.add_argument(
        "--batch", type=positive, nargs="+", default=[100, 500], help="runs in each transaction"
    )
    asked.add_argument(
        "--runs", type=positive, default=20_000, help="runs for each driver and batch size"
    )
    asked.add_argument(
        "--hot", type=positive, default=100_000, help="jobs that each run once a minute"
    )
    asked.add_argument("--idle", type=from_zero, default=1_000_000, help="timers that aren't due")
    asked.add_argument(
        "--ended", type=from_zero, default=1_000_000, help="runs of today that have ended"
    )
    asked.add_argument(
        "--sql",
        action="append",
        default=[],
        help="SQL to execute on the empty tables first; repeatable",
    )
    asked.add_argument(
        "--set", action="append", default=[], help="setting of PostgreSQL, KEY=VALUE; repeatable"
    )
    asked.add_argument(
        "--planning", action="store_true", help="also print planning times from pg_stat_statements"
    )
    options = asked.parse_args(arguments)
    settings = DURABLE | (LOOKED_AT if options.planning else {})
    with private_postgres(**settings | dict(one.split("=", 1) for one in options.set)) as server:
        url = server.create_database()
        migrate.upgrade(url)
        for figures in asyncio.run(_measure(server, url, options)):
            tell("statements", **figures)
        for question in (PLANNED, INDEXES) if options.planning else ():
            for row in server.execute(question, _admin(url)):
                note(" ".join(map(str, row)))
    return 0


async def _measure(
    server: ScratchServer, url: str, options: argparse.Namespace
) -> list[dict[str, Any]]:
    admin = _admin(url)
    lines = []
    async with World.at(url) as world:
        me = await world.member()
        await me.store.ensure_partitions(DAYS)
        for statement in options.sql:
            server.execute(statement, admin)
        hot = await _load(server, admin, world, options)
        note("tables filled")
        with ExitStack() as stack:
            drivers = [stack.enter_context(DRIVERS[name](url)) for name in options.drivers]
            if options.planning:
                server.execute("CREATE EXTENSION pg_stat_statements", admin)
            for batch in options.batch:
                for driver in drivers:
                    driver.spent.clear()
                    driver.each.clear()
                turns = itertools.cycle(drivers)
                for _ in range(options.runs * len(drivers) // batch):
                    some = [next(hot) for _ in range(batch)]
                    driver = next(turns)
                    _batch(driver, me, some)
                    _batch_to_slots(driver, me, [next(hot) for _ in range(batch)])
                for driver in drivers:
                    for text, seconds in driver.each.items():
                        note(f"{driver.name} {batch} {seconds / options.runs * 1e6:6.2f} … {text}")
                lines += [
                    {"driver": driver.name, "batch": batch, "step": step, **spent.figures()}
                    for driver in drivers
                    for step, spent in driver.spent.items()
                ]
    return lines


async def _load(
    server: ScratchServer, admin: str, world: World, options: argparse.Namespace
) -> Iterator[Firing]:
    start = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    jobs = [
        job_record(shard=n % 256, due=start + timedelta(seconds=n * 60 // options.hot))
        for n in range(options.hot)
    ]
    if options.idle:
        server.execute(IDLE.format(options.idle), admin)
    if options.ended:
        server.execute(ENDED.format(options.ended), admin)
    for first in range(0, len(jobs), 5000):
        await world.jobs(jobs[first : first + 5000])
    for statement in ("ANALYZE", "CHECKPOINT"):
        server.execute(statement, admin)

    def firings() -> Iterator[Firing]:
        for minute in itertools.count():
            for job in jobs:
                assert job.due_at is not None
                at = job.due_at + timedelta(minutes=minute)
                yield Firing(
                    job_id=job.definition.job_id,
                    shard=job.shard,
                    generation=1,
                    due_at=at,
                    next_due_at=at + timedelta(minutes=1),
                    next_nominal=at + timedelta(minutes=1),
                    last_instant=at,
                    priority=Priority.MEDIUM,
                    runs=(new_run(job, at),),
                )

    return firings()


def _batch(driver: Driver, me: Member, some: Sequence[Firing]) -> None:
    claim = me.claim(*{one.shard for one in some})
    runs = driver.transact("fire", len(some), lambda c: _fire(c, claim, some))
    drafts = [draft(run, incarnation=INCARNATION) for run in runs]
    outcome = driver.transact("assign", len(some), lambda c: _assign(c, claim, drafts))
    reports = [report(each.run, digest=os.urandom(32)) for each in outcome.assigned]
    verdicts = driver.transact("accept", len(some), lambda c: accept.accept(c, reports))
    assert {str(one) for one in verdicts} == {"ACCEPTED"}, verdicts
    assert len(verdicts) == len(some)


def _batch_to_slots(driver: Driver, me: Member, some: Sequence[Firing]) -> None:
    """Fire timers as RUNNING, and end their runs."""
    claim = me.claim(*{one.shard for one in some})
    to = terms(incarnation=INCARNATION)
    shared = {one.due_at: SlotBatch(one, one.priority, to) for one in some}
    firings = [
        FiringToSlot(
            Timer(one.job_id, one.shard, 1, one.due_at, one.due_at),
            one.job_id,
            one.shard,
            one.runs[0].key,
            shared[one.due_at],
        )
        for one in some
    ]

    def fired(connection: Connection) -> list[LiveRun]:
        lock_shards(connection, claim)
        runs, refused = fire_running(
            connection, claim.tenure, firings, lambda s: _token(claim, s), GUARD, 0
        )
        assert not refused, refused
        return runs

    runs = driver.transact("fire running", len(some), fired)
    verdicts = driver.transact("accept running", len(some), partial(_accept, runs))
    assert len(verdicts) == len(some)


def _accept(runs: Sequence[LiveRun], connection: Connection) -> Sequence[Any]:
    return accept.accept(connection, [report(run, digest=os.urandom(32)) for run in runs])


def _fire(connection: Connection, claim: Claim, some: Sequence[Firing]) -> list[Any]:
    lock_shards(connection, claim)
    runs, refused = fire.fire(connection, claim.tenure, some, GUARD, 0)
    assert not refused, refused
    return runs


def _assign(connection: Connection, claim: Claim, drafts: Sequence[Any]) -> assign.AssignOutcome:
    lock_shards(connection, claim)
    return assign.assign(connection, claim.tenure, drafts, lambda s: _token(claim, s))


def _token(claim: Claim, shard: ShardId) -> Any:
    return token_of(claim.epochs[shard], next(SEQUENCE))


SEQUENCE: Final = itertools.count(1)
INCARNATION: Final = IncarnationId(new_id())


def _processor(pid: int) -> float:
    """Return the CPU seconds of a process."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


def _admin(url: str) -> str:
    """Return a superuser's DSN of the same database."""
    return url.replace("schedd@", "postgres@")


@contextmanager
def _connected(name: str, engine: Engine) -> Iterator[Driver]:
    try:
        with engine.connect() as connection:
            with connection.begin():
                pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            yield Driver(name, connection, pid)
    finally:
        engine.dispose()


def _psycopg2(url: str) -> AbstractContextManager[Driver]:
    """Connect as the members do."""
    engine = create_engine(url_of(url), connect_args=dict(CONNECTION))
    event.listen(engine, "connect", type_adapters.register)
    return _connected("psycopg2", engine)


def _psycopg3(name: str, url: str, **options: Any) -> AbstractContextManager[Driver]:
    """Connect without prepared statements, because a pooler may change the server."""
    third = url_of(url).set(drivername="postgresql+psycopg")
    arguments = dict(CONNECTION) | {"prepare_threshold": None} | options
    return _connected(name, create_engine(third, connect_args=arguments))


DRIVERS: Final[dict[str, Callable[[str], AbstractContextManager[Driver]]]] = {
    "psycopg2": _psycopg2,
    "psycopg3": lambda url: _psycopg3("psycopg3", url),
    "psycopg3-binary": lambda url: _psycopg3("psycopg3-binary", url, cursor_factory=BinaryCursor),
    "psycopg3-client": lambda url: _psycopg3(
        "psycopg3-client", url, cursor_factory=psycopg.ClientCursor
    ),
}


if __name__ == "__main__":
    run(main)
