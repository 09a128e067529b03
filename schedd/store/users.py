"""The store of user calls: each call is one transaction on the small pool, with its audit entry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import field
from datetime import datetime

from schedd.core.ids import JobId, RunId, Token
from schedd.core.jobs.definition import Overlap, Priority
from schedd.core.jobs.job_filter import ALL_JOBS, JobFilter
from schedd.core.jobs.notifications import NOT_REDIRECTED, Redirected
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import AuditEntry, LiveRun, NewRun, Trigger
from schedd.core.runs.records import (
    ChainRefused,
    Counts,
    Create,
    Deletion,
    FailingRow,
    GrowingRow,
    Idempotency,
    JobRecord,
    StoreConflict,
    StoredDefinition,
    Submit,
    TimerEdit,
    WaitingRuns,
)
from schedd.core.runs.run_filter import ALL_RUNS, RunFilter
from schedd.core.runs.run_records import AttemptRecord, RunRecord
from schedd.store import audit
from schedd.store.connection.database import Database
from schedd.store.dispatch import live_run_changes, unstarted
from schedd.store.jobs import job_insert, job_pauses, jobs, submits
from schedd.store.reconcile import failing_jobs
from schedd.store.runs import run_counts, run_list, runs
from schedd.store.statements.batched_reads import BatchedReads
from schedd.store.statements.operations import operations
from schedd.store.timers import accounted_times
from schedkit.errors import Unavailable
from schedkit.group_commit import GroupCommit
from schedkit.records import dataclass


@operations("users")
@dataclass(frozen=True, slots=True)
class PostgresUserStore:
    """`schedd.ports.UserStore` over PostgreSQL."""

    database: Database
    reads: BatchedReads = field(init=False)
    submits: GroupCommit[Submit, RunRecord | StoreConflict | None] = field(init=False)
    creates: GroupCommit[Create, JobRecord | StoreConflict | ChainRefused] = field(init=False)

    def __post_init__(self) -> None:
        def fetch(run_ids: Sequence[RunId]) -> Awaitable[list[RunRecord]]:
            return self.database.call(lambda c: runs.get_runs(c, run_ids))

        def submit_all(wanted: Sequence[Submit]) -> Awaitable[dict[int, RunRecord]]:
            return self.database.call(lambda c: submits.submit_all(c, wanted))

        def create_all(wanted: Sequence[Create]) -> Awaitable[dict[int, JobRecord]]:
            return self.database.call(lambda c: job_insert.create_all(c, wanted))

        object.__setattr__(self, "reads", BatchedReads(fetch))
        object.__setattr__(self, "submits", GroupCommit(submit_all, self._submit, lambda s: s.size))
        object.__setattr__(self, "creates", GroupCommit(create_all, self._create, lambda c: c.size))

    async def create_job(
        self,
        record: JobRecord,
        idempotency: Idempotency | None,
        audit: AuditEntry,
    ) -> JobRecord | StoreConflict | ChainRefused:
        """Store job and timer. A `plain` create shares a transaction with concurrent ones."""
        create = Create(record, idempotency, audit)
        return await (self.creates.ask if create.plain else self._create)(create)

    async def create_jobs(
        self, wanted: Sequence[Create]
    ) -> list[JobRecord | StoreConflict | ChainRefused | Unavailable]:
        """Store each as `create_job` does, in as few transactions as possible."""
        return await self.creates.ask_all(wanted, lambda create: create.plain)

    async def _create(self, create: Create) -> JobRecord | StoreConflict | ChainRefused:
        return await self.database.call(lambda c: job_insert.create(c, create))

    async def get_job(self, namespace: str, job: str) -> JobRecord | None:
        """Return a job by id or name."""
        return await self.database.call(lambda c: jobs.get_job(c, namespace, job))

    async def definition(self, job_id: JobId) -> StoredDefinition | None:
        """Return a definition by id, of deleted and one-time jobs too."""
        return (await self.definitions([job_id])).get(job_id)

    async def definitions(self, jobs: Collection[JobId]) -> dict[JobId, StoredDefinition]:
        """Return definitions by id, as `definition` does."""
        return await self.database.call(lambda c: live_run_changes.definitions(c, jobs))

    async def list_jobs(
        self,
        namespace: str,
        after: tuple[datetime, JobId] | None,
        limit: int,
        wanted: JobFilter = ALL_JOBS,
    ) -> tuple[list[JobRecord], tuple[datetime, JobId] | None]:
        """Return jobs after `after`, newest first, and the place where the scan ended."""
        return await self.database.call(
            lambda c: jobs.list_jobs(c, namespace, after, limit, wanted)
        )

    async def newest_definitions(self, namespace: str, limit: int) -> list[StoredDefinition]:
        """Return the definitions of the newest jobs, without their calendars."""
        return await self.database.call(lambda c: jobs.newest_definitions(c, namespace, limit))

    async def update_job(
        self,
        job_id: JobId,
        seen_generation: int,
        definition: StoredDefinition,
        timer: TimerEdit,
        audit: AuditEntry,
        missed: Callable[[JobRecord], NewRun | None] | None = None,
        redirection: Redirected = NOT_REDIRECTED,
    ) -> JobRecord | StoreConflict | ChainRefused | None:
        """Write a new generation."""
        edit = (job_id, seen_generation, definition, timer, audit, missed, redirection)
        return await self.database.call(lambda c: jobs.update_job(c, *edit))

    async def pause_job(
        self,
        job_id: JobId,
        note: str,
        actor: str,
        audit: AuditEntry,
        until: datetime | None = None,
        seen_generation: int | None = None,
        noted: Callable[[JobRecord], str] | None = None,
    ) -> JobRecord | StoreConflict | None:
        """Pause the job: nothing fires, until `until` if it is given."""
        return await self.database.call(
            lambda c: job_pauses.pause_job(
                c, job_id, note, actor, audit, until, seen_generation, noted
            )
        )

    async def resume_job(
        self,
        job_id: JobId,
        timer: TimerEdit,
        skipped: NewRun | None,
        audit: AuditEntry,
        seen_generation: int | None = None,
        noted: Callable[[JobRecord], str] | None = None,
    ) -> JobRecord | StoreConflict | None:
        """Resume the job with this timer."""
        return await self.database.call(
            lambda c: job_pauses.resume_job(
                c, job_id, timer, skipped, audit, seen_generation, noted=noted
            )
        )

    async def delete_job(
        self,
        job_id: JobId,
        audit: AuditEntry,
        missed: Callable[[JobRecord, datetime], NewRun | None] | None = None,
        noted: Callable[[JobRecord], str] | None = None,
        seen_generation: int | None = None,
    ) -> Deletion | StoreConflict | ChainRefused | None:
        """Delete the job. None: it doesn't exist."""
        given = (job_id, audit, missed, noted, seen_generation)
        return await self.database.call(lambda c: jobs.delete_job(c, *given))

    async def submit_run(
        self,
        record: JobRecord,
        run: NewRun,
        idempotency: Idempotency | None,
        audit: AuditEntry,
        priority: Priority,
    ) -> RunRecord | StoreConflict | None:
        """Store one-time work. A `plain` submit shares a transaction with concurrent ones."""
        submit = Submit(record, run, idempotency, audit, priority)
        return await (self.submits.ask if submit.plain else self._submit)(submit)

    async def submit_runs(
        self, wanted: Sequence[Submit]
    ) -> list[RunRecord | StoreConflict | Unavailable | None]:
        """Store each as `submit_run` does, in as few transactions as possible."""
        return await self.submits.ask_all(wanted, lambda submit: submit.plain)

    async def _submit(self, submit: Submit) -> RunRecord | StoreConflict | None:
        return await self.database.call(lambda c: submits.submit(c, submit))

    async def insert_run(
        self,
        job_id: JobId,
        run: NewRun,
        trigger: Trigger,
        priority: Priority,
        payload: bytes | None,
        idempotency: Idempotency | None,
        audit: AuditEntry,
        overlap: Overlap | None = None,
    ) -> RunRecord | StoreConflict | None:
        """Store a triggered run. None: the job is deleted."""
        return await self.database.call(
            lambda c: runs.insert_run(
                c, job_id, run, trigger, priority, payload, idempotency, audit, overlap
            )
        )

    async def get_run(self, run_id: RunId) -> RunRecord | None:
        """Return one run, in any state."""
        return await self.database.call(lambda c: runs.get_run(c, run_id))

    async def get_runs(self, run_ids: Sequence[RunId]) -> list[RunRecord]:
        """Return those of these runs that exist."""
        return await self.reads.runs(run_ids) if run_ids else []

    async def list_runs(
        self,
        namespace: str,
        after: tuple[datetime, RunId] | None,
        limit: int,
        wanted: RunFilter = ALL_RUNS,
    ) -> tuple[list[RunRecord], tuple[datetime, RunId] | None]:
        """Return runs after `after`, newest first, and the place where the scan ended."""
        return await self.database.call(
            lambda c: run_list.list_runs(c, namespace, after, limit, wanted)
        )

    async def newest_states(self, job_ids: Sequence[JobId], count: int) -> dict[JobId, list[State]]:
        """Return the newest states of each of these jobs, newest first."""
        return await self.database.call(lambda c: runs.newest_states(c, job_ids, count))

    async def cancel_run(
        self,
        run_id: RunId,
        audit: AuditEntry,
        noted: Callable[[RunRecord, RunRecord], tuple[str, str]] | None = None,
    ) -> RunRecord | None:
        """Cancel a waiting run; mark a running one."""
        return await self.database.call(lambda c: runs.cancel_run(c, run_id, audit, noted))

    async def attempts(self, run_id: RunId) -> list[AttemptRecord]:
        """Return the run's assignments, oldest first."""
        return await self.database.call(lambda c: runs.attempts_of(c, run_id))

    async def unstarted_attempts(
        self, job_id: JobId | None, now: datetime, pool: tuple[str, str] | None = None
    ) -> list[LiveRun]:
        """Return attempts of the job, of the pool, or of all, that may still start."""
        return await self.database.call(
            lambda c: unstarted.unstarted_attempts(c, job_id, now, pool)
        )

    async def output(self, run_id: RunId, token: Token | None) -> tuple[Token, bytes] | None:
        """Return the log's pieces, and the token of their assignment."""
        return await self.database.call(lambda c: runs.output(c, run_id, token))

    async def result(self, run_id: RunId) -> bytes | None:
        """Return the run's result."""
        return await self.database.call(lambda c: runs.result(c, run_id))

    async def list_audit(
        self,
        action: str | None,
        object_: str | None,
        run_id: RunId | None,
        before: int | None,
        limit: int,
    ) -> list[tuple[int, AuditEntry]]:
        """Return audit entries, newest first, with their sequence numbers."""
        return await self.database.call(
            lambda c: audit.list_audit(c, action, object_, run_id, before, limit)
        )

    async def accounted(self, job_id: JobId, at: datetime) -> RunRecord | None:
        """Return the row that accounts for a scheduled time."""
        return await self.database.call(lambda c: accounted_times.accounted(c, job_id, at))

    async def taken_by(self, job_id: JobId, after: datetime) -> RunRecord | None:
        """Return the schedule's first later row."""
        return await self.database.call(lambda c: accounted_times.taken_by(c, job_id, after))

    async def last_pause(self, object_: str, since: datetime, at: datetime) -> AuditEntry | None:
        """Return the newest audit entry of a pause of the object, no later than `at`."""
        return await self.database.call(lambda c: accounted_times.last_pause(c, object_, since, at))

    async def audit(self, entry: AuditEntry) -> None:
        """Append one audit entry."""
        await self.database.call(lambda c: audit.write_all(c, [entry]))

    async def counts(self) -> Counts:
        """Return the counts of live work."""
        return await self.database.call(run_counts.counts)

    async def waits(self) -> list[WaitingRuns]:
        """Return the runs that have waited longest, of a sample of each shard."""
        return await self.database.call(run_counts.waits)

    async def failing(self) -> list[FailingRow]:
        """Return jobs whose last runs failed repeatedly."""
        return await self.database.call(failing_jobs.failing)

    async def growing(self) -> list[GrowingRow]:
        """Return jobs whose number of waiting runs grows."""
        return await self.database.call(failing_jobs.growing)
