"""Values that the owner's loops work with: timers, runs, assignments, results. All are frozen.
Times are aware datetimes in UTC, durations are timedeltas.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import repeat
from typing import NamedTuple, Protocol

from schedd.core.dispatch.ready_bucket_ids import LineId
from schedd.core.ids import (
    NO_TOKEN,
    Epoch,
    Hint,
    Id,
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
from schedkit.records import dataclass, replace


class Trigger(StrEnum):
    """The cause of a run."""

    SCHEDULE = "SCHEDULE"
    MANUAL = "MANUAL"
    SUBMIT = "SUBMIT"
    BACKFILL = "BACKFILL"
    """Stored as MANUAL with the backfill's id: older members don't know BACKFILL."""
    REDRIVE = "REDRIVE"
    """Stored as MANUAL with the id of the dead run."""
    CHAIN = "CHAIN"
    """Stored as SCHEDULE with the parents' runs."""


class Timer(NamedTuple):
    """A job's timer: the narrow row that the fire and assign statements join. Every job has one.

    `nominal` is the next scheduled time, `due_at` its due time. Both are None when nothing will be
    due (on demand, ended, fired once). After `max_runs` runs only `due_at` is None: if one of the
    runs is skipped, the schedule continues at `nominal`.
    """

    job_id: JobId
    shard: ShardId
    generation: int
    due_at: datetime | None
    nominal: datetime | None
    paused: bool = False
    fired: int = 0
    """The number of runs that count against `max_runs`. Skipped runs don't count."""


class OfShard(Protocol):
    @property
    def shard(self) -> ShardId: ...


@dataclass(frozen=True, slots=True)
class Claim:
    """The shards of one lane that an owner claims in a transaction, with their epochs."""

    tenure: TenureId
    timeline: Timeline
    epochs: dict[ShardId, Epoch]


class RunKey(NamedTuple):
    """The key of a run's row: its partition and its id."""

    scheduled_at: datetime
    run_id: RunId


class LiveKey(NamedTuple):
    """The key of a live run among those of its shard."""

    shard: ShardId
    job_id: JobId
    run_id: RunId


@dataclass(frozen=True, slots=True)
class NewRun:
    """A row that a fire inserts: a run, or a merged row for scheduled times that don't run."""

    key: RunKey
    due_at: datetime
    state: State = State.PENDING
    reason: Reason | None = None
    count: int = 1
    scheduled_until: datetime | None = None
    excluded_by: str = ""
    """The cause of a skip, as text (`reasons`)."""
    ready_at: datetime | None = None
    """When catch-up created a late run. None: the run is ready when it is due."""
    paced: bool = False
    """Whether the run is late and its job has `catch_up: all`."""


@dataclass(frozen=True, slots=True)
class Firing:
    """A step of a timer: insert `runs` only if the timer advances from `due_at` to `next_*`.

    `last_instant`: the newest due time of the runs. The database rejects the step while its clock
    is earlier than that minus the horizon.
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
    """The timer's count when the step was computed. The store rejects the step if it changed."""
    counted: int = 0
    """How many of `runs` count against `max_runs`."""
    notices: Notices | None = None

    @property
    def ready_at(self) -> datetime:
        """When the first run is ready."""
        return self.runs[0].ready_at or self.due_at


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run that hasn't ended, as its owner knows it."""

    key: RunKey
    job_id: JobId
    shard: ShardId
    state: State
    priority: Priority
    due_at: datetime
    ready_at: datetime
    """When the run may be dispatched: for a PENDING run `due_at`, or later if catch-up created the
    run or a worker returned it; for a RETRYING run the backoff's end.
    """
    attempt: int = 0
    """Attempts that count against the limit, including the current one while RUNNING."""
    losses: int = 0
    """Assignments that were lost with their worker."""
    token: Token = NO_TOKEN
    worker: str | None = None
    incarnation: IncarnationId | None = None
    start_by: datetime | None = None
    started_at: datetime | None = None
    generation: int = 0
    cancelling: bool = False
    killing: bool = False
    """Whether its worker must kill it at once, without waiting `kill_after`."""
    overlap: Overlap | None = None
    """The overlap policy that its trigger set. None: the job's policy."""
    created_at: datetime | None = field(default=None, compare=False)
    """None: just now."""
    parent: RunId | None = None
    """The broadcast's run, if this run is a child of it (`core/runs/broadcast.py`)."""
    target: str | None = None
    """The name of the only worker that may run it. None: any worker."""
    children: int | None = None
    """The number of children of a broadcast that has started. No worker holds such a run."""
    paced: bool = False
    """Whether the run is late and dispatched at a limited rate. Only the owner that fired it knows:
    the flag isn't stored.
    """
    line: LineId | None = field(default=None, compare=False)
    """The bucket id of its job, if a scan has read it. None: read the definition."""
    line_generation: int = field(default=0, compare=False)
    """The generation of the definition from which the bucket id was computed."""

    @property
    def hint(self) -> Hint:
        return self.key.run_id, self.job_id

    @property
    def late(self) -> bool:
        """Whether catch-up created the run: it was ready after its due time, and this is its first
        assignment. A run that was returned unstarted doesn't count as late.
        """
        if self.state is State.RUNNING:
            return self.attempt == 1 and not self.losses and self.ready_at > self.due_at
        fresh = self.state is State.PENDING and self.token == NO_TOKEN
        return fresh and self.ready_at > self.due_at

    @property
    def live_key(self) -> LiveKey:
        return LiveKey(self.shard, self.job_id, self.key.run_id)

    def paced_by(self, definition: Definition) -> bool:
        """Return whether the catch-up limits apply: the release rate and the reserved slots."""
        return self.late and definition.catch_up.policy is CatchUpPolicy.ALL

    def lateness(self, started_at: datetime | None) -> timedelta | None:
        """Return how late the current attempt started, for metrics; None: it hasn't started. The
        first attempt counts from `due_at`, a later one from the end of its backoff.
        """
        if started_at is None:
            return None
        return started_at - (self.due_at if self.attempt <= 1 else self.ready_at)


_UNQUEUED = frozenset({Overlap.SKIP, Overlap.ALLOW})


@dataclass(frozen=True, slots=True)
class Terms:
    """Common part of drafts that differ only in run and job, computed once for all of them."""

    generation: int
    worker: str
    incarnation: IncarnationId | None
    """None: the run is a broadcast, which no worker gets."""
    overlap: Overlap
    overlap_limit: int
    """The highest number of admitted runs of the job at once; 0: no limit (`allow`)."""
    counted: bool = False
    """Whether the schedule has `max_runs`. Then a skipped run stops counting against it."""
    pool: PoolKey = NO_POOL
    targets: tuple[str, ...] = ()
    """The names of a broadcast's workers. `worker` is empty then."""
    limited: bool = False
    """Whether the job has a `run_timeout`. It counts from the creation, which the row has."""
    start_by_after: timedelta = timedelta(seconds=5)
    plain: bool = field(init=False, compare=False)
    """Whether only a running run of its job may keep a new run from its dispatch: it has no pool,
    no quota, no queue and no time limit.
    """

    def __post_init__(self) -> None:
        limited = self.pool or self.counted or self.targets or self.limited
        plain = not limited and self.overlap in _UNQUEUED
        self.plain = plain  # type: ignore[misc]  # frozen for others


@dataclass(frozen=True, slots=True)
class Draft:
    """An assignment that an owner proposes. The dispatch statement decides."""

    run: LiveRun
    shard: ShardId
    terms: Terms

    @property
    def key(self) -> RunKey:
        return self.run.key

    @property
    def job_id(self) -> JobId:
        return self.run.job_id

    @property
    def said(self) -> Overlap | None:
        """The overlap policy in the run's row. It has priority over the job's."""
        return self.run.overlap

    @property
    def parent(self) -> RunId | None:
        """The broadcast's run, if this run is a child of it."""
        return self.run.parent


@dataclass(frozen=True, slots=True, eq=False)
class SlotBatch:
    """Common part of timers that take one step, and whose runs go to one worker."""

    step: Firing
    """The step of one of these timers, or of another with the same schedule and times: one run.
    That timer's job may have another priority.
    """
    priority: Priority
    terms: Terms
    """Of the timers' generation."""


class FiringToSlot(NamedTuple):
    """A timer whose run goes to a free slot in the statement that advances the timer."""

    timer: Timer
    job_id: JobId
    shard: ShardId
    key: RunKey
    """The key of its run."""
    batch: SlotBatch


@dataclass(frozen=True, slots=True)
class OverlapCandidates:
    """A job with more than one live run."""

    job_id: JobId
    shard: ShardId
    generation: int
    overlap: Overlap
    as_of: datetime
    """Runs that are ready at this time count as waiting, even if the database's clock is behind."""
    counted: bool = False
    """As in `Terms`."""
    ending: tuple[RunId, ...] | None = None
    """Waiting runs that are about to end by their definition: they cause no skips. None: no scan
    has read the job's waiting runs, so no waiting run causes a skip.
    """


SMALL_PAYLOAD = 2_000
"""Bytes of a payload that is read and sent with those of other runs."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """A committed assignment, which may be sent to its worker."""

    run: LiveRun
    payload: bytes | None
    """The run's own payload (serialized `Payload`), from its trigger. None: the definition's."""


@dataclass(frozen=True, slots=True, eq=False)
class DispatchedBatch:
    """Committed assignments to one worker that are sent in one message: they differ only in run,
    job, token and payload. Columns have the same length.
    """

    first: LiveRun
    """The first run, as dispatched."""
    runs: Sequence[LiveRun]
    """The runs: all as dispatched, or all as they waited for their first attempts."""
    tokens: Sequence[Token]
    payloads: Sequence[bytes] = ()
    """The runs' own payloads. Empty: the definition's."""
    places: dict[RunId, int] = field(init=False)
    """Index of each run in the columns."""

    def __post_init__(self) -> None:
        places = {run.key.run_id: place for place, run in enumerate(self.runs)}
        self.places = places  # type: ignore[misc]  # frozen for others

    @staticmethod
    def of(runs: Sequence[LiveRun], *payloads: bytes) -> "DispatchedBatch":
        return DispatchedBatch(runs[0], runs, [run.token for run in runs], payloads)

    def run(self, place: int) -> LiveRun:
        run = self.runs[place]
        if self.runs[0] is self.first:
            return run
        return replace(
            self.first,
            key=run.key,
            job_id=run.job_id,
            shard=run.shard,
            priority=run.priority,
            due_at=run.due_at,
            ready_at=run.ready_at,
            token=self.tokens[place],
            created_at=run.created_at,
        )

    def with_payloads(self, payloads: Mapping[RunId, bytes]) -> list["DispatchedBatch"]:
        """Return these assignments with the runs' own payloads. A large payload is sent alone."""
        parts: dict[tuple[bool, int | None], list[int]] = {}
        for run_id, place in self.places.items():
            payload = payloads.get(run_id)
            alone = payload is not None and len(payload) > SMALL_PAYLOAD
            parts.setdefault((payload is None, place if alone else None), []).append(place)
        return [
            DispatchedBatch(
                self.run(part[0]),
                [self.runs[place] for place in part],
                [self.tokens[place] for place in part],
                () if none else [payloads[self.runs[place].key.run_id] for place in part],
            )
            for (none, _), part in parts.items()
        ]

    def single(self) -> list[Assigned]:
        payloads = self.payloads or repeat(None)
        runs = map(self.run, range(len(self.runs)))
        return [Assigned(*each) for each in zip(runs, payloads, strict=False)]


def alike(run: LiveRun, terms: Terms) -> tuple[object, ...]:
    """Return a value that is equal for dispatched runs that one batch may contain: those without
    payloads. A `run_timeout` leaves each run a time of its own.
    """
    early = run.start_by is not None and run.start_by - terms.start_by_after == run.ready_at
    return id(terms), run.attempt, run.start_by, early, terms.limited and run.key.run_id


@dataclass(frozen=True, slots=True)
class ResultDecision:
    """A worker's result for one token, and the accepting member's decision (`retry.py`)."""

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
    """Whether the attempt counts. False: the worker returned or rejected it, which costs none."""
    lost: bool = False
    """Whether the attempt had started and was lost. It then counts as one of the run's losses."""
    dead: bool = False
    """Whether the run becomes a dead letter."""
    pause_after: int = 0
    """Consecutive failures that pause the job; 0: never."""
    fingerprint: str = ""
    notices: Notices | None = None
    late: bool = False
    """Whether the run started late, by the job's `on_late`."""
    at_most_once: bool = False
    """Whether the job is `at_most_once`. Its run isn't retried if a database that was lost may
    have retried it already.
    """
    result: bytes | None = None
    """Serialized `StoredResult`. A small result is in it as a `Payload`."""
    output: bytes | None = None
    """Serialized `Output`."""
    stored: bool = False
    """Whether the result store may hold the attempt's log or result."""
    audited: bool = True
    """False: a stale result is audited only if its token was ever assigned."""


class Verdict(StrEnum):
    ACCEPTED = "ACCEPTED"
    CANCELLED = "CANCELLED"
    """Accepted. The run ends CANCELLED: it was canceled, or its job was deleted."""
    REPEATED = "REPEATED"
    """The same token and digest are stored. The lost acknowledgement is sent again."""
    STALE = "STALE"
    """Rejected and audited. Nothing changed."""


@dataclass(frozen=True, slots=True)
class Incarnation:
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
    """The namespaces whose runs its certificate allows; None: all."""

    def may_work_for(self, namespace: str) -> bool:
        return self.namespaces is None or namespace in self.namespaces


@dataclass(frozen=True, slots=True)
class Loss:
    """A run whose worker is lost, and its next state: RETRYING for `wait`, FAILED or CANCELLED."""

    key: RunKey
    shard: ShardId
    token: Token
    incarnation: IncarnationId
    state: State
    reason: Reason | None
    dead: bool = False
    pause_after: int = 0
    fingerprint: str = ""
    notices: Notices | None = None
    wait: timedelta = timedelta(0)
    """The wait before the retry, while the lost worker may kill it (`on_lease_lost: kill`)."""


@dataclass(frozen=True, slots=True)
class ShardRow:
    id: ShardId
    owner: TenureId | None
    epoch: Epoch
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class Tenure:
    """A member's unbroken membership in the cluster."""

    id: TenureId
    member: str
    opened_at: datetime
    fenced_at: datetime | None = None
    grpc: str = field(default="", compare=False)
    http: str = field(default="", compare=False)
    version: str = field(default="", compare=False)
    """The member's addresses and version, for lists of lost members."""
    prefix: Id | None = field(default=None, compare=False)
    """Id of its etcd prefix (`core/cluster/prefix_owner.py`)."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """Actors that are members or workers are written as objects: `member/m1`, `worker/w1`."""

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
