"""Worlds in a line for tests of the store: members, jobs, runs, and what workers say.

async with World.at(dsn) as world:
    me = await world.member()             # a tenure that owns every shard
    job = await world.job()
    [run] = await world.fired(me, job)
    assigned = await me.assign(run)
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from schedd.core.dispatch.successes import EPOCH, SECOND, Successes
from schedd.core.ids import (
    Epoch,
    IncarnationId,
    JobId,
    RunId,
    ShardId,
    TenureId,
    Timeline,
    Token,
    new_id,
    scheduled_run_id,
    token_of,
)
from schedd.core.jobs.definition import Overlap, Priority
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import (
    AuditRecord,
    Claim,
    Draft,
    Firing,
    FiringToSlot,
    Incarnation,
    LiveRun,
    NewRun,
    ResultDecision,
    RunKey,
    SlotBatch,
    Tenure,
    Terms,
    Timer,
)
from schedd.core.runs.records import Assignments, FireOutcome, JobRecord, StoredDefinition
from schedd.store.connection.database import Database
from schedd.store.postgres import Stores
from schedd.store.schema import partitions
from schedd.store.statements import arrays
from support.wait import wait_until

START = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
"""A Monday noon, long past: everything due then is due."""

MINUTE = timedelta(minutes=1)

LANES = 2

BULK = """
INSERT INTO jobs (job_id, namespace, name, shard, generation, spec, created_at, created_by,
    updated_at)
SELECT u.id, 'default', u.id::text, u.shard, 1, '', now(), '', now()
FROM unnest(%(ids)s::uuid[], %(shards)s::int[]) u(id, shard);
INSERT INTO timers (job_id, shard, due_at, nominal, generation)
SELECT u.id, u.shard, u.due, u.due, 1
FROM unnest(%(ids)s::uuid[], %(shards)s::int[], %(due)s::timestamptz[]) u(id, shard, due)
"""


@dataclass
class Member:
    """A member of the cluster: its own connections, tenure and shards."""

    store: Stores
    tenure: TenureId
    timeline: Timeline = field(init=False)
    epochs: dict[ShardId, Epoch] = field(default_factory=dict)
    _sequence: Iterable[int] = field(default_factory=lambda: itertools.count(1))

    async def take(self, *shards: int) -> dict[ShardId, Epoch]:
        """Take these shards (all, if none is named) at the epochs that they have now."""
        rows = await self.store.membership.read_shards()
        seen = {row.id: row.epoch for row in rows if not shards or row.id in shards}
        taken = await self.store.membership.take_shards(self.tenure, self.timeline, seen)
        self.epochs.update(taken)
        return taken

    def claim(self, *shards: int) -> Claim:
        """Return this member's claim to these shards."""
        return Claim(
            self.tenure, self.timeline, {ShardId(s): self.epochs[ShardId(s)] for s in shards}
        )

    def tokens(self, claim: Claim) -> Callable[[ShardId], Token]:
        """Where the tokens of a transaction under this claim come from."""
        return lambda shard: token_of(claim.epochs[shard], next(iter(self._sequence)))

    async def fire(self, *firings: Firing) -> FireOutcome:
        return await self.store.owner.fire(self.claim(*{f.shard for f in firings}), firings)

    async def fire_running(self, *firings: FiringToSlot, switched: int = 0) -> FireOutcome:
        claim = self.claim(*{firing.shard for firing in firings})
        return await self.store.owner.fire_running(claim, firings, self.tokens(claim), switched)

    async def assign(self, *drafts: Draft) -> Assignments:
        claim = self.claim(*{draft.shard for draft in drafts})
        return await self.store.owner.assign(claim, drafts, self.tokens(claim))

    async def assigned(self, *drafts: Draft) -> list[LiveRun]:
        """Assign, and expect every one to be."""
        answer = await self.assign(*drafts)
        assert len(answer.assigned) == len(drafts), answer
        return [each.run for each in answer.assigned]


@dataclass
class World:
    """A database with members in it."""

    dsn: str
    members: list[Member] = field(default_factory=list)

    @classmethod
    @asynccontextmanager
    async def at(cls, dsn: str) -> AsyncIterator[World]:
        world = cls(dsn)
        try:
            yield world
        finally:
            for member in world.members:
                member.store.close()

    def make_partitions(self, days: Iterable[date]) -> None:
        """Give days a partition, as a member does in time: other days are in the default one."""
        database = Database(self.dsn, lanes=1)
        database.transact(lambda connection: [partitions.make_day(connection, day) for day in days])
        database.close()

    async def member(self, *, take: bool = True, **options: Any) -> Member:
        """Return a new member with an open tenure; `take`: it owns all shards."""
        store = Stores(Database(self.dsn, lanes=LANES), **options)
        member = Member(store, TenureId(new_id()))
        self.members.append(member)
        # before the first query: open connections are renamed by connecting again
        await store.membership.open_tenure(
            Tenure(member.tenure, f"member-{len(self.members)}", datetime.now(UTC))
        )
        member.timeline = (await store.membership.probe()).timeline
        if take:
            await member.take()
        return member

    @property
    def store(self) -> Stores:
        """Any member's."""
        return self.members[0].store

    async def sql(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Run one statement as the daemons' role; its rows."""

        def body(connection: Connection) -> list[tuple[Any, ...]]:
            done = connection.exec_driver_sql(statement, arguments)
            return [tuple(row) for row in done] if done.returns_rows else []

        return await self.store.database.call(body)

    async def job(
        self, *, shard: int = 0, due: datetime | None = START, **changes: Any
    ) -> JobRecord:
        """Return a stored job, with a timer that is due at START by default."""
        record = job_record(shard=shard, due=due, **changes)
        stored = await self.store.users.create_job(record, None, ok("create"))
        assert isinstance(stored, JobRecord), stored
        return stored

    async def jobs(self, records: Sequence[JobRecord]) -> None:
        """Store these in bulk, without audit or runs."""
        arguments = {
            "ids": arrays.ids(record.definition.job_id for record in records),
            "shards": arrays.numbers(record.shard for record in records),
            "due": arrays.instants(record.due_at for record in records),
        }
        await self.store.database.call(lambda c: c.exec_driver_sql(BULK, arguments))

    async def run_row(self, run_id: RunId) -> dict[str, Any]:
        """The run's row as a dictionary."""

        def body(connection: Connection) -> dict[str, Any]:
            found = connection.exec_driver_sql("SELECT * FROM runs WHERE run_id = %s", (run_id,))
            return dict(found.mappings().one())

        return await self.store.database.call(body)

    async def is_live(self, run_id: RunId) -> bool:
        return bool(await self.sql("SELECT 1 FROM live WHERE run_id = %s", run_id))


def ok(action: str, object_: str = "job/default/test") -> AuditRecord:
    return AuditRecord("tester", action, object_, "ok", source="test")


def job_record(
    *,
    shard: int = 0,
    due: datetime | None = START,
    name: str | None = None,
    namespace: str = "default",
    ephemeral: bool = False,
    pool: str = "",
) -> JobRecord:
    job_id = JobId(new_id())
    now = datetime.now(UTC)
    return JobRecord(
        StoredDefinition(
            job_id,
            1,
            namespace,
            name or f"job-{job_id}",
            b"spec",
            paused=False,
            ephemeral=ephemeral,
            pool=pool,
        ),
        ShardId(shard),
        due,
        due,
        "",
        "",
        now,
        "tester",
        now,
    )


def firing(job: JobRecord, *, at: datetime | None = None, **changes: Any) -> Firing:
    """The step of this job's timer from `at` (its due instant) to a minute later: one run."""
    at = at or job.due_at
    assert at is not None
    step = Firing(
        job_id=job.definition.job_id,
        shard=job.shard,
        generation=job.definition.generation,
        due_at=at,
        next_due_at=at + MINUTE,
        next_nominal=at + MINUTE,
        last_instant=at,
        priority=Priority.MEDIUM,
        runs=(new_run(job, at),),
    )
    return replace(step, **changes)


def to_slot(
    job: JobRecord, *, at: datetime | None = None, late: datetime | None = None, **changes: Any
) -> FiringToSlot:
    """The same step, with a slot of a worker for its run; `changes`: of the terms. `late`: when
    catch-up made the run.
    """
    step = firing(job, at=at)
    step = replace(step, runs=(replace(step.runs[0], ready_at=late),))
    timer = Timer(step.job_id, step.shard, step.generation, step.due_at, step.due_at)
    batch = SlotBatch(step, step.priority, terms(generation=step.generation, **changes))
    return FiringToSlot(timer, step.job_id, step.shard, step.runs[0].key, batch)


def new_run(job: JobRecord, at: datetime, **changes: Any) -> NewRun:
    """The run of one instant."""
    run = NewRun(RunKey(at, scheduled_run_id(job.definition.job_id, at)), at)
    return replace(run, **changes)


def manual_run(at: datetime = START) -> NewRun:
    """A run that a person triggers."""
    return NewRun(RunKey(at, RunId(new_id())), at)


def draft(run: LiveRun, **changes: Any) -> Draft:
    """Return the request to assign this run to a worker."""
    return Draft(run, run.shard, terms(**{"generation": max(run.generation, 1), **changes}))


def terms(**changes: Any) -> Terms:
    """Return the terms of an assignment to the worker."""
    made = Terms(
        generation=1,
        worker="worker-1",
        incarnation=INCARNATION,
        overlap=Overlap.SKIP,
        overlap_limit=1,
    )
    return replace(made, **changes)


def report(run: LiveRun, **changes: Any) -> ResultDecision:
    """The result of an assigned run: it succeeded."""
    assert run.worker is not None
    assert run.incarnation is not None
    made = ResultDecision(
        key=run.key,
        token=run.token,
        worker=run.worker,
        sender=run.incarnation,
        digest=b"digest of the result",
        state=State.SUCCEEDED,
        reason=None,
        error="",
        exit_code=0,
        started_at=START,
        finished_at=START + timedelta(seconds=1),
    )
    return replace(made, **changes)


STARTED = (START - EPOCH) // timedelta(microseconds=1) + 123_457
"""Microseconds since 1970."""


def successes(runs: Sequence[LiveRun], **changes: Any) -> Successes:
    """The plain successes of assigned runs: each started a microsecond after the one before, and
    took a second. `changes`: other values of a column.
    """
    columns: dict[str, Any] = {
        "run_ids": [run.key.run_id for run in runs],
        "tokens": [run.token for run in runs],
        "senders": [run.incarnation for run in runs],
        "scheduled": [(run.key.scheduled_at - EPOCH) // timedelta(microseconds=1) for run in runs],
        "started": [STARTED + n for n, _ in enumerate(runs)],
        "finished": [STARTED + SECOND + n for n, _ in enumerate(runs)],
    }
    return Successes(**columns | changes)


INCARNATION = IncarnationId(new_id())


def incarnation(**changes: Any) -> Incarnation:
    made = Incarnation(
        IncarnationId(new_id()),
        "worker-1",
        "spool-1",
        "host",
        "0.1",
        10,
        {"zone": "a"},
        ("mod:fn",),
        ("shell", "python"),
        START,
    )
    return replace(made, **changes)


def keys(runs: Sequence[LiveRun]) -> list[RunKey]:
    return [run.key for run in runs]


def wait_for_waiter(connection: Connection) -> None:
    """Return when another backend waits for a lock that this one holds."""

    def waited_for() -> bool:
        waiting = connection.exec_driver_sql(
            "SELECT 1 FROM pg_locks WHERE NOT granted"
            " AND pg_backend_pid() = ANY (pg_blocking_pids(pid))"
        )
        return waiting.first() is not None

    wait_until(waited_for, 2, "a backend that waits for us")
