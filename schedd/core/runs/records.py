"""Records: plain values that the ports exchange with the store. `StoreConflict` is one of them,
since a conflict is a normal answer. Runs are in `run_records`, backfills in `core/timers/backfill`.
"""

from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, TypeAlias

from schedd.core.cluster.data_loss_check import Mark
from schedd.core.dispatch.ready_bucket_ids import LineId
from schedd.core.ids import IncarnationId, JobId, RedriveId, RunId, ShardId, Timeline, Token
from schedd.core.jobs.definition import Priority
from schedd.core.runs.model import (
    Assigned,
    AuditRecord,
    DispatchedBatch,
    Incarnation,
    LiveRun,
    NewRun,
    RunKey,
    Terms,
)
from schedd.core.runs.redrive import LetterOutcome
from schedd.core.runs.run_records import RunRecord
from schedkit.records import dataclass, replace


@dataclass(frozen=True, slots=True)
class DatabaseProbe:
    now: datetime
    timeline: Timeline
    in_recovery: bool
    mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class PinnedCalendar:
    """The version of a calendar that a job uses; `spec`: serialized `Calendar`."""

    name: str
    version: int
    spec: bytes


@dataclass(frozen=True, slots=True)
class CalendarRecord:
    """A version of a calendar. `jobs`: jobs that use it; `behind`: those that use an older version
    than the newest.
    """

    namespace: str
    name: str
    version: int
    spec: bytes
    updated_at: datetime
    updated_by: str
    jobs: int = 0
    behind: int = 0


class StoredText(NamedTuple):
    """The part of a stored definition on which everything but the job's id and name depends."""

    spec: bytes
    namespace: str
    generation: int
    ephemeral: bool = False
    calendars: tuple[PinnedCalendar, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredDefinition:
    """A stored definition. `spec` is a serialized `schedd.v1.Job`."""

    job_id: JobId
    generation: int
    namespace: str
    name: str
    spec: bytes
    paused: bool
    deleted: bool = False
    ephemeral: bool = False
    """Whether a submit created it. It has no name and is deleted with its run."""
    calendars: tuple[PinnedCalendar, ...] = ()
    """The calendars that its `exclude` names, in the versions that its times are computed with."""
    pool: str = ""
    after: tuple[str, ...] = ()
    """The parents' names, for writes only: on reads they are in `spec`."""
    retention: timedelta | None = None
    line: LineId | None = field(default=None, compare=False)
    """The bucket id, for writes only: on reads it is computed from `spec`."""
    idle: bool = False
    """Whether the timer has no next time (on demand, ended), if that was read."""

    @property
    def text(self) -> StoredText:
        return StoredText(
            self.spec, self.namespace, self.generation, self.ephemeral, self.calendars
        )


NEVER_EDITED: Final = datetime.max.replace(tzinfo=UTC)
"""No run of an earlier generation was due after it."""
JobOfText: TypeAlias = tuple[JobId, str, datetime]
"""A job that has a text: its id, its name, and when its generation was created (`NEVER_EDITED` for
the first one).
"""


@dataclass(frozen=True, slots=True)
class FireOutcome:
    runs: list[LiveRun]
    """The live runs that were inserted, waiting or dispatched."""
    refused: list[JobId]
    """Timers that changed meanwhile and didn't advance. Read them again."""
    lost: frozenset[ShardId]
    """Shards that the claimant no longer owns."""
    broken: list[JobId] = field(default_factory=list)
    """Timers whose data the database rejects. A retry would fail in the same way."""


@dataclass(frozen=True, slots=True)
class Assignments:
    batches: list[DispatchedBatch]
    ended: list[RunKey]
    """Runs that the statement skipped for overlap."""
    waiting: list[RunKey]
    """Runs not assigned because of a pause, a newer generation or a newer state. Read them again.
    """
    lost: frozenset[ShardId]
    broken: list[RunKey] = field(default_factory=list)
    """Runs whose data the database rejects. A retry would fail in the same way."""
    held: list[RunKey] = field(default_factory=list)
    """Runs not assigned because other runs of their jobs block them."""
    full: list[RunKey] = field(default_factory=list)
    """Runs not assigned because their pools are full."""
    begun: list[LiveRun] = field(default_factory=list)
    """Broadcasts that started, and their children."""

    @property
    def assigned(self) -> list[Assigned]:
        return [one for batch in self.batches for one in batch.single()]


@dataclass(frozen=True, slots=True)
class OverlapOutcome:
    ended: list[tuple[RunKey, JobId]]
    """PENDING and RETRYING runs that ended."""
    cancelled: list[LiveRun]
    """Running runs whose workers must be notified, except those already notified."""
    skipped: int = 0
    """How many of `ended` were skipped: buffer full, or behind a waiting run. The others were
    replaced.
    """
    overlapped: int = 0
    """How many of `skipped` were behind a waiting run (`overlap: skip`)."""


@dataclass(frozen=True, slots=True)
class Unstarted:
    """An assignment that never started. The run returns to its earlier state; no attempt counts."""

    key: RunKey
    shard: ShardId
    token: Token
    sender: IncarnationId | None = None
    """The incarnation that reports it; it must be the assigned one. None: the owner reports it."""


@dataclass(frozen=True, slots=True)
class WaitingRun:
    """A live run of a restored database. `doubtful`: it waits, but may have run in the lost one."""

    key: RunKey
    job_id: JobId
    shard: ShardId
    doubtful: bool


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A caller's idempotency key. The same key and digest give the same id for 24 h."""

    namespace: str
    key: str
    call: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class StoreConflict:
    """A write that the store rejected. `what` names the conflict:

    - `name`: the name is taken.
    - `key`: the idempotency key was used for another body.
    - `etag`: the job or pool changed meanwhile.
    - `calendar`: a calendar has a newer version.
    - `pool`: the pool doesn't exist.
    - `line`: the job has too many live runs.
    - `payload`: the dead letter was run again with another payload.
    - `letters`: there are more dead letters than the request allows.
    """

    what: str
    job_id: JobId | None = None


@dataclass(frozen=True, slots=True)
class Deletion:
    cancelled: int
    """The number of waiting runs that the deletion canceled."""


@dataclass(frozen=True, slots=True)
class ChainRefused:
    """Why a job can't run after others, or can't be deleted. `what` names the problem:

    - `parent`: a parent isn't found.
    - `cycle`: the graph would have a cycle.
    - `ancestors`: the job would have too many ancestors.
    - `child`: the job to delete has children.
    """

    what: str
    names: str
    """The names of the jobs, or the path of the cycle; for `ancestors` the limit."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A stored definition with its timer and the last changes."""

    definition: StoredDefinition
    shard: ShardId
    due_at: datetime | None
    nominal: datetime | None
    pause_note: str
    paused_by: str
    created_at: datetime
    created_by: str
    updated_at: datetime
    paused_at: datetime | None = None
    paused_until: datetime | None = None
    fired: int = 0
    """The number of runs that count against `max_runs`. Skipped runs don't count."""
    early: tuple[datetime, ...] = ()
    """Future scheduled times whose runs already exist, in order."""


@dataclass(frozen=True, slots=True)
class Create:
    """A new job. `template` is the record of the first of equal requests. Their jobs differ in the
    fields given here; their audit entries in object and source.
    """

    template: JobRecord
    job_id: JobId
    name: str
    shard: ShardId
    created_at: datetime
    key: Idempotency | None
    entry: AuditRecord

    @staticmethod
    def first(record: JobRecord, key: Idempotency | None, entry: AuditRecord) -> "Create":
        new = record.definition
        return Create(record, new.job_id, new.name, record.shard, record.created_at, key, entry)

    @property
    def record(self) -> JobRecord:
        return replace(
            self.template,
            definition=replace(self.template.definition, job_id=self.job_id, name=self.name),
            shard=self.shard,
            created_at=self.created_at,
            updated_at=self.created_at,
        )

    @property
    def plain(self) -> bool:
        """Whether the job depends on no stored rows except its key and its name."""
        new = self.template.definition
        paused = new.paused or self.template.paused_until is not None
        return not (new.pool or new.calendars or new.after or new.ephemeral or paused)

    @property
    def size(self) -> int:
        return 500 + len(self.template.definition.spec) + len(self.entry.after)


@dataclass(frozen=True, slots=True)
class Submit:
    record: JobRecord
    run: NewRun
    key: Idempotency | None
    entry: AuditRecord
    priority: Priority
    payload: bytes | None = None
    """Serialized `Payload`; None: the run has none."""

    @property
    def plain(self) -> bool:
        """Whether the run depends on no stored rows except its key: no pool, calendar or parent."""
        new = self.record.definition
        return not (new.pool or new.calendars or new.after)

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        return 500 + len(self.record.definition.spec) + len(self.payload or b"")


@dataclass(frozen=True, slots=True)
class SubmitToSlot:
    """A submit of a batch whose run goes to a free slot in the same transaction."""

    place: int
    """Its place in the batch."""
    shard: ShardId
    terms: Terms


@dataclass(frozen=True, slots=True)
class SubmitOutcome:
    records: dict[int, RunRecord]
    """The stored runs, waiting or dispatched, by the place of their submit. The other calls need
    their own transaction.
    """
    lost: frozenset[ShardId]
    """Shards that the claimant no longer owns. Their runs are stored, but not dispatched."""


@dataclass(frozen=True, slots=True)
class TimerEdit:
    """A change of a job's timer. Pairs are (due_at, nominal); both None: nothing is due."""

    reset: tuple[datetime | None, datetime | None] | None = None
    """The new values; None: the timer keeps its values."""
    restart: tuple[datetime | None, datetime | None] | None = None
    """The new values if nothing was due: `max_runs` was reached, and may be higher now."""
    max_runs: int = 0
    """The definition's `max_runs`. After that many runs nothing is due."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """The end of a job's pause at `until`, written by the job's owner."""

    job_id: JobId
    shard: ShardId
    generation: int
    """The generation that the timer was computed with. At another generation nothing changes."""
    until: datetime
    timer: TimerEdit
    skipped: NewRun | None
    entry: AuditRecord


@dataclass(frozen=True, slots=True)
class FailedTooOften:
    """The automatic pause of a job after too many consecutive failures."""

    job_id: JobId
    shard: ShardId
    generation: int
    most: int
    """The consecutive failures that pause the job, by its newest definition; 0: never."""
    note: str
    """The note of the pause; empty: the job isn't paused."""
    entry: AuditRecord


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    run: RunRecord
    fingerprint: str
    died_at: datetime
    resolved: LetterOutcome | None = None
    """The outcome. None: the letter still waits."""
    resolved_at: datetime | None = None
    resolved_by: str = ""
    became: RunId | None = None
    """The new run that a redrive created from it."""
    redrive: RedriveId | None = None
    """The redrive that runs it again, or has."""
    note: str = ""
    """Why it was discarded."""


@dataclass(frozen=True, slots=True)
class DeadLetterGroupRecord:
    """The waiting dead letters of one job with one kind of error. `run_id` is the newest of them;
    the group shows its error. For `submitted` runs, `job` is their name, which may be empty.
    """

    fingerprint: str
    namespace: str
    job: str
    count: int
    queued: int
    """Dead letters that are queued for a redrive."""
    first_died_at: datetime
    last_died_at: datetime
    run_id: RunId
    reason: str | None
    exit_code: int | None
    error: str
    submitted: bool


@dataclass(frozen=True, slots=True)
class Counts:
    jobs: int
    pending: int
    running: int
    retrying: int
    dead_letters: int


@dataclass(frozen=True, slots=True)
class WaitingRuns:
    """Waiting runs of a job that may start, for one worker (`target`) or for any (None)."""

    job_id: JobId
    target: str | None
    runs: int
    since: datetime


@dataclass(frozen=True, slots=True)
class SlotHolder:
    """Running runs of a job on a worker, `since` the first start. No `name`: submitted work."""

    worker: str
    namespace: str
    name: str
    runs: int
    since: datetime


@dataclass(frozen=True, slots=True)
class Drain:
    worker: str
    at: datetime
    by: str
    reason: str


SILENT_AFTER: Final = 7.5
"""Seconds without a heartbeat after which nothing is dispatched: three default intervals."""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker, as seen by the member that received its last heartbeat."""

    incarnation: Incarnation
    draining: bool
    free: int
    running: int
    lease_age: float
    """Seconds since the worker's last keepalive of its lease, as it reports."""
    spool: int = 0
    """Bytes in its spool."""
    disk_free: int = 0
    """Free bytes on the disk of its spool; 0: not reported, or none."""
    refusal_reason: str = ""
    """Why the worker takes no new runs although it isn't draining, as text."""
    unstored_results: int = 0
    silent: float = 0.0
    """Seconds since its last heartbeat."""
    heartbeats_missing: bool = False
    """Whether no member receives its heartbeats. Then its runs aren't known."""

    @property
    def speaks(self) -> bool:
        """Whether a heartbeat was received recently enough to dispatch to the worker."""
        return not self.heartbeats_missing and self.silent <= SILENT_AFTER


def view_without_heartbeats(one: Incarnation) -> WorkerView:
    return WorkerView(
        one, draining=False, free=0, running=0, lease_age=0.0, heartbeats_missing=True
    )


@dataclass(frozen=True, slots=True)
class JobFilter:
    """A filter of jobs. A job must meet all conditions; an unset field matches all.

    - `name`: the name; `*` matches any characters.
    - `words`: parts of the name.
    - `pool`: the pool's name; empty for jobs without a pool.
    - `bytes_`: byte strings that the stored definition must contain. Other jobs may contain them by
      chance, so the caller checks the result.
    """

    name: str = ""
    words: tuple[str, ...] = ()
    paused: bool | None = None
    pool: str | None = None
    bytes_: tuple[bytes, ...] = ()

    @property
    def by_index(self) -> bool:
        """Whether an index finds the matching jobs, or all jobs match."""
        return self == ALL_JOBS or bool(self.pool) or (bool(self.name) and "*" not in self.name)


ALL_JOBS: Final = JobFilter()
