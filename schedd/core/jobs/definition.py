"""What a job says, as far as decisions go: its definition, at one generation.

The wire's `Job` message is the stored form of a definition (`schedd/runtime/job_codec.py` turns one
into the other); here stands only what decisions need. All are frozen.
"""

from dataclasses import field
from datetime import timedelta
from enum import IntEnum, StrEnum

from schedd.core.ids import JobId
from schedd.core.jobs.chains import ChainParents
from schedd.core.jobs.labels import Match
from schedd.core.jobs.notifications import Notices
from schedd.core.runs.failures import FailureKind
from schedd.core.runs.pools import NO_POOL, PoolKey
from schedd.core.schedule.calendars import NOTHING, Exclude
from schedd.core.schedule.compiled_schedule import OnDemand, Schedule, ScheduleBounds
from schedkit.records import dataclass


class Priority(IntEnum):
    """HIGH goes first; the numbers are the wire's."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3


class Overlap(StrEnum):
    """What happens when the previous run of the job hasn't ended."""

    SKIP = "SKIP"
    ALLOW = "ALLOW"
    BUFFER_ONE = "BUFFER_ONE"
    BUFFER_ALL = "BUFFER_ALL"
    CANCEL_OTHER = "CANCEL_OTHER"
    TERMINATE_OTHER = "TERMINATE_OTHER"


class Delivery(StrEnum):
    """Whether a run whose worker is lost starts again."""

    AT_LEAST_ONCE = "AT_LEAST_ONCE"
    AT_MOST_ONCE = "AT_MOST_ONCE"


class Placement(StrEnum):
    """How to choose among workers that suit a run alike (`core/dispatch/placement.py`)."""

    SPREAD = "SPREAD"
    PACK = "PACK"
    STICKY = "STICKY"
    BROADCAST = "BROADCAST"
    """No choice: a run for each (`core/runs/broadcast.py`)."""


class CatchUpPolicy(StrEnum):
    """What becomes of instants that were not fired on time."""

    LATEST = "LATEST"
    ALL = "ALL"
    NONE = "NONE"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a failed attempt is followed by another (docs/semantics/retries.md)."""

    max_attempts: int = 4
    backoff: timedelta = timedelta(seconds=10)
    factor: float = 2.0
    maximum: timedelta = timedelta(minutes=10)
    jitter: float = 0.1
    retry_on: tuple[FailureKind, ...] = ()
    """If any: only what fails so is tried again."""
    fail_on: tuple[FailureKind, ...] = ()
    """What fails so never is."""


@dataclass(frozen=True, slots=True)
class CatchUp:
    """The policy for late instants and how far back it reaches, in nominal time."""

    policy: CatchUpPolicy = CatchUpPolicy.LATEST
    window: timedelta = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Definition:
    """A job at one generation, as far as decisions go."""

    job_id: JobId
    generation: int
    namespace: str
    name: str
    schedule: Schedule = field(default_factory=OnDemand)
    bounds: ScheduleBounds = field(default_factory=ScheduleBounds)
    exclude: Exclude = NOTHING
    catch_up: CatchUp = CatchUp()
    max_runs: int = 0
    """How many runs the schedule makes before it ends; 0: no limit."""
    pause_after_failures: int = 0
    """So many runs that failed for good, in a row, pause the job; 0: however many."""
    overlap: Overlap = Overlap.SKIP
    overlap_limit: int = 0
    priority: Priority = Priority.MEDIUM
    retry: RetryPolicy = RetryPolicy()
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    timeout: timedelta = timedelta(hours=1)
    start_deadline: timedelta | None = None
    """For how long a run may wait for its first start."""
    run_timeout: timedelta | None = None
    """Over all attempts, and what lies between."""
    heartbeat_timeout: timedelta | None = None
    """After so long without a heartbeat of its handler an attempt has failed."""
    kill_after: timedelta = timedelta(seconds=10)
    kills_on_lease_lost: bool = False
    slots: int = 1
    action: str = "shell"
    """Which executor it needs: shell, http, grpc, python, or plugin/ and the name of another's."""
    handler: str = ""
    """The Python handler it needs; empty for the other actions."""
    require: tuple[Match, ...] = ()
    """Labels that its worker has to have."""
    prefer: tuple[Match, ...] = ()
    """Labels that it would rather have."""
    placement: Placement = Placement.SPREAD
    pool: PoolKey = NO_POOL
    notices: Notices | None = None
    """The job's notifications; None: none."""
    after: ChainParents | None = None
    """The jobs that it runs after; None: it has a schedule, or waits for triggers."""
