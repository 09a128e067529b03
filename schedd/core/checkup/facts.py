"""All facts about the cluster that the doctor examines, as one value."""

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime, timedelta

from schedd.core.cluster.cluster_events import LOST_FOR, Losses
from schedd.core.cluster.dependency import DependencyFailure
from schedd.core.cluster.membership import ClusterView, MemberView
from schedd.core.cluster.shard_map import NO_TIMELINE
from schedd.core.ids import IncarnationId, JobId, Timeline
from schedd.core.runs.model import AuditRecord, ShardRow
from schedd.core.runs.records import SlotHolder, WorkerView
from schedd.core.timers.cluster_pauses import Pause
from schedkit.records import dataclass, replace


@dataclass(frozen=True, slots=True)
class EtcdEndpoint:
    """`away`: why it didn't answer. `size`, `in_use` in bytes; `problems`: its alarms."""

    endpoint: str
    away: str = ""
    version: str = ""
    size: int = 0
    in_use: int = 0
    leads: bool = False
    has_leader: bool = True
    problems: tuple[str, ...] = ()
    took: float = 0.0


@dataclass(frozen=True, slots=True)
class EtcdFacts:
    """All endpoints. `went_back`: when revisions were last seen to go back; None: never.
    `unread`: why the keys can't be read now, with what to do if etcd rejects the read.
    """

    endpoints: tuple[EtcdEndpoint, ...] = ()
    went_back: datetime | None = None
    unread: str = ""
    unread_remedy: str = ""


@dataclass(frozen=True, slots=True)
class Replica:
    """A standby. `lag` in bytes. `state` is empty if the role may not see it."""

    name: str
    state: str
    sync: str
    lag: int


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Live and dead rows of a table, from PostgreSQL's statistics."""

    name: str
    live: int
    dead: int


@dataclass(frozen=True, slots=True)
class DatabaseSession:
    """A session of PostgreSQL, by the columns that every role may read."""

    pid: int
    user: str = ""
    application: str = ""

    def __str__(self) -> str:
        application = f", application {self.application}" if self.application else ""
        return f"pid {self.pid} (user {self.user or 'unknown'}{application})"


@dataclass(frozen=True, slots=True)
class HeldLock:
    """Locks of a session on schedd's tables that statements of schedd conflict with."""

    session: DatabaseSession
    tables: tuple[str, ...]
    modes: tuple[str, ...]
    """PostgreSQL's lock modes; empty: locks of rows that another session waits for."""
    granted: bool
    """False if the session itself waits, and other statements queue behind it."""
    since: datetime | None
    """When its transaction began; None: the role may not see that."""


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """PostgreSQL, as the daemons' role sees it. Sizes in bytes, times in seconds. None: the role
    lacks the permission.
    """

    version: int
    settings: Mapping[str, str]
    in_recovery: bool = False
    timeline: Timeline = NO_TIMELINE
    lacks: str = ""
    """The privileges that the role lacks, and in further lines the SQL that grants them."""
    timeline_given: bool = True
    """Whether the server reports its timeline. Some managed services don't."""
    ends_sessions: bool = True
    """Whether the role may end its own sessions, if they block a takeover."""
    connections: int = 0
    replicas: tuple[Replica, ...] = ()
    idle_slots: tuple[str, ...] = ()
    oldest_transaction: float = 0.0
    hidden: tuple[DatabaseSession, ...] = ()
    """Sessions of other roles with an open transaction whose age the role may not see."""
    user: str = ""
    """The daemons' role, quoted as in SQL."""
    held_back: int = 0
    """Transactions that began after the oldest one that vacuum must respect."""
    wal: int | None = None
    tables: tuple[TableFacts, ...] = ()
    age: int = 0
    """Transactions since the oldest row of the database was frozen."""
    schema: str = ""
    wanted_schema: str = ""
    schema_admits: bool = False
    """Whether the schema is newer than this member and allows this member's version."""
    schemas: tuple[str, ...] = ()
    """Schemas in which the search path finds schedd's tables. More than one: they are mixed."""
    copies: tuple[str, ...] = ()
    """Schemas that have all of schedd's tables."""
    missing_days: int = 0
    """How many of today and tomorrow have no partition of `runs`."""
    took: float = 0.0


@dataclass(frozen=True, slots=True)
class FailedRead:
    """A failed read of facts. `reason`: a snake_case word. `remedy` is empty if none is known."""

    cause: str
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """`away`: why it didn't answer."""

    view: MemberView
    away: str = ""
    wall_offset: timedelta = timedelta(0)
    """The host's wall clock minus the asking member's cluster time."""
    cluster_offset: timedelta = timedelta(0)
    """The member's cluster time minus the asking member's cluster time."""
    certificate_expires_at: datetime | None = None
    seconds_since_database: float = 0.0
    trusted: bool = True
    failures: tuple[DependencyFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockedLoop:
    """An event loop of a worker that a handler has blocked for `seconds`, at `place`."""

    handler: str
    run: str
    seconds: float
    place: str


@dataclass(frozen=True, slots=True)
class StuckJob:
    """A job whose runs wait although no worker can run them."""

    name: str
    runs: int
    since: datetime
    need: str
    could: tuple[str, ...] = ()
    """Lost workers that meet it."""
    draining: tuple[str, ...] = ()
    """Draining workers that meet it."""
    plugin: str = ""
    """The plug-in that it needs, if no worker has it."""


@dataclass(frozen=True, slots=True)
class FailingJob:
    """A job whose last `times` runs failed; `more`: there may be more failures."""

    job_id: JobId
    times: int
    more: bool
    name: str = ""


@dataclass(frozen=True, slots=True)
class GrowingQueue:
    """A job with many waiting runs. `made` and `ended` count runs of the last 10 minutes."""

    job_id: JobId
    runs: int
    made: int
    ended: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class FullWorkers:
    """Workers without a free slot, and the runs that wait only for them."""

    jobs: tuple[tuple[str, str], ...]
    """Namespace and name of each job with such a run (no name: submitted work)."""
    since: datetime
    """When the oldest of the runs became ready."""
    workers: tuple[str, ...]
    used: int
    slots: int
    holders: tuple[SlotHolder, ...] = ()
    """The running runs on these workers, by job; those that started first are in front."""

    @property
    def stuck(self) -> tuple[SlotHolder, ...]:
        """The holders that have kept slots for as long as the oldest run has waited."""
        return tuple(one for one in self.holders if one.since <= self.since)

    def visible_in(self, namespace: str) -> "FullWorkers":
        """Return it without the names of jobs of other namespaces."""
        return replace(
            self,
            jobs=tuple(job for job in self.jobs if job[0] == namespace),
            holders=tuple(one for one in self.holders if one.namespace == namespace),
        )


@dataclass(frozen=True, slots=True)
class WorkFacts:
    losses: Losses = field(default_factory=Losses)
    kept: timedelta = LOST_FOR
    """How far back losses are listed."""
    returned_members: int = 0
    """Losses of members within `kept` that ended with a return."""
    returned_workers: int = 0
    stuck: tuple[StuckJob, ...] = ()
    oldest: datetime | None = None
    """When the oldest ready run became ready; None: no run waits for long."""
    full: tuple[FullWorkers, ...] = ()
    failing: tuple[FailingJob, ...] = ()
    growing: tuple[GrowingQueue, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    now: datetime
    version: str
    view: ClusterView
    etcd: EtcdFacts
    database: DatabaseFacts | FailedRead
    unread: FailedRead | None = None
    """Why schedd's own tables couldn't be read, although `database` could."""
    locks: tuple[HeldLock, ...] | FailedRead = ()
    """Long locks of other sessions on schedd's tables."""
    rows: tuple[ShardRow, ...] = ()
    pause: Pause | None = None
    members: tuple[MemberFacts, ...] = ()
    workers: tuple[WorkerView, ...] = field(default=())
    blocked: Mapping[IncarnationId, tuple[BlockedLoop, ...]] = field(default_factory=dict)
    elsewhere: tuple[WorkerView, ...] = ()
    """Workers with a lease whose heartbeats another member receives."""
    heartbeats_missing: tuple[str, ...] = ()
    """Workers with a lease whose heartbeats no answering member receives."""
    results_away: str = ""
    """Why the result store didn't answer the asking member."""
    duplicates: tuple[AuditRecord, ...] = ()
    """Recent rejections of daemons whose name is taken; newest first."""
    failures: tuple[DependencyFailure, ...] = ()
    """Failing dependencies of the asking member. It may have no tenure, and so be in no view."""
    trusted: bool = True
    """Whether the asking member's lease is trusted. If not, the view may be old."""
    foreign: tuple[str, ...] | None = ()
    """Members with another etcd prefix that recently used this database; None: unknown."""
    work: WorkFacts | FailedRead = field(default_factory=WorkFacts)

    @property
    def outdated(self) -> bool:
        """Whether the view may be old: no check may call it ok then."""
        return not self.trusted or bool(self.etcd.unread)
