"""Records of runs and their assignments, as the API shows them."""

from datetime import datetime, timedelta
from typing import Final

from schedd.core.ids import BackfillId, RunId, TenureId, Token
from schedd.core.jobs.chains import ParentEnded
from schedd.core.jobs.definition import Overlap
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import LiveRun, Trigger
from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class RunRecord:
    run: LiveRun
    namespace: str
    job: str
    ephemeral: bool
    trigger: Trigger
    reason: str | None
    assignments: int
    count: int
    scheduled_until: datetime | None
    finished_at: datetime | None
    exit_code: int | None
    error: str
    retry_at: datetime | None
    paused: bool = False
    """Whether its job's pause blocks the run. Runs that a person requested aren't blocked."""
    cluster_paused: bool = False
    first_started_at: datetime | None = None
    """The first known start, over all its assignments."""
    excluded_by: str = ""
    """The cause of a skip, as text: a run, a calendar, or who paused, edited or deleted."""
    backfill: BackfillId | None = None
    fired_by: TenureId | None = None
    """The tenure that fired it or recorded it as not run. None: a person's call did."""
    member: str = ""
    """The name of that tenure's member."""
    redrive_of: RunId | None = None
    """The dead run that this run replaces."""
    parents: tuple[ParentEnded, ...] = ()
    """The parents' ends that decided a run in a chain."""
    pre_dispatched: bool = False
    """Whether it is pre-dispatched and not due yet."""

    @property
    def state(self) -> State:
        """The state that the API shows: a pre-dispatched run is PENDING."""
        return State.PENDING if self.pre_dispatched else self.run.state

    @property
    def apart(self) -> bool:
        """Whether overlap ignores it (`core/runs/overlap.py`)."""
        backfilled = self.backfill is not None and self.run.overlap is Overlap.ALLOW
        return backfilled or self.run.parent is not None

    @property
    def lateness(self) -> timedelta | None:
        """The time from the due time to the first start, never negative. None: not started yet."""
        if self.first_started_at is None:
            return None
        return max(timedelta(0), self.first_started_at - self.run.due_at)


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    attempt: int
    token: Token
    generation: int
    worker: str
    assigned_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    state: State
    reason: str | None
    exit_code: int | None
    error: str


@dataclass(frozen=True, slots=True)
class RunFilter:
    """A filter of runs. A run must meet all conditions; an unset field matches all. `since` and
    `before` are bounds of the scheduled time.
    """

    job: str = ""
    """Id or name, also of a deleted job."""
    states: tuple[State, ...] = ()
    worker: str = ""
    since: datetime | None = None
    before: datetime | None = None
    trigger: Trigger | None = None
    backfill: BackfillId | None = None
    parent: RunId | None = None
    """The children of this broadcast. Without `parent` or `worker`, no children match."""


ALL_RUNS: Final = RunFilter()
