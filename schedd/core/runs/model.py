"""The values that the loops reason on: timers, runs, assignments, reports (`definition`: of what).

All are frozen. Instants are aware datetimes in UTC, durations are timedeltas; nothing here reads
a clock.
"""

from dataclasses import field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from schedd.core.dispatch.ready_bucket_ids import LineId
from schedd.core.ids import (
    NO_TOKEN,
    Epoch,
    Hint,
    IncarnationId,
    JobId,
    RunId,
    ShardId,
    TenureId,
    Timeline,
    Token,
)
from schedd.core.jobs.definition import CatchUpPolicy, Definition, Overlap, Priority
from schedd.core.jobs.notifications import Notices
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.pools import NO_POOL, PoolKey
from schedkit.records import dataclass


class Trigger(StrEnum):
    """What made a run."""

    SCHEDULE = "SCHEDULE"
    MANUAL = "MANUAL"
    SUBMIT = "SUBMIT"
    BACKFILL = "BACKFILL"
    """Written as MANUAL beside the backfill's id: members of versions before know no other word."""
    REDRIVE = "REDRIVE"
    """Written as MANUAL beside the id of the run that it does again."""
    CHAIN = "CHAIN"
    """Written as SCHEDULE beside the runs of its parents."""


@dataclass(frozen=True, slots=True)
class Timer:
    """The narrow row that fire and assign join; every job has one.

    `due_at` and `nominal` are None when nothing is due any more (on demand, ended, fired once).
    After `max_runs` runs only `due_at` is None: `nominal` is the scheduled time to continue with if
    one of them is skipped.
    """

    job_id: JobId
    shard: ShardId
    generation: int
    due_at: datetime | None
    nominal: datetime | None
    paused: bool = False
    fired: int = 0
    """Of a schedule with `max_runs`: how many it has made, those that were skipped left out."""


class OfShard(Protocol):
    """An item that belongs to a shard."""

    @property
    def shard(self) -> ShardId: ...


@dataclass(frozen=True, slots=True)
class Claim:
    """What an owner says it owns, for one transaction: the shards of one lane with their epochs."""

    tenure: TenureId
    timeline: Timeline
    epochs: dict[ShardId, Epoch]


@dataclass(frozen=True, slots=True)
class RunKey:
    """Where a run's row is: its partition and its id."""

    scheduled_at: datetime
    run_id: RunId

    def __hash__(self) -> int:
        """By the id, which says as much: each run's key is looked up two dozen times."""
        return hash(self.run_id.int)


@dataclass(frozen=True, slots=True)
class NewRun:
    """One row of the ledger that a firing inserts: a run, or a fold that accounts for instants."""

    key: RunKey
    due_at: datetime
    state: State = State.PENDING
    reason: Reason | None = None
    count: int = 1
    scheduled_until: datetime | None = None
    excluded_by: str = ""
    """What keeps it from running, in words: a calendar, or who paused, edited or deleted."""
    ready_at: datetime | None = None
    """Of a late run: when catch-up made it. None: it is ready when it is due."""
    paced: bool = False
    """It is late, of a job with `catch_up: all`."""


@dataclass(frozen=True, slots=True)
class Firing:
    """One timer's step: insert `runs` if and only if the timer advances from `due_at` to `next_*`.

    `last_instant` is the newest due instant among the runs: the database refuses the step while
    its own clock is before it (less the horizon).
    """

    job_id: JobId
    shard: ShardId
    generation: int
    due_at: datetime
    next_due_at: datetime | None
    next_nominal: datetime | None
    last_instant: datetime
    priority: Priority
    runs: tuple[NewRun, ...]
    fired: int = 0
    """What the timer counted when the step was reckoned; another count refuses it."""
    counted: int = 0
    """The number of runs that count against `max_runs`."""
    notices: Notices | None = None
    """The notifications of its job."""


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run that hasn't ended, as its owner knows it.

    `attempt` counts attempts against the limit, the current one included while RUNNING; `losses`
    counts assignments that were lost with their worker. `ready_at` is when it may be dispatched:
    `due_at` for a PENDING run, later for one that catch-up made late or that came back unstarted,
    the end of the backoff for a RETRYING one.
    """

    key: RunKey
    job_id: JobId
    shard: ShardId
    state: State
    priority: Priority
    due_at: datetime
    ready_at: datetime
    attempt: int = 0
    losses: int = 0
    token: Token = NO_TOKEN
    worker: str | None = None
    incarnation: IncarnationId | None = None
    start_by: datetime | None = None
    started_at: datetime | None = None
    generation: int = 0
    cancelling: bool = False
    killing: bool = False
    """Its worker is to kill it, without the time that `kill_after` gives."""
    overlap: Overlap | None = None
    """What its trigger said; None: as its job says."""
    created_at: datetime | None = field(default=None, compare=False)
    """When it was made; None: just now."""
    parent: RunId | None = None
    """The run of a broadcast that it belongs to (`core/runs/broadcast.py`)."""
    target: str | None = None
    """The name of the one worker that it is for."""
    children: int | None = None
    """It is a broadcast that has begun, with so many children; no worker has it."""
    paced: bool = False
    """It is late, and dispatched at a limited rate. Known to the owner that fired it, not stored.
    """
    line: LineId | None = field(default=None, compare=False)
    """The bucket id of its job, if a scan has read it; None: read the definition."""
    line_generation: int = field(default=0, compare=False)
    """The generation of the definition that the bucket id was made from."""

    @property
    def hint(self) -> Hint:
        """What those who watch hear of it."""
        return self.key.run_id, self.job_id

    @property
    def late(self) -> bool:
        """Whether catch-up made it: it was ready only after it was due, and this is its first try.
        One that was given back before it started goes as if it had been on time.
        """
        if self.state is State.RUNNING:
            return self.attempt == 1 and not self.losses and self.ready_at > self.due_at
        fresh = self.state is State.PENDING and self.token == NO_TOKEN
        return fresh and self.ready_at > self.due_at

    def paced_by(self, definition: Definition) -> bool:
        """Whether its release is bounded by the rate, and its slots by what isn't reserved."""
        return self.late and definition.catch_up.policy is CatchUpPolicy.ALL

    def lateness(self, started_at: datetime | None) -> timedelta | None:
        """How long after it should have the present attempt started: after due_at for the first,
        after the end of the back-off for a later one. None: it hasn't started. For figures of how
        prompt the cluster is; what people read of a run is `RunRecord.lateness`.
        """
        if started_at is None:
            return None
        return started_at - (self.due_at if self.attempt <= 1 else self.ready_at)


@dataclass(frozen=True, slots=True)
class Draft:
    """An assignment that its owner would like to make; the statement decides."""

    key: RunKey
    job_id: JobId
    shard: ShardId
    generation: int
    worker: str
    incarnation: IncarnationId | None
    """None: of a broadcast, which no worker gets."""
    overlap: Overlap
    """What the job says."""
    overlap_limit: int
    """How many admitted runs of the job may be there at once, as it says; 0: no limit (allow)."""
    said: Overlap | None = None
    """What the run's own row says; it counts instead."""
    start_by_after: timedelta = timedelta(seconds=5)
    counted: bool = False
    """The schedule has `max_runs`: what is skipped gives its turn back."""
    pool: PoolKey = NO_POOL
    parent: RunId | None = None
    """Of the broadcast's child that it is of."""
    targets: tuple[str, ...] = ()
    """Of a broadcast: the workers that it is for, by name. `worker` is empty."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """A job of which more than one run is there, with what its definition says of that."""

    job_id: JobId
    shard: ShardId
    generation: int
    overlap: Overlap
    as_of: datetime
    """Runs that are ready then wait, whatever the database's clock says."""
    counted: bool = False
    """The schedule has `max_runs`: what never had its chance gives its turn back."""
    ending: tuple[RunId, ...] | None = None
    """Waiting runs that end in a moment by their definition: no run is skipped behind them. None: a
    scan didn't look at the line, and no run is skipped behind another.
    """


@dataclass(frozen=True, slots=True)
class Assigned:
    """An assignment whose COMMIT was seen: it may be pushed."""

    run: LiveRun
    payload: bytes | None
    """The payload given with a trigger (serialised `Payload`); None: the definition's own."""


@dataclass(frozen=True, slots=True)
class Report:
    """A worker's result for one token, with what the accepting member decided from it.

    `state`, `reason` and `retry_at` follow from the outcome and the job's retry policy
    (`core/runs/retry.py`). `sender` is the incarnation that ran it.
    """

    key: RunKey
    token: Token
    worker: str
    sender: IncarnationId
    digest: bytes
    state: State
    reason: Reason | None
    error: str
    exit_code: int | None
    started_at: datetime | None
    finished_at: datetime | None
    retry_at: datetime | None = None
    counts: bool = True
    """False: the attempt is given back and costs nothing (returned, refused)."""
    lost: bool = False
    """It had begun and was lost on the way: one more of a run's losses."""
    dead: bool = False
    """It becomes a dead letter."""
    pause_after: int = 0
    """Failures in a row that pause its job; 0: never."""
    fingerprint: str = ""
    notices: Notices | None = None
    """The notifications of its job."""
    late: bool = False
    """It started late, as its job's `on_late` has it."""
    at_most_once: bool = False
    """Its job runs at most once: it may not wait again if it may have been begun again already."""
    result: bytes | None = None
    """Serialised `StoredResult`, of which a small one is a `Payload`."""
    output: bytes | None = None
    """Serialised `Output`."""
    stored: bool = False
    """The result store may have something of it."""
    audited: bool = True
    """False: if it is stale, it has a row of the audit log only if its token was assigned once."""


class Verdict(StrEnum):
    """What became of a report."""

    ACCEPTED = "ACCEPTED"
    CANCELLED = "CANCELLED"
    """Accepted; the run ends cancelled, because it was cancelled or its job was deleted."""
    REPEATED = "REPEATED"
    """The same token and digest is stored: its acknowledgement was lost, and is repeated."""
    STALE = "STALE"
    """Refused and audited; nothing changed."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One registration of a worker."""

    id: IncarnationId
    worker: str
    spool_id: str
    host: str
    version: str
    slots: int
    labels: dict[str, str]
    handlers: tuple[str, ...]
    actions: tuple[str, ...]
    started_at: datetime
    lost_at: datetime | None = None
    namespaces: frozenset[str] | None = field(default=None, compare=False)
    """Those whose runs it may be given, by the certificate that it came with; None: all."""

    def may_work_for(self, namespace: str) -> bool:
        """Whether it may be given a run of this namespace."""
        return self.namespaces is None or namespace in self.namespaces


@dataclass(frozen=True, slots=True)
class Loss:
    """A run whose worker is gone, and what follows: RETRYING after `wait`, or FAILED."""

    key: RunKey
    shard: ShardId
    token: Token
    incarnation: IncarnationId
    state: State
    reason: Reason | None
    dead: bool = False
    pause_after: int = 0
    """Failures in a row that pause its job; 0: never."""
    fingerprint: str = ""
    notices: Notices | None = None
    """The notifications of its job."""
    wait: timedelta = timedelta(0)
    """The lost worker may still be killing it: `on_lease_lost: kill`."""


@dataclass(frozen=True, slots=True)
class ShardRow:
    """A shard as PostgreSQL has it."""

    id: ShardId
    owner: TenureId | None
    epoch: Epoch
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class Tenure:
    """One unbroken stay of a member in the cluster."""

    id: TenureId
    member: str
    opened_at: datetime
    fenced_at: datetime | None = None
    grpc: str = field(default="", compare=False)
    http: str = field(default="", compare=False)
    version: str = field(default="", compare=False)
    """Where it was reached and what it ran, for lists of lost members."""
    prefix: UUID | None = field(default=None, compare=False)
    """Id of its etcd prefix (`core/claims.py`)."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One entry of the audit log: actor, action, object and outcome.

    An actor that is a member or worker is named like an object: `member/m1`, `worker/w1`.
    """

    actor: str
    action: str
    object: str
    outcome: str
    reason: str = ""
    run_id: RunId | None = None
    token: Token = NO_TOKEN
    worker: str = ""
    source: str = ""
    at: datetime | None = None
    before: str = ""
    """The object before the change, as JSON; empty if not recorded."""
    after: str = ""
    """The object after the change; for a requested or rejected change, the requested values."""
