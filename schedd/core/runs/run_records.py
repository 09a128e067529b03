"""Records of runs and of their assignments, as the API shows them."""

from __future__ import annotations

from datetime import datetime, timedelta

from schedd.core.ids import BackfillId, RunId, TenureId, Token
from schedd.core.jobs.chains import ParentEnded
from schedd.core.jobs.definition import Overlap
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import LiveRun, Trigger
from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as people see it."""

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
    """Its job is, and that keeps it: no person asked for this run."""
    braked: bool = False
    """The whole cluster is paused."""
    first_started_at: datetime | None = None
    """Of all its handings out the first start that is known."""
    excluded_by: str = ""
    """What kept it from running, in words: a run, a calendar, who paused, edited or deleted."""
    backfill: BackfillId | None = None
    """That made it."""
    fired_by: TenureId | None = None
    """Who fired it, or accounted for it; None: a person's call did."""
    member: str = ""
    """Whose tenure that was."""
    redrive_of: RunId | None = None
    """The dead run that it does again."""
    parents: tuple[ParentEnded, ...] = ()
    """Of a run in a chain: the parents' ends that decided it."""
    armed: bool = False
    """It is pre-dispatched, and not due yet."""

    @property
    def state(self) -> State:
        """As people see it: what is armed waits."""
        return State.PENDING if self.armed else self.run.state

    @property
    def apart(self) -> bool:
        """Whether it is in no other run's way, nor any in its (`core/runs/overlap.py`)."""
        backfilled = self.backfill is not None and self.run.overlap is Overlap.ALLOW
        return backfilled or self.run.parent is not None

    @property
    def lateness(self) -> timedelta | None:
        """From when it was due to its first start, never negative; None: it hasn't started."""
        if self.first_started_at is None:
            return None
        return max(timedelta(0), self.first_started_at - self.run.due_at)


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One assignment of a run."""

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
