"""Reads and writes of user calls."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Protocol

from schedd.core.ids import (
    JobId,
    RunId,
    Token,
)
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
from schedd.core.timers.cluster_pauses import NO_PAUSES, Pause, Pauses
from schedkit.errors import Unavailable


class UserStore(Protocol):
    """Reads and writes of user calls; each writing call is one transaction with its audit line.

    Calls on jobs lock the shard row first, then jobs, timers, runs (docs/protocol-rules.md, P3.1).
    """

    async def create_job(
        self,
        record: JobRecord,
        idempotency: Idempotency | None,
        audit: AuditEntry,
    ) -> JobRecord | StoreConflict | ChainRefused:
        """Store job and timer. The same idempotency key and digest give the record that is stored
        already.
        """
        ...

    async def create_jobs(
        self, wanted: Sequence[Create]
    ) -> list[JobRecord | StoreConflict | ChainRefused | Unavailable]:
        """As `create_job` each, in as few transactions as there can be; an answer for each, in
        order, or why there is none.
        """
        ...

    async def get_job(self, namespace: str, job: str) -> JobRecord | None:
        """By id or by name."""
        ...

    async def definition(self, job_id: JobId) -> StoredDefinition | None:
        """By id alone; of deleted and one-time jobs too."""
        ...

    async def definitions(self, jobs: Collection[JobId]) -> dict[JobId, StoredDefinition]:
        """By id alone, as `definition`."""
        ...

    async def list_jobs(
        self,
        namespace: str,
        after: tuple[datetime, JobId] | None,
        limit: int,
        wanted: JobFilter = ALL_JOBS,
    ) -> tuple[list[JobRecord], tuple[datetime, JobId] | None]:
        """Newest first, past `after` (created_at, id), up to `limit` of them; and where those end
        that were looked at, None where they were all.
        """
        ...

    async def newest_definitions(self, namespace: str, limit: int) -> list[StoredDefinition]:
        """Return those of the newest jobs, newest first, without their calendars."""
        ...

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
        """Write a new generation. `timer` is reset when the schedule changed. `missed` is called
        under the job's locks, perhaps several times, with the job as it was. It returns the row for
        scheduled times of the old schedule that never fired. `redirection` says what happens to
        notifications that wait for delivery.
        """
        ...

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
        """Its owner resumes it at `until`; None: a person does. One that is paused keeps its note
        where none is given. A `StoreConflict` if its generation isn't the one that was seen.
        `noted`: what the audit has of how the job stood, and stands.
        """
        ...

    async def resume_job(
        self,
        job_id: JobId,
        timer: TimerEdit,
        skipped: NewRun | None,
        audit: AuditEntry,
        seen_generation: int | None = None,
        noted: Callable[[JobRecord], str] | None = None,
    ) -> JobRecord | StoreConflict | None:
        """Resume with this timer; `skipped` accounts for the instants of the pause, and PENDING
        runs whose instant passed in it become SKIPPED (PAUSED). `StoreConflict`: the job's
        generation isn't `seen_generation`, from which `timer` was reckoned. `noted`: what the audit
        has of how the job stood.
        """
        ...

    async def delete_job(
        self,
        job_id: JobId,
        audit: AuditEntry,
        missed: Callable[[JobRecord, datetime], NewRun | None] | None = None,
        noted: Callable[[JobRecord], str] | None = None,
        seen_generation: int | None = None,
    ) -> Deletion | StoreConflict | ChainRefused | None:
        """None: it wasn't there. `missed` as in `update_job`, with the moment of the deletion;
        `noted`: what the audit has of the job that went. A `StoreConflict` if its generation isn't
        the one that was seen.
        """
        ...

    async def submit_run(
        self,
        record: JobRecord,
        run: NewRun,
        idempotency: Idempotency | None,
        audit: AuditEntry,
        priority: Priority,
    ) -> RunRecord | StoreConflict | None:
        """Store one-time work, an ephemeral job and its run, and give the run. The same idempotency
        key and digest give the run of then, as it stands; None: that isn't kept any more.
        """
        ...

    async def submit_runs(
        self, wanted: Sequence[Submit]
    ) -> list[RunRecord | StoreConflict | Unavailable | None]:
        """As `submit_run` each, in as few transactions as there can be; an answer for each, in
        order, or why there is none.
        """
        ...

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
        """A trigger: locks the job's timers row FOR SHARE; None: the job is deleted. `overlap`:
        instead of the job's own policy.
        """
        ...

    async def get_run(self, run_id: RunId) -> RunRecord | None: ...
    async def get_runs(self, run_ids: Sequence[RunId]) -> list[RunRecord]: ...
    async def list_runs(
        self,
        namespace: str,
        after: tuple[datetime, RunId] | None,
        limit: int,
        wanted: RunFilter = ALL_RUNS,
    ) -> tuple[list[RunRecord], tuple[datetime, RunId] | None]:
        """Newest first, past `after` (scheduled_at, id), up to `limit` of them; and where those end
        that were looked at, None where they were all, or `limit` were found.
        """
        ...

    async def newest_states(self, job_ids: Sequence[JobId], count: int) -> dict[JobId, list[State]]:
        """How the newest `count` runs of each of these jobs stand, newest first."""
        ...

    async def cancel_run(
        self,
        run_id: RunId,
        audit: AuditEntry,
        noted: Callable[[RunRecord, RunRecord], tuple[str, str]] | None = None,
    ) -> RunRecord | None:
        """PENDING and RETRYING become CANCELLED (BY_USER). RUNNING is marked `cancelling`, and the
        caller sends the cancel to its worker. `noted` returns the audit's `before` and `after`.
        """
        ...

    async def attempts(self, run_id: RunId) -> list[AttemptRecord]: ...
    async def unstarted_attempts(
        self, job_id: JobId | None, now: datetime, pool: tuple[str, str] | None = None
    ) -> list[LiveRun]:
        """Attempts of the job, of the pool's jobs (namespace and name), or of all jobs, that may
        still start: what `ok` waits for. Those of runs that were taken from their worker too.
        """
        ...

    async def output(self, run_id: RunId, token: Token | None) -> tuple[Token, bytes] | None: ...
    async def result(self, run_id: RunId) -> bytes | None: ...
    async def list_audit(
        self,
        action: str | None,
        object_: str | None,
        run_id: RunId | None,
        before: int | None,
        limit: int,
    ) -> list[tuple[int, AuditEntry]]:
        """Newest first with their sequence numbers, below `before`."""
        ...

    async def accounted(self, job_id: JobId, at: datetime) -> RunRecord | None:
        """The row of the schedule's own that begins at this instant, or folds it in."""
        ...

    async def taken_by(self, job_id: JobId, after: datetime) -> RunRecord | None:
        """The schedule's first row that begins later."""
        ...

    async def last_pause(self, object_: str, since: datetime, at: datetime) -> AuditEntry | None:
        """The audit's newest line that paused this object no later than `at`."""
        ...

    async def audit(self, entry: AuditEntry) -> None: ...
    async def counts(self) -> Counts: ...
    async def waits(self) -> list[WaitingRuns]:
        """Return the runs that have waited longest, of a sample of each shard, and its size."""
        ...

    async def failing(self) -> list[FailingRow]:
        """Jobs whose last runs failed, three times or more in a row."""
        ...

    async def growing(self) -> list[GrowingRow]:
        """Jobs with many waiting runs, where more runs are created than end."""
        ...


class PauseStore(Protocol):
    """Pauses of the whole cluster. Both writes hold every shard's row (P3.11)."""

    async def read(self, known: Pauses = NO_PAUSES) -> Pauses:
        """All pauses there were. Of those that are `known` only what may have changed is read."""
        ...

    async def present(self) -> Pause | None:
        """The pause that lasts."""
        ...

    async def pause(
        self, by: str, note: str, entry: Callable[[Pauses, Pauses], AuditEntry]
    ) -> Pauses:
        """Nothing fires or starts from the commit on. `entry` makes the audit's line of what was
        and what is; pausing again changes the note.
        """
        ...

    async def resume(
        self,
        catch_up: bool | None,
        since: datetime | None,
        entry: Callable[[Pauses, Pauses], AuditEntry],
    ) -> Pauses | None:
        """Fire and start again. What fell due in the pause, or from `since` on, is caught up, else
        SKIPPED (PAUSED). None: the database went back, and nothing of it was chosen.
        """
        ...
