"""What is known of the cluster when it is looked at, all in one value."""

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime, timedelta

from schedd.core.cluster.cluster_events import LOST_FOR, Losses
from schedd.core.cluster.membership import ClusterView, MemberView
from schedd.core.cluster.shard_map import NO_TIMELINE
from schedd.core.ids import Timeline
from schedd.core.runs.model import AuditEntry, ShardRow
from schedd.core.timers.cluster_pauses import Pause
from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class EtcdEndpoint:
    """One endpoint of etcd. `away`: why it didn't answer. `size`, `in_use` in bytes; `took` in
    seconds.
    """

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
    """All endpoints, and when revisions were last seen to go back."""

    endpoints: tuple[EtcdEndpoint, ...] = ()
    went_back: datetime | None = None


@dataclass(frozen=True, slots=True)
class Replica:
    """A standby. `lag` in bytes."""

    name: str
    state: str
    sync: str
    lag: int


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table's rows, by PostgreSQL's statistics."""

    name: str
    live: int
    dead: int


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """PostgreSQL, as the daemons' role sees it. Bytes and seconds; None: the role may not know."""

    version: int
    settings: Mapping[str, str]
    in_recovery: bool = False
    timeline: Timeline = NO_TIMELINE
    lacks: str = ""
    """Privileges that the role lacks, and the SQL that gives them."""
    timeline_given: bool = True
    """Whether the server gives its timeline; some managed services don't."""
    ends_sessions: bool = True
    """Whether the role may end sessions of its own that block a fencer."""
    connections: int = 0
    replicas: tuple[Replica, ...] = ()
    idle_slots: tuple[str, ...] = ()
    """Replication slots that nobody reads."""
    oldest_transaction: float = 0.0
    held_back: int = 0
    """Transactions since the oldest one that vacuum must respect began."""
    wal: int | None = None
    tables: tuple[TableFacts, ...] = ()
    age: int = 0
    """Transactions since the oldest row of the database was frozen."""
    schema: str = ""
    wanted_schema: str = ""
    schema_admits: bool = False
    """It is newer than this member, and says that this one may work on it."""
    schemas: tuple[str, ...] = ()
    """Schemas in which the search path finds schedd's tables. More than one: they are mixed."""
    copies: tuple[str, ...] = ()
    """Schemas that have all of schedd's tables."""
    missing_days: int = 0
    """Of today and tomorrow, without a partition of `runs`."""
    took: float = 0.0


@dataclass(frozen=True, slots=True)
class FailedDependency:
    """What a member says of a dependency that fails. `since` is by its wall clock."""

    dependency: str
    cause: str
    remedy: str
    since: datetime


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """A member: what it registered, and what it says itself. `away`: why it said nothing."""

    view: MemberView
    away: str = ""
    wall_offset: timedelta = timedelta(0)
    """Of its host's wall clock, less cluster time as the asking member has it."""
    cluster_offset: timedelta = timedelta(0)
    """Of its own idea of cluster time, less that of the asking member."""
    certificate_until: datetime | None = None
    database_away: float = 0.0
    trusted: bool = True
    failures: tuple[FailedDependency, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockedLoop:
    """An event loop of a worker that a handler has blocked for so many seconds, at this place."""

    handler: str
    run: str
    seconds: float
    place: str


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """A worker, as it was heard last."""

    name: str
    version: str
    draining: bool = False
    spool: int = 0
    disk_free: int = 0
    """0: it didn't say, or none are."""
    refuses: str = ""
    """Why it asks for no new work though it isn't draining, in words."""
    blocked: tuple[BlockedLoop, ...] = ()


@dataclass(frozen=True, slots=True)
class StuckJob:
    """A job whose runs wait although no worker can run them. `need`: what a worker must have.
    `could`: lost workers that have it; `draining`: live ones that have it and take no new work.
    """

    name: str
    runs: int
    since: datetime
    need: str
    could: tuple[str, ...] = ()
    draining: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FailingJob:
    """A job whose last runs failed, so many times in a row, or `more`."""

    name: str
    times: int
    more: bool = False


@dataclass(frozen=True, slots=True)
class GrowingQueue:
    """A job with many waiting runs; `made` and `ended`: in the last 10 minutes."""

    name: str
    runs: int
    made: int
    ended: int


@dataclass(frozen=True, slots=True)
class WorkFacts:
    """Losses within `kept`, and how the work stands. `oldest`: when the first of the ready runs
    became ready; None: none waits for long.
    """

    losses: Losses = field(default_factory=Losses)
    kept: timedelta = LOST_FOR
    stuck: tuple[StuckJob, ...] = ()
    oldest: datetime | None = None
    failing: tuple[FailingJob, ...] = ()
    growing: tuple[GrowingQueue, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """All of it. `database` as text: why it couldn't be read."""

    now: datetime
    version: str
    view: ClusterView
    etcd: EtcdFacts
    database: DatabaseFacts | str
    rows: tuple[ShardRow, ...] = ()
    pause: Pause | None = None
    members: tuple[MemberFacts, ...] = ()
    workers: tuple[WorkerFacts, ...] = field(default=())
    """Attached to the asking member."""
    elsewhere: tuple[WorkerFacts, ...] = ()
    """Those that live by etcd and another member hears."""
    unheard: tuple[str, ...] = ()
    """Those that live by etcd, and no member that answers hears."""
    results_away: str = ""
    """Why the result store didn't answer the asking member."""
    twins: tuple[AuditEntry, ...] = ()
    """Daemons that were turned away of late, for another serves under their name; newest first."""
    failures: tuple[FailedDependency, ...] = ()
    """Of the asking member, which may have no tenure and so be in no view."""
    trusted: bool = True
    """Whether the asking member's lease is, so that the view is no old one."""
    foreign: tuple[str, ...] = ()
    """Members with another etcd prefix that used this database of late."""
    work: WorkFacts | str = field(default_factory=WorkFacts)
    """As text: why it couldn't be read."""
