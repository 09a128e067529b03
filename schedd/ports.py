"""What the loops and calls need of the world, as small protocols.

Adapters give them (`store/` over PostgreSQL, `etcd/` over etcd, `rpc/` over gRPC), `app/` ties
them together, twins stand in for them in simulation. Each method is one round of work that either
happened, or raised `schedkit.errors.Unavailable`; a refusal is a returned value. Methods of the
owner are one transaction each, whose first statement locks the rows of the claim's shards where
they are still its own (PROTOCOL 1); shards that aren't are left out and named in the answer.
"""

import enum
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol, TypeAlias

from schedd.core import membership
from schedd.core.checkup.facts import Facts
from schedd.core.coordination import (
    Compare,
    Entry,
    Followed,
    Lease,
    LeaseId,
    Listing,
    Op,
    TxnResult,
)
from schedd.core.ids import (
    Epoch,
    IncarnationId,
    JobId,
    RunId,
    ShardId,
    TenureId,
    Term,
    Timeline,
    Token,
)
from schedd.core.lifecycle import State
from schedd.core.model import (
    AuditEntry,
    Claim,
    Draft,
    Firing,
    Incarnation,
    LiveRun,
    Loss,
    NewRun,
    Priority,
    Report,
    RunKey,
    ShardRow,
    Tenure,
    Timer,
    Trigger,
    Verdict,
)
from schedd.core.pauses import NO_PAUSES, Pause, Pauses
from schedd.core.records import (
    Assignments,
    AttemptRecord,
    Conflict,
    Counts,
    DeadLetterRecord,
    Fired,
    Idempotency,
    JobRecord,
    Probe,
    RunRecord,
    StoredDefinition,
    Unstarted,
    WorkerView,
)

# ---- coordination ----


class Coordination(Protocol):
    """etcd, as far as a member needs it. Each call has a deadline of its own."""

    async def get(self, key: str) -> Entry | None: ...
    async def list(self, prefix: str) -> Listing: ...
    async def txn(
        self, compare: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult: ...
    async def grant(self, ttl: int) -> Lease: ...
    async def revoke(self, lease: LeaseId) -> None: ...
    async def keepalive_once(self, lease: LeaseId) -> int: ...
    def follow(self, prefix: str) -> AsyncIterator[Followed]: ...


class LeaseKeeper(Protocol):
    """A lease that is kept alive while the event loop makes progress. Instants: CLOCK_BOOTTIME."""

    @property
    def lease(self) -> Lease: ...
    @property
    def trusted_until(self) -> float:
        """When trust ends unless a keepalive moves it, in seconds."""
        ...

    def trusted(self) -> bool:
        """Whether the lease may be acted on now; once False, False for ever. Cheap."""
        ...

    async def until_lost(self) -> enum.Enum:
        """Return the moment trust ends. The value says why."""
        ...


KeepLease: TypeAlias = Callable[[], AbstractAsyncContextManager[LeaseKeeper]]
"""Grants a lease and keeps it for the time of the block; revokes it after, if etcd answers."""


# ---- clock ----


class ClusterClock(Protocol):
    """Cluster time: the member's monotonic clock mapped onto the database's (DESIGN, "Time")."""

    def now(self) -> datetime: ...


# ---- membership: tenures, terms, shards ----


class MembershipStore(Protocol):
    """Tenures, the leader's term, and the shards' owners and epochs."""

    async def probe(self) -> Probe: ...
    async def cluster_id(self) -> str: ...
    async def open_tenure(self, tenure: Tenure) -> None: ...
    async def unfenced_tenures(self) -> list[Tenure]: ...
    async def fenced(self, tenures: Sequence[TenureId]) -> frozenset[TenureId]:
        """Those of these that are fenced."""
        ...

    async def fence_own(self, tenure: TenureId) -> None: ...
    async def fence(self, tenures: Sequence[TenureId], term: Term) -> bool:
        """Fence these if `term` is still the present one; ends backends that block it after
        500 ms. False: the term is over.
        """
        ...

    async def read_term(self) -> Term: ...
    async def raise_term(self, seen: Term, leader: TenureId) -> Term | None:
        """Compare-and-set; None: somebody else raised it."""
        ...

    async def read_shards(self) -> list[ShardRow]: ...
    async def take(
        self, tenure: TenureId, timeline: Timeline, seen: dict[ShardId, Epoch]
    ) -> dict[ShardId, Epoch]:
        """Take those of the shards whose epoch is the one seen and that are free, one's own, or a
        fenced tenure's. Gives the new epochs of those taken.
        """
        ...

    async def release(self, claim: Claim) -> None: ...


# ---- the owner's transactions ----


class OwnerStore(Protocol):
    """What a shard's owner reads and writes."""

    async def due_timers(
        self, shards: Sequence[ShardId], until: datetime, limit: int
    ) -> list[Timer]:
        """Timers of these shards due by `until`, from minus infinity, soonest first."""
        ...

    async def timers(self, jobs: Sequence[JobId]) -> list[Timer]: ...
    async def live_runs(
        self, shards: Sequence[ShardId], states: Sequence[State], until: datetime | None = None
    ) -> list[LiveRun]:
        """Runs that haven't ended. PENDING and RETRYING of paused jobs are left out, and those
        that become ready later than `until`.
        """
        ...

    async def definitions(self, jobs: Sequence[JobId]) -> dict[JobId, "StoredDefinition"]: ...
    async def fire(self, claim: Claim, firings: Sequence[Firing], switched: int = 0) -> Fired:
        """`switched`: of the pauses (`core/pauses.py`) that the firings were reckoned from."""
        ...

    async def assign(
        self,
        claim: Claim,
        drafts: Sequence[Draft],
        next_token: Callable[[ShardId], Token],
    ) -> Assignments:
        """`next_token` is called after the shard rows are locked, once a draft that is still its
        own shard's (PROTOCOL 1).
        """
        ...

    async def give_back(self, claim: Claim, unstarted: Sequence[Unstarted]) -> list[LiveRun]: ...
    async def rescue(self, claim: Claim, losses: Sequence[Loss]) -> list[RunKey]:
        """Mark the incarnations lost for good and move their runs on, in one transaction."""
        ...

    async def end_waiting(
        self, claim: Claim, runs: Sequence[tuple[RunKey, State, str]]
    ) -> list[RunKey]:
        """End PENDING or RETRYING runs (start deadline passed, run timeout): state and reason."""
        ...


class ResultStore(Protocol):
    """What any member does with what workers say; the token alone protects it."""

    async def reported_runs(self, keys: Sequence[RunKey]) -> dict[RunKey, LiveRun]:
        """The runs as they stand, whatever their state, for deciding what a report means."""
        ...

    async def accept(self, reports: Sequence[Report]) -> list[Verdict]:
        """One transaction for all; a verdict each, in order. STALE ones are in the audit."""
        ...

    async def refuse(self, unstarted: Sequence[Unstarted]) -> list[RunKey]:
        """Runs that their worker refused or gave up before the start, by token and state; no
        claim needed: the token is the guard. Gives the runs that went back.
        """
        ...

    async def outdo(self, shard: ShardId, seen: Epoch) -> None:
        """A token of this epoch was seen that the shard never gave out: raise the shard's epoch
        above it, whoever owns it. Its owner finds its claim void, and takes it anew.
        """
        ...

    async def started(self, starts: Sequence[tuple[RunKey, Token, datetime]]) -> None:
        """Write down the start of runs that take long, for people to see."""
        ...


class WorkerStore(Protocol):
    """Incarnations of workers."""

    async def register(self, incarnation: Incarnation) -> Incarnation:
        """Insert it if it is new; gives the stored row (see `lost_at`)."""
        ...

    async def incarnations(self, ids: Sequence[IncarnationId]) -> list[Incarnation]: ...
    async def of_worker(self, worker: str) -> list[Incarnation]:
        """Those of this worker that aren't lost, newest first."""
        ...

    async def mark_lost(self, incarnation: IncarnationId) -> None:
        """For an incarnation that says goodbye, or that a newcomer from its spool ends."""
        ...


# ---- user calls ----


class UserStore(Protocol):
    """What user calls read and write; each writing call is one transaction with its audit line.

    Calls on jobs lock the shard row first, then jobs, timers, runs (PROTOCOL 3).
    """

    async def create_job(
        self,
        record: JobRecord,
        first_run: NewRun | None,
        idempotency: Idempotency | None,
        audit: AuditEntry,
        trigger: Trigger = Trigger.SCHEDULE,
        priority: Priority = Priority.MEDIUM,
    ) -> JobRecord | Conflict:
        """Store job and timer; with `first_run` (a submit) its run too. The same idempotency key
        and digest give the record that is stored already.
        """
        ...

    async def get_job(self, namespace: str, job: str) -> JobRecord | None:
        """By id or by name."""
        ...

    async def definition(self, job_id: JobId) -> StoredDefinition | None:
        """By id alone; of deleted and one-time jobs too."""
        ...

    async def list_jobs(
        self, namespace: str, after: tuple[datetime, JobId] | None, limit: int
    ) -> list[JobRecord]:
        """Newest first, past `after` (created_at, id)."""
        ...

    async def update_job(
        self,
        job_id: JobId,
        seen_generation: int,
        definition: StoredDefinition,
        reset_timer: tuple[datetime | None, datetime | None] | None,
        audit: AuditEntry,
        missed: NewRun | None = None,
    ) -> JobRecord | Conflict | None:
        """Write a new generation. `reset_timer`: (due_at, nominal) when the schedule changed;
        `missed` accounts for what was due by the old one and never fired.
        """
        ...

    async def pause_job(
        self, job_id: JobId, note: str, actor: str, audit: AuditEntry
    ) -> JobRecord | None: ...
    async def resume_job(
        self,
        job_id: JobId,
        timer: tuple[datetime | None, datetime | None],
        skipped: NewRun | None,
        audit: AuditEntry,
        seen_generation: int | None = None,
    ) -> JobRecord | Conflict | None:
        """Resume with this timer; `skipped` accounts for the instants of the pause, and PENDING
        runs whose instant passed in it become SKIPPED (PAUSED). `Conflict`: the job's generation
        isn't `seen_generation`, from which `timer` was reckoned.
        """
        ...

    async def delete_job(self, job_id: JobId, audit: AuditEntry) -> bool: ...
    async def insert_run(
        self,
        job_id: JobId,
        run: NewRun,
        trigger: Trigger,
        priority: Priority,
        payload: bytes | None,
        idempotency: Idempotency | None,
        audit: AuditEntry,
    ) -> RunRecord | Conflict | None:
        """A trigger: locks the job's timers row FOR SHARE; None: the job is deleted."""
        ...

    async def get_run(self, run_id: RunId) -> RunRecord | None: ...
    async def get_runs(self, run_ids: Sequence[RunId]) -> list[RunRecord]: ...
    async def list_runs(
        self,
        namespace: str,
        job: str | None,
        states: Sequence[State],
        worker: str | None,
        since: datetime | None,
        before: datetime | None,
        after: tuple[datetime, RunId] | None,
        limit: int,
    ) -> list[RunRecord]:
        """Newest first, past `after` (scheduled_at, id)."""
        ...

    async def cancel_run(self, run_id: RunId, audit: AuditEntry) -> RunRecord | None:
        """PENDING and RETRYING become CANCELLED (BY_USER); RUNNING is marked `cancelling` and its
        worker must be told.
        """
        ...

    async def attempts(self, run_id: RunId) -> list[AttemptRecord]: ...
    async def unstarted_attempts(self, job_id: JobId | None, now: datetime) -> list[LiveRun]:
        """Attempts of the job, or of all jobs, that may still start: what `ok` waits for. Those of
        runs that were taken from their worker too.
        """
        ...

    async def output(self, run_id: RunId, token: Token | None) -> bytes | None: ...
    async def result(self, run_id: RunId) -> bytes | None: ...
    async def list_dead_letters(
        self,
        namespace: str,
        job: str | None,
        after: tuple[datetime, RunId] | None,
        limit: int,
    ) -> list[DeadLetterRecord]: ...
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

    async def audit(self, entry: AuditEntry) -> None: ...
    async def counts(self) -> Counts: ...


class PauseStore(Protocol):
    """Pauses of the whole cluster. Both writes hold every shard's row (PROTOCOL 3)."""

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

    async def resume(self, catch_up: bool, entry: Callable[[Pauses, Pauses], AuditEntry]) -> Pauses:
        """Fire and start again. What fell due in the pause is caught up, or SKIPPED (PAUSED)."""
        ...


# ---- between members and workers ----


class Nudges(Protocol):
    """Hints to the owners; never awaited, never needed for correctness."""

    def jobs_changed(self, changed: Sequence[tuple[JobId, ShardId]]) -> None:
        """Timers of these jobs were written: their owners read them now."""
        ...

    def runs_ready(self, shards: Sequence[ShardId]) -> None:
        """Runs were inserted or made ready in these shards."""
        ...

    def runs_changed(self, runs: Sequence[RunId]) -> None:
        """Somebody may be watching these runs, here or at another member."""
        ...

    def cluster_changed(self) -> None:
        """The cluster was paused or resumed, or its map is to be looked at: everybody looks."""
        ...


class WorkerLines(Protocol):
    """The streams to the workers that are attached to this member."""

    async def revoke(self, runs: Sequence[LiveRun]) -> None:
        """Ask the workers to give up these assignments if they haven't started. Returns when each
        was revoked, was reported started, or its `start_by` has passed.
        """
        ...

    def cancel(self, run: LiveRun, *, kill: bool = False) -> None: ...
    def workers(self) -> list[WorkerView]: ...


class Changes(Protocol):
    """Waiting for runs to change."""

    async def wait(self, runs: Sequence[RunId], timeout: float) -> None:
        """Return when one of these may have changed, at the latest after `timeout` seconds."""
        ...


# ---- the cluster as it stands ----


MemberView = membership.MemberView
ClusterView = membership.ClusterView


class Succession(Protocol):
    """Planned changes of leader."""

    async def ask(self, view: ClusterView, heir: TenureId) -> bool:
        """Wish that this tenure follows the leader of the view. False: another leads by now, or
        another wish stands.
        """
        ...

    async def follows(self, term: Term) -> ClusterView:
        """The first view in which somebody leads under a later term than this one."""
        ...


class Checkup(Protocol):
    """What is known of the cluster, gathered for a person."""

    async def facts(self) -> Facts:
        """As of now. Raises nothing: what can't be read has its reason in its place."""
        ...


class Cluster(Protocol):
    """The newest view this member has."""

    def view(self) -> ClusterView: ...
    @property
    def tenure(self) -> TenureId | None:
        """This member's own tenure; None while it has none."""
        ...

    def owned(self) -> dict[ShardId, Epoch]:
        """The shards this member owns now, with their epochs."""
        ...

    def trusted(self) -> bool:
        """Whether this member may still act on its tenure (its trust window hasn't passed)."""
        ...
