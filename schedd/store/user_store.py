"""The store of user calls: each call is one transaction on the small pool, with its audit entry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field
from typing import TypeAlias

from schedd.core.ids import JobId, RunId
from schedd.core.runs.model import AuditRecord
from schedd.core.runs.records import (
    ChainRefused,
    Create,
    Idempotency,
    JobRecord,
    StoreConflict,
    StoredDefinition,
    Submit,
)
from schedd.core.runs.run_records import RunRecord
from schedd.store import audit
from schedd.store.connection.database import Database, in_transaction
from schedd.store.dispatch import unstarted
from schedd.store.jobs import job_insert, job_pauses, job_rows, jobs
from schedd.store.jobs.submits import submit_all
from schedd.store.runs import run_counts, run_list, runs
from schedd.store.statements.batched_reads import BatchedReads
from schedd.store.statements.operations import operations
from schedd.store.timers import accounted_times
from schedkit.errors import Unavailable
from schedkit.group_commit import GroupCommit
from schedkit.records import dataclass

Records: TypeAlias = dict[int, RunRecord]
"""Stored runs by the place of their submit in a batch."""


@dataclass(slots=True, eq=False)
class SubmitHook:
    """The owner at this member, which stores submits whose runs it dispatches at once."""

    store: Callable[[Sequence[Submit]], Awaitable[Records | None]] | None = None
    """Stores a batch. It returns None, and stores nothing, if it dispatches none of the runs.
    None: this member has no tenure.
    """


@operations("users")
@dataclass(frozen=True, slots=True)
class UserStore:
    """Reads and writes of user calls. Each writing call is one transaction with its audit entry.
    Calls on jobs lock the shard row first, then jobs, timers, runs (docs/protocol-rules.md, P3.1).
    """

    database: Database
    submit_hook: SubmitHook = field(default_factory=SubmitHook)
    reads: BatchedReads = field(init=False)
    submits: GroupCommit[Submit, RunRecord | StoreConflict | None] = field(init=False)
    creates: GroupCommit[Create, Create | JobRecord | StoreConflict | ChainRefused] = field(
        init=False
    )

    def __post_init__(self) -> None:
        def fetch(run_ids: Sequence[RunId]) -> Awaitable[list[RunRecord]]:
            return self.database.call(runs.get_runs, run_ids)

        async def submits(wanted: Sequence[Submit]) -> Records:
            store = self.submit_hook.store
            stored = None if store is None else await store(wanted)
            return await self.database.call(submit_all, wanted) if stored is None else stored

        def creates(wanted: Sequence[Create]) -> Awaitable[dict[int, Create]]:
            return self.database.call(job_insert.create_all, wanted)

        object.__setattr__(self, "reads", BatchedReads(fetch))
        object.__setattr__(self, "submits", GroupCommit(submits, self._submit, lambda s: s.size))
        object.__setattr__(self, "creates", GroupCommit(creates, self._create, lambda c: c.size))

    async def create_job(
        self, record: JobRecord, idempotency: Idempotency | None, audit: AuditRecord
    ) -> JobRecord | StoreConflict | ChainRefused:
        """Store job and timer. With a key used before, return the earlier job. A `plain` create
        shares a transaction with concurrent ones.
        """
        create = Create.first(record, idempotency, audit)
        answer = await (self.creates.ask if create.plain else self._create)(create)
        return record if isinstance(answer, Create) else answer

    async def create_jobs(
        self, wanted: Sequence[Create]
    ) -> list[Create | JobRecord | StoreConflict | ChainRefused | Unavailable]:
        """Store each as `create_job` does, in as few transactions as possible. Returns an answer
        for each, in order: the create itself if its job was stored with others.
        """
        return await self.creates.ask_all(wanted, lambda create: create.plain)

    _create = in_transaction(job_insert.create)
    get_job = in_transaction(jobs.get_job)

    async def definition(self, job_id: JobId) -> StoredDefinition | None:
        """Return a definition by id, of deleted and one-time jobs too."""
        return (await self.definitions([job_id])).get(job_id)

    definitions = in_transaction(job_rows.definitions)
    list_jobs = in_transaction(jobs.list_jobs)
    newest_definitions = in_transaction(jobs.newest_definitions)
    update_job = in_transaction(jobs.update_job)
    pause_job = in_transaction(job_pauses.pause_job)

    resume_job = in_transaction(job_pauses.resume_job)
    delete_job = in_transaction(jobs.delete_job)

    async def submit_run(self, submit: Submit) -> RunRecord | StoreConflict | None:
        """Store one-time work: an ephemeral job and its run. With a key used before, return the
        earlier run; None: it isn't kept any more. A `plain` submit shares a transaction with
        concurrent ones.
        """
        return await (self.submits.ask if submit.plain else self._submit)(submit)

    async def submit_runs(
        self, wanted: Sequence[Submit]
    ) -> list[RunRecord | StoreConflict | Unavailable | None]:
        """Store each as `submit_run` does, in as few transactions as possible. Returns an answer
        for each, in order.
        """
        return await self.submits.ask_all(wanted, lambda submit: submit.plain)

    _submit = in_transaction(runs.submit_run)
    insert_run = in_transaction(runs.insert_run)
    get_run = in_transaction(runs.get_run)

    async def get_runs(self, run_ids: Sequence[RunId]) -> list[RunRecord]:
        return await self.reads.runs(run_ids) if run_ids else []

    list_runs = in_transaction(run_list.list_runs)
    newest_states = in_transaction(runs.newest_states)
    cancel_run = in_transaction(runs.cancel_run)
    attempts = in_transaction(runs.attempts_of)
    unstarted_attempts = in_transaction(unstarted.unstarted_attempts)
    output = in_transaction(runs.output)
    result = in_transaction(runs.result)
    list_audit = in_transaction(audit.list_audit)
    accounted = in_transaction(accounted_times.accounted)
    taken_by = in_transaction(accounted_times.taken_by)

    async def audit(self, entry: AuditRecord) -> None:
        await self.database.call(audit.write_all, [entry])

    counts = in_transaction(run_counts.counts)
    waits = in_transaction(run_counts.read_waiting_runs)
    slot_holders = in_transaction(run_counts.read_slot_holders)
    failing = in_transaction(run_counts.failing)
    growing = in_transaction(run_counts.growing)
