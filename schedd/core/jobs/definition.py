"""The definition of a job, at one generation, with the fields that decisions need. It is stored as
a `Job` message; `schedd/runtime/job_codec.py` converts between the two.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field
from datetime import timedelta
from enum import IntEnum, StrEnum

from schedd.core.jobs.chains import ChainParents
from schedd.core.jobs.notifications import Notices
from schedd.core.runs.failure_kinds import FailureKind
from schedd.core.runs.pools import NO_POOL, PoolKey
from schedd.core.schedule.calendars.rules import NOTHING, Exclude
from schedd.core.schedule.compiled_schedule import OnDemand, Schedule, ScheduleBounds
from schedkit.records import dataclass


class Priority(IntEnum):
    """The priority classes, HIGH first. The numbers are those of the protocol."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3


class Overlap(StrEnum):
    """The overlap policy: how to treat a run while another run of its job is in progress."""

    SKIP = "SKIP"
    ALLOW = "ALLOW"
    BUFFER_ONE = "BUFFER_ONE"
    BUFFER_ALL = "BUFFER_ALL"
    CANCEL_OTHER = "CANCEL_OTHER"
    TERMINATE_OTHER = "TERMINATE_OTHER"


class Delivery(StrEnum):
    """The delivery guarantee: whether a run starts again after its worker was lost."""

    AT_LEAST_ONCE = "AT_LEAST_ONCE"
    AT_MOST_ONCE = "AT_MOST_ONCE"


class Placement(StrEnum):
    """How to choose among equally suitable workers (`core/dispatch/placement.py`)."""

    SPREAD = "SPREAD"
    PACK = "PACK"
    STICKY = "STICKY"
    BROADCAST = "BROADCAST"
    """A child run for each matching worker (`core/runs/broadcast.py`)."""


class CatchUpPolicy(StrEnum):
    """The catch-up policy: which scheduled times that weren't fired in time are run."""

    LATEST = "LATEST"
    ALL = "ALL"
    NONE = "NONE"


@dataclass(frozen=True, slots=True)
class Match:
    """A condition on the labels of a worker: `gpu=a100`, `region in (eu, us)`."""

    key: str
    any_of: tuple[str, ...]

    def __str__(self) -> str:
        if len(self.any_of) == 1:
            return f"{self.key}={self.any_of[0]}"
        return f"{self.key} in ({', '.join(self.any_of)})"

    def fits(self, labels: Mapping[str, str]) -> bool:
        return labels.get(self.key) in self.any_of


def matches_text(matches: Iterable[Match]) -> str:
    return " and ".join(str(match) for match in matches)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    max_attempts: int = 4
    backoff: timedelta = timedelta(seconds=10)
    factor: float = 2.0
    maximum: timedelta = timedelta(minutes=10)
    jitter: float = 0.1
    retry_on: tuple[FailureKind, ...] = ()
    """If not empty, only these failures are retried."""
    fail_on: tuple[FailureKind, ...] = ()


@dataclass(frozen=True, slots=True)
class CatchUp:
    """The catch-up policy, and how far back it reaches by scheduled time."""

    policy: CatchUpPolicy = CatchUpPolicy.LATEST
    window: timedelta = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of a job, without its id and name. Jobs may share it."""

    generation: int
    namespace: str
    schedule: Schedule = field(default_factory=OnDemand)
    bounds: ScheduleBounds = field(default_factory=ScheduleBounds)
    exclude: Exclude = NOTHING
    catch_up: CatchUp = CatchUp()
    max_runs: int = 0
    """The number of runs after which the schedule ends; 0: no limit."""
    pause_after_failures: int = 0
    """Consecutive runs that failed for good, after which the job is paused; 0: never."""
    overlap: Overlap = Overlap.SKIP
    overlap_limit: int = 0
    priority: Priority = Priority.MEDIUM
    retry: RetryPolicy = RetryPolicy()
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    timeout: timedelta = timedelta(hours=1)
    start_deadline: timedelta | None = None
    """How long a run may wait for its first dispatch."""
    run_timeout: timedelta | None = None
    """The limit on the whole run: all attempts and the backoffs between them."""
    heartbeat_timeout: timedelta | None = None
    """The time without a heartbeat from its handler after which an attempt fails."""
    kill_after: timedelta = timedelta(seconds=10)
    kills_on_lease_lost: bool = False
    slots: int = 1
    action: str = "shell"
    """The executor that it needs: shell, http, grpc, python, or plugin/ and the plugin's name."""
    handler: str = ""
    """The Python handler that it needs; empty for other actions."""
    require: tuple[Match, ...] = ()
    prefer: tuple[Match, ...] = ()
    placement: Placement = Placement.SPREAD
    pool: PoolKey = NO_POOL
    notices: Notices | None = None
    after: ChainParents | None = None
    """The job's parents in a chain. None: the job has a schedule or runs on demand."""
