"""Events that loops emit. Only `schedd/telemetry/recorder.py` turns them into logs and metrics."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import StrEnum

from schedd.core.cluster.statistics import PoolStats
from schedd.core.ids import IncarnationId, JobId, RunId, ShardId, Token
from schedd.core.jobs.notifications import NotificationChannel
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import LiveRun
from schedkit.records import dataclass


class Event:
    """A report of a loop. Each kind is a subclass."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class TimersFired(Event):
    runs: int
    merged: int
    """Rows for scheduled times that don't run."""
    latenesses: Sequence[timedelta]
    """Time from due to inserted, for each run."""


@dataclass(frozen=True, slots=True)
class RunsMissed(Event):
    """Scheduled times became MISSED: they will never run."""

    reason: Reason
    count: int


@dataclass(frozen=True, slots=True)
class DeadRun:
    """`attempt`: the last one of the run; 0: it had none."""

    run: RunId
    job: JobId
    reason: Reason | None
    attempt: int


def dead_run(run: LiveRun, reason: Reason | None) -> DeadRun:
    return DeadRun(run.key.run_id, run.job_id, reason, run.attempt)


@dataclass(frozen=True, slots=True)
class DeadLettered(Event):
    runs: tuple[DeadRun, ...]


@dataclass(frozen=True, slots=True)
class AssignedRuns(Event):
    waits: Sequence[float]
    """Seconds from ready to dispatched, for each run; negative if pre-dispatched."""


@dataclass(frozen=True, slots=True)
class AttemptEnded(Event):
    """An attempt's result was accepted."""

    state: State
    reason: Reason | None
    lateness: timedelta | None
    """Time from due to the start of the handler; None: it never started."""
    duration: timedelta | None


@dataclass(frozen=True, slots=True)
class RunsSucceeded(Event):
    """A batch of plain successes was accepted. A value for each run, in seconds."""

    latenesses: Sequence[float]
    """Time from due to the start of the handler."""
    durations: Sequence[float]


@dataclass(frozen=True, slots=True)
class EndedUnreported(Event):
    """Runs ended, or changed state, without a result from a worker."""

    state: State
    reason: Reason | None
    count: int


@dataclass(frozen=True, slots=True)
class StaleResult(Event):
    """A result was rejected: the run has a greater token, or has ended already."""

    run: RunId
    token: Token
    worker: str
    known: bool = True
    """Whether the run exists."""


@dataclass(frozen=True, slots=True)
class RunsRescued(Event):
    runs: tuple[RunId, ...]
    incarnations: tuple[IncarnationId, ...]


@dataclass(frozen=True, slots=True)
class AssignmentsNotStarted(Event):
    """Assignments that running workers didn't start were given back."""

    runs: tuple[RunId, ...]


@dataclass(frozen=True, slots=True)
class AssignmentRejected(Event):
    reason: str
    worker: str
    run: RunId
    token: Token


@dataclass(frozen=True, slots=True)
class GreaterTokenSeen(Event):
    """A worker received a token below one it has seen for the run: an alarm. The owner takes the
    shard over again, which raises its epoch.
    """

    run: RunId
    token: Token
    greatest: Token
    worker: str


@dataclass(frozen=True, slots=True)
class WorkerAttached(Event):
    worker: str
    incarnation: IncarnationId


@dataclass(frozen=True, slots=True)
class WorkerDetached(Event):
    worker: str
    incarnation: IncarnationId


@dataclass(frozen=True, slots=True)
class ShardsLost(Event):
    """A transaction found that this member no longer owns these shards."""

    shards: frozenset[ShardId]
    step: str


@dataclass(frozen=True, slots=True)
class ShardsMoved(Event):
    taken: int
    released: int


@dataclass(frozen=True, slots=True)
class QueueStatsRead(Event):
    pools: tuple[PoolStats, ...] = ()
    overdue: int = 0
    """Timers that should have fired already."""
    behind: timedelta = timedelta(0)
    """Time since the first of these was due."""
    backfill: int = 0
    """Scheduled times left in open backfills."""


@dataclass(frozen=True, slots=True)
class DatabaseSeen(Event):
    """The leader's statistics: the age of the oldest transaction, and waiting dead letters."""

    oldest: timedelta
    dead_letters: int


@dataclass(frozen=True, slots=True)
class ClusterWatched(Event):
    """The leader's counts, for alerts. `stuck`: jobs with runs that no worker can run."""

    lost_members: int
    lost_workers: int
    stuck: int


class Service(StrEnum):
    DATABASE = "database"
    ETCD = "etcd"


@dataclass(frozen=True, slots=True)
class Called(Event):
    """A call to a service ended. Any thread may emit this. `took`: seconds."""

    service: Service
    call: str
    took: float
    failed: bool


@dataclass(frozen=True, slots=True)
class Waiting(Event):
    """The queue after a round of dispatch."""

    ready: int
    running: int
    timers: int
    catch_up: int = 0
    """Ready runs from catch-up, which wait behind runs that are due now."""
    in_pools: int = 0
    """Ready runs whose job has a pool: they wait for a slot or for room in their pool."""
    oldest: timedelta | None = None
    """Longest waiting time of a ready run; None: no run is ready."""


@dataclass(frozen=True, slots=True)
class ClusterPauseChanged(Event):
    """The whole cluster was paused (`by`, `note`) or resumed (`by` is None)."""

    by: str | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Notified(Event):
    channel: NotificationChannel
    error: str
    """Empty: it was delivered."""
    abandoned: bool = False


@dataclass(frozen=True, slots=True)
class NotificationsExpired(Event):
    """Notifications ended that had waited for a day without an attempt."""

    channel: NotificationChannel
    count: int


@dataclass(frozen=True, slots=True)
class NotificationsWait(Event):
    """The number of undelivered notifications of this member's shards."""

    count: int


@dataclass(frozen=True, slots=True)
class Deleted(Event):
    runs: int = 0
    logs: int = 0
    objects: int = 0


@dataclass(frozen=True, slots=True)
class ResultStoreAway(Event):
    """A call to the result store wasn't answered."""


Emit = Callable[[Event], None]


def discard(_: Event) -> None:
    """Ignore the event: the default of callers without a listener."""
