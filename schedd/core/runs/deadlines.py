"""By when a run has to have started, and to have ended: `start_deadline` and `run_timeout`.

    due ──── start_deadline ──→ not handed out yet: MISSED (START_DEADLINE)
     ╰─────────────── run_timeout ──→ it waits: FAILED (RUN_TIMEOUT)
                                      it runs: its attempt is ended then, and no other follows

Both are counted from when the run was due, or made, if that was later (by catch-up, say). They are
the newest definition's, as all that a run goes by.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from schedd.core.ids import Hint, JobId, ShardId
from schedd.core.jobs.definition import Definition
from schedd.core.jobs.notifications import Notices
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import LiveRun, RunKey
from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class Expiry:
    """A run that waits and whose time is over: how it ends, unless it goes on meanwhile."""

    key: RunKey
    job_id: JobId
    shard: ShardId
    state: State
    reason: Reason
    fingerprint: str = ""
    """Of the dead letter that it becomes; empty: of none."""
    counted: bool = False
    """It has taken a turn of a schedule with `max_runs`, and gives it back."""
    pause_after: int = 0
    """How many failures in a row pause its job; 0: nobody counts."""
    generation: int = 1
    """Of the definition by which it ends: by another one it doesn't."""
    notices: Notices | None = None
    """What its job wants told."""
    attempt: int = 0
    """Of its tries, the last."""

    @property
    def hint(self) -> Hint:
        """What those who watch hear of it."""
        return self.key.run_id, self.job_id


def hurried(definition: Definition) -> bool:
    """Whether its runs have any such time at all."""
    return definition.start_deadline is not None or definition.run_timeout is not None


def starts_by(run: LiveRun, definition: Definition) -> datetime | None:
    """After this it isn't handed out for the first time; None: whenever it likes. What had begun
    and came back has started in time.
    """
    return None if run.losses else _after(run, definition.start_deadline)


def ends_by(run: LiveRun, definition: Definition) -> datetime | None:
    """After this nothing of it runs, and nothing begins."""
    return _after(run, definition.run_timeout)


def overdue(run: LiveRun, definition: Definition, now: datetime) -> Reason | None:
    """Why a run that waits has to end now; None: it may go on waiting."""
    until, first = ends_by(run, definition), starts_by(run, definition)
    if first is not None and first <= now and run.state is State.PENDING:
        return Reason.START_DEADLINE
    return Reason.RUN_TIMEOUT if until is not None and until <= now else None


def time_left(run: LiveRun, definition: Definition, now: datetime) -> timedelta:
    """How long an attempt that begins now may take."""
    until = ends_by(run, definition)
    if until is None:
        return definition.timeout
    return min(definition.timeout, max(until - now, _LEAST))


START_WITHIN: Final = timedelta(seconds=5)
"""From an assignment to its `start_by` (PROTOCOL 4)."""
_LEAST: Final = timedelta(milliseconds=1)
"""An attempt without any time is ended as soon as it has begun."""


def _after(run: LiveRun, span: timedelta | None) -> datetime | None:
    if span is None:
        return None
    made = run.due_at if run.created_at is None else max(run.due_at, run.created_at)
    return made + span
