"""What happened, as values. Loops emit them; `schedd/telemetry/recorder.py` alone turns them into
logs and metrics, so no loop knows either.
"""

from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum

from schedd.core.cluster.database_stats import DatabaseVitals
from schedd.core.cluster.queue_stats import PoolStats
from schedd.core.ids import IncarnationId, JobId, RunId, ShardId, Token
from schedd.core.jobs.notifications import NotificationChannel
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import LiveRun
from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class TimersFired:
    """A batch of timers advanced."""

    runs: int
    folds: int
    latenesses: tuple[timedelta, ...]
    """Of the runs: when they were inserted less when they were due."""


@dataclass(frozen=True, slots=True)
class RunsMissed:
    """So many instants are MISSED: nothing runs for them any more."""

    reason: Reason
    count: int


@dataclass(frozen=True, slots=True)
class DeadRun:
    """One that failed for good. `attempt`: of its tries, the last; 0: it had none."""

    run: RunId
    job: JobId
    reason: Reason | None
    attempt: int


def dead_run(run: LiveRun, reason: Reason | None) -> DeadRun:
    """This run, which has failed for good."""
    return DeadRun(run.key.run_id, run.job_id, reason, run.attempt)


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """These runs failed for good."""

    runs: tuple[DeadRun, ...]


@dataclass(frozen=True, slots=True)
class AssignedRuns:
    """A batch of runs was dispatched."""

    count: int
    waits: tuple[timedelta, ...]
    """From ready to dispatched."""


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt's result was accepted."""

    state: State
    reason: Reason | None
    lateness: timedelta | None
    """Start of the handler less due; None when it never started."""
    duration: timedelta | None


@dataclass(frozen=True, slots=True)
class EndedUnreported:
    """So many runs ended, or moved on, without a result of a worker."""

    state: State
    reason: Reason | None
    count: int


@dataclass(frozen=True, slots=True)
class StaleResult:
    """A result was refused: a greater token, or another end, is there already."""

    run: RunId
    token: Token
    worker: str
    known: bool = True
    """Whether the run exists."""


@dataclass(frozen=True, slots=True)
class RunsRescued:
    """Runs of lost workers moved on."""

    runs: tuple[RunId, ...]
    incarnations: tuple[IncarnationId, ...]


@dataclass(frozen=True, slots=True)
class NeverStarted:
    """Assignments of these runs, which their live workers never started, went back."""

    runs: tuple[RunId, ...]


@dataclass(frozen=True, slots=True)
class AssignmentRefused:
    """A worker didn't take an assignment."""

    why: str
    worker: str
    run: RunId
    token: Token


@dataclass(frozen=True, slots=True)
class GreaterTokenSeen:
    """A worker has seen a greater token of a run than the one it was sent: an alarm. The owner
    takes the shard over again, so that its epoch grows.
    """

    run: RunId
    token: Token
    greatest: Token
    worker: str


@dataclass(frozen=True, slots=True)
class WorkerAttached:
    """A worker attached its stream to this member."""

    worker: str
    incarnation: IncarnationId


@dataclass(frozen=True, slots=True)
class WorkerDetached:
    """The stream of a worker ended."""

    worker: str
    incarnation: IncarnationId


@dataclass(frozen=True, slots=True)
class ShardsLost:
    """A transaction found these shards no longer this member's."""

    shards: frozenset[ShardId]
    step: str


@dataclass(frozen=True, slots=True)
class ShardsMoved:
    """So many shards are this member's since just now, and so many no longer."""

    taken: int
    released: int


@dataclass(frozen=True, slots=True)
class QueueStatsRead:
    """What was found of the owned shards: their pools, and what they are behind with."""

    pools: tuple[PoolStats, ...] = ()
    overdue: int = 0
    """Timers that should have fired."""
    behind: timedelta = timedelta(0)
    """For how long the first of these has been due."""
    backfill: int = 0
    """Instants left of open backfills."""


@dataclass(frozen=True, slots=True)
class DatabaseSeen:
    """The leader has looked at the database."""

    vitals: DatabaseVitals


@dataclass(frozen=True, slots=True)
class ClusterWatched:
    """The leader has read what alerts need. `stuck`: jobs whose runs wait without a worker that can
    run them.
    """

    lost_members: int
    lost_workers: int
    stuck: int


class Service(StrEnum):
    """What a member can't do without."""

    DATABASE = "database"
    ETCD = "etcd"


@dataclass(frozen=True, slots=True)
class Called:
    """A call of a service is over, in whatever thread. `took`: seconds."""

    service: Service
    call: str
    took: float
    failed: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """The queue after a round of dispatch."""

    ready: int
    running: int
    timers: int
    late: int = 0
    """Of the ready: those that catch-up made, and that wait behind what is due now."""
    pooled: int = 0
    """Of the ready: those of pools, which wait for room there."""
    oldest: timedelta | None = None
    """For how long the one of the ready has waited that waits longest; None: none is ready."""


@dataclass(frozen=True, slots=True)
class CatchUpLimited:
    """The whole cluster was paused (`by`, `note`) or resumed (`by` is None)."""

    by: str | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Notified:
    """A notification was tried: delivered, or not."""

    way: NotificationChannel
    error: str
    """Empty: it was delivered."""
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class NotificationsExpired:
    """So many notifications were ended that waited for a day without as much as a try."""

    way: NotificationChannel
    count: int


@dataclass(frozen=True, slots=True)
class NotificationsWait:
    """So many notifications of this member's shards aren't delivered."""

    count: int


@dataclass(frozen=True, slots=True)
class Deleted:
    """So much wasn't kept any longer."""

    runs: int = 0
    logs: int = 0
    objects: int = 0


@dataclass(frozen=True, slots=True)
class ResultStoreAway:
    """A call to the result store wasn't answered."""


Event = (
    TimersFired
    | RunsMissed
    | DeadLettered
    | AssignedRuns
    | AttemptEnded
    | EndedUnreported
    | StaleResult
    | RunsRescued
    | NeverStarted
    | AssignmentRefused
    | GreaterTokenSeen
    | WorkerAttached
    | WorkerDetached
    | ShardsLost
    | ShardsMoved
    | QueueStatsRead
    | DatabaseSeen
    | ClusterWatched
    | Called
    | Waiting
    | CatchUpLimited
    | Notified
    | NotificationsWait
    | NotificationsExpired
    | Deleted
    | ResultStoreAway
)

Emit = Callable[[Event], None]


def unheard(_: Event) -> None:
    """Ignore the event: the default of callers without a listener."""
