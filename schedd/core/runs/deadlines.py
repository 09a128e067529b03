"""The deadlines of a run's start and end: `start_deadline` and `run_timeout`.

    due ──── start_deadline ──→ not dispatched yet: MISSED (START_DEADLINE)
     ╰─────────────── run_timeout ──→ it waits: FAILED (RUN_TIMEOUT)
                                      it runs: its attempt is ended then, and no other follows

Both count from the due time, or from the creation of the run if that was later (catch-up, for
example). The newest definition sets them, as everything else of a run.
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
    """A waiting run past a deadline: how it ends, unless it started in the meantime."""

    key: RunKey
    job_id: JobId
    shard: ShardId
    state: State
    reason: Reason
    fingerprint: str = ""
    """Of the dead letter that it becomes; empty: of none."""
    counted: bool = False
    """It counts against `max_runs` of its schedule, and stops counting."""
    pause_after: int = 0
    """Failures in a row that pause its job; 0: never."""
    generation: int = 1
    """Of the definition that ends it. If the definition has changed, the run doesn't end."""
    notices: Notices | None = None
    """The notifications of its job."""
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
    """Return the time after which the run isn't dispatched for the first time; None: no limit. A
    run that was dispatched and came back has started in time.
    """
    return None if run.losses else _after(run, definition.start_deadline)


def ends_by(run: LiveRun, definition: Definition) -> datetime | None:
    """After this nothing of it runs, and nothing begins."""
    return _after(run, definition.run_timeout)


def overdue(run: LiveRun, definition: Definition, now: datetime) -> Reason | None:
    """Return why a waiting run must end now; None: it may continue to wait."""
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
"""From an assignment to its `start_by` (docs/protocol-rules.md, P4.1)."""
_LEAST: Final = timedelta(milliseconds=1)
"""An attempt without any time is ended as soon as it has begun."""


def _after(run: LiveRun, span: timedelta | None) -> datetime | None:
    if span is None:
        return None
    made = run.due_at if run.created_at is None else max(run.due_at, run.created_at)
    return made + span
