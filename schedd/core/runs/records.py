"""Records: what the ports hand to and fro, as people and loops see what is stored.

Plain values without behaviour. A refusal that a store gives is one of them (`StoreConflict`), for
it is a normal answer. Those of runs are in `run_records`, those of backfills in `backfill_records`.
"""

from __future__ import annotations

from dataclasses import field
from datetime import datetime, timedelta
from typing import Final

from schedd.core.cluster.data_loss_check import Mark
from schedd.core.dispatch.ready_bucket_ids import LineId
from schedd.core.ids import (
    IncarnationId,
    JobId,
    RedriveId,
    RunId,
    ShardId,
    Timeline,
    Token,
)
from schedd.core.jobs.definition import Priority
from schedd.core.runs.model import Assigned, AuditRecord, Incarnation, LiveRun, NewRun, RunKey
from schedd.core.runs.redrive import LetterOutcome
from schedd.core.runs.run_records import RunRecord
from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class Probe:
    """One look at the database: its clock, timeline and role, and where it stands."""

    now: datetime
    timeline: Timeline
    in_recovery: bool
    mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class PinnedCalendar:
    """A version of a calendar that a job is computed with; `spec`: serialised `Calendar`."""

    name: str
    version: int
    spec: bytes


@dataclass(frozen=True, slots=True)
class CalendarRecord:
    """A version of a calendar as people see it, and how many jobs use the calendar, how many of
    them by an earlier version than its newest.
    """

    namespace: str
    name: str
    version: int
    spec: bytes
    updated_at: datetime
    updated_by: str
    jobs: int = 0
    behind: int = 0


@dataclass(frozen=True, slots=True)
class StoredDefinition:
    """A definition as it is stored: `spec` is a serialised `schedd.v1.Job`."""

    job_id: JobId
    generation: int
    namespace: str
    name: str
    spec: bytes
    paused: bool
    deleted: bool = False
    ephemeral: bool = False
    """Made by a submit: it has no name of its own and goes with its run."""
    calendars: tuple[PinnedCalendar, ...] = ()
    """Those that its `exclude` names, as its instants are computed with them."""
    pool: str = ""
    after: tuple[str, ...] = ()
    """The jobs that it is to run after, where it is written; what is read says it in its spec."""
    retention: timedelta | None = None
    line: LineId | None = field(default=None, compare=False)
    """Where it is written; what is read says it by its spec."""
    updated_at: datetime | None = None
    """When this generation was made, where it was read for its owner."""
    idle: bool = False
    """Its timer has no instant to come, as those on demand never have; where that was read."""


@dataclass(frozen=True, slots=True)
class FireOutcome:
    """What a batch of firings did."""

    runs: list[LiveRun]
    """Inserted and live."""
    refused: list[JobId]
    """Timers that didn't advance: they changed meanwhile; read them again."""
    lost: frozenset[ShardId]
    """Shards that are no longer the claimant's."""
    broken: list[JobId] = field(default_factory=list)
    """Set aside: the database refuses their data. Trying them again gives the same."""


@dataclass(frozen=True, slots=True)
class Assignments:
    """What a batch of drafts did."""

    assigned: list[Assigned]
    ended: list[RunKey]
    """Ended in the statement: skipped for overlap."""
    waiting: list[RunKey]
    """Not assigned: pause, a newer generation or state; look at them again."""
    lost: frozenset[ShardId]
    broken: list[RunKey] = field(default_factory=list)
    """Set aside: the database refuses their data. Trying them again gives the same."""
    held: list[RunKey] = field(default_factory=list)
    """Not assigned, for other runs of their jobs are in the way."""
    full: list[RunKey] = field(default_factory=list)
    """Not assigned, for their pools have no room."""
    begun: list[LiveRun] = field(default_factory=list)
    """Broadcasts that have begun, and their children."""


@dataclass(frozen=True, slots=True)
class Parted:
    """The effect of overlap policies on runs."""

    ended: list[tuple[RunKey, JobId]]
    """Runs that waited, or waited for a retry."""
    cancelled: list[LiveRun]
    """Running runs whose workers must be notified; those already notified are left out."""
    skipped: int = 0
    """Of the ended: for a full buffer, or behind a waiting run. The others were replaced."""
    overlapped: int = 0
    """Of the skipped: behind a waiting run (`overlap: skip`)."""


@dataclass(frozen=True, slots=True)
class Unstarted:
    """An assignment that never started: back to where it came from, no attempt spent."""

    key: RunKey
    shard: ShardId
    token: Token
    sender: IncarnationId | None = None
    """The incarnation that says so: it must be the one that was meant. None: its owner knows."""


@dataclass(frozen=True, slots=True)
class WaitingRun:
    """A live run of a database that went back. `doubtful`: it waits, and may have run since."""

    key: RunKey
    job_id: JobId
    shard: ShardId
    doubtful: bool


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A caller's key: the same key and digest give the same id for 24 h."""

    namespace: str
    key: str
    call: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class StoreConflict:
    """A refusal: the name is taken, the key was used for another body, the etag is old, a calendar
    has a newer version, the pool isn't there, it was done with another payload, there are more
    letters than was said.
    """

    what: str
    """name, key, etag, calendar, pool, line, payload, letters"""
    job_id: JobId | None = None


@dataclass(frozen=True, slots=True)
class Deletion:
    """A job is deleted."""

    cancelled: int
    """Its runs that waited, and have ended by that."""


@dataclass(frozen=True, slots=True)
class ChainRefused:
    """Why a job can't run after others, or can't be deleted."""

    what: str
    """parent (not found), cycle, ancestors (too many), child (it has some)"""
    names: str
    """The names, or the path."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as people see it: the stored definition with its timer and its history's dates."""

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
    """Of `max_runs`: how many the schedule has made, those that were skipped left out."""
    early: tuple[datetime, ...] = ()
    """The instants to come whose runs are there already, in order."""


@dataclass(frozen=True, slots=True)
class Create:
    """What a call asks to be stored: a job."""

    record: JobRecord
    key: Idempotency | None
    entry: AuditRecord

    @property
    def plain(self) -> bool:
        """Whether it depends on nothing that is stored but its key and its name."""
        new = self.record.definition
        paused = new.paused or self.record.paused_until is not None
        return not (new.pool or new.calendars or new.after or new.ephemeral or paused)

    @property
    def size(self) -> int:
        """Bytes, about."""
        return 500 + len(self.record.definition.spec) + len(self.entry.after)


@dataclass(frozen=True, slots=True)
class Submit:
    """What a call asks to be stored: one-time work."""

    record: JobRecord
    run: NewRun
    key: Idempotency | None
    entry: AuditRecord
    priority: Priority

    @property
    def plain(self) -> bool:
        """Whether it depends on nothing that is stored but its key: no pool, no calendar."""
        new = self.record.definition
        return not (new.pool or new.calendars or new.after)

    @property
    def size(self) -> int:
        """Bytes, about."""
        return 500 + len(self.record.definition.spec)


@dataclass(frozen=True, slots=True)
class TimerEdit:
    """How a call leaves a job's timer. Pairs are (due_at, nominal), both None: nothing is due."""

    reset: tuple[datetime | None, datetime | None] | None = None
    """Where it stands from now on; None: where it stood."""
    restart: tuple[datetime | None, datetime | None] | None = None
    """Where it stands if nothing was due any more: `max_runs` were made, and may be more now."""
    max_runs: int = 0
    """As the definition says. Once so many were made nothing is due."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """A job whose pause has ended, as its owner resumes it."""

    job_id: JobId
    shard: ShardId
    generation: int
    """From which the rest was reckoned; at another one nothing happens."""
    until: datetime
    timer: TimerEdit
    skipped: NewRun | None
    entry: AuditRecord


@dataclass(frozen=True, slots=True)
class FailedTooOften:
    """A job that failed so often in a row, as its owner leaves it."""

    job_id: JobId
    shard: ShardId
    generation: int
    most: int
    """How many failures pause it, as its definition says now; 0: none are counted."""
    note: str
    """Of its pause; empty: it isn't paused for that."""
    entry: AuditRecord


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """A run that failed for good and waits for a person."""

    run: RunRecord
    fingerprint: str
    died_at: datetime
    resolved: LetterOutcome | None = None
    """Its outcome; None: it waits."""
    resolved_at: datetime | None = None
    resolved_by: str = ""
    became: RunId | None = None
    """The run that a redrive made of it."""
    redrive: RedriveId | None = None
    """The redrive that will run or ran it again."""
    note: str = ""
    """Why it was discarded."""


@dataclass(frozen=True, slots=True)
class DeadLetterGroupRecord:
    """The waiting dead letters of one job with one kind of error. `run_id`: the newest of them,
    whose error is shown. For `submitted` runs, `job` is their name, which may be empty.
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
    """The live work at a glance."""

    jobs: int
    pending: int
    running: int
    retrying: int
    dead_letters: int


@dataclass(frozen=True, slots=True)
class WaitingRuns:
    """Runs of a job, for one worker (`target`) or for any, that wait and might start."""

    job_id: JobId
    target: str | None
    runs: int
    since: datetime


@dataclass(frozen=True, slots=True)
class FailingRow:
    """A job whose last runs failed, so many times in a row, or `more`."""

    job_id: JobId
    times: int
    more: bool


@dataclass(frozen=True, slots=True)
class GrowingRow:
    """A job with many waiting runs; `made` and `ended`: in the last 10 minutes."""

    job_id: JobId
    runs: int
    made: int
    ended: int


@dataclass(frozen=True, slots=True)
class Drain:
    """A worker that is to take no new work until it is undrained."""

    worker: str
    at: datetime
    by: str
    reason: str


SILENT_AFTER: Final = 7.5
"""Seconds without a word, three heartbeats of the default, after which nothing more is pushed."""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker, as the member that received its last heartbeat sees it."""

    incarnation: Incarnation
    attached_here: bool
    draining: bool
    free: int
    running: int
    lease_age: float
    """Seconds since its lease was last refreshed, as the worker says."""
    spool: int = 0
    disk_free: int = 0
    """Bytes that its spool takes, and that are free on its disk; 0: it didn't say, or none are."""
    refuses: str = ""
    """Why it asks for no new work though it isn't draining, in words."""
    unstored: int = 0
    """Results that it has and no member has stored."""
    silent: float = 0.0
    """Seconds since its last heartbeat."""
    unheard: bool = False
    """No member receives its heartbeats: its registration is known, its runs aren't."""

    @property
    def speaks(self) -> bool:
        """Return whether a heartbeat was received recently enough to dispatch to it."""
        return not self.unheard and self.silent <= SILENT_AFTER


def unheard(one: Incarnation) -> WorkerView:
    """Return the view of a worker whose heartbeats no member receives."""
    return WorkerView(one, False, draining=False, free=0, running=0, lease_age=0.0, unheard=True)
