"""The deadlines of a run's start and end: `start_deadline` and `run_timeout`. Both count from the
due time, or from the run's creation if that was later (docs/semantics/deadlines.md).
"""

from datetime import datetime, timedelta
from typing import Final

from schedd.core.ids import Hint, JobId, ShardId
from schedd.core.jobs.definition import Definition
from schedd.core.jobs.notifications import Notices
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import LiveRun, RunKey
from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class DeadlineExpiry:
    """The end of a waiting run past a deadline, unless the run started in the meantime."""

    key: RunKey
    job_id: JobId
    shard: ShardId
    state: State
    reason: Reason
    fingerprint: str = ""
    """The fingerprint of its dead letter; empty: it becomes none."""
    counted: bool = False
    """Whether it counted against `max_runs` until now."""
    pause_after: int = 0
    generation: int = 1
    """The definition that ends it. If the definition has changed since, the run doesn't end."""
    notices: Notices | None = None
    attempt: int = 0

    @property
    def hint(self) -> Hint:
        return self.key.run_id, self.job_id


def hurried(definition: Definition) -> bool:
    """Return whether the job's runs have a deadline."""
    return definition.start_deadline is not None or definition.run_timeout is not None


def starts_by(run: LiveRun, definition: Definition) -> datetime | None:
    """Return the time until which the run must be dispatched for the first time; None: no limit."""
    return None if run.losses else _after(run, definition.start_deadline)


def ends_by(run: LiveRun, definition: Definition) -> datetime | None:
    """Return the time by which the run must have ended; None: no limit."""
    return _after(run, definition.run_timeout)


def overdue(run: LiveRun, definition: Definition, now: datetime) -> Reason | None:
    """Return why a waiting run must end now; None: it may continue to wait."""
    until, first = ends_by(run, definition), starts_by(run, definition)
    if first is not None and first <= now and run.state is State.PENDING:
        return Reason.START_DEADLINE
    return Reason.RUN_TIMEOUT if until is not None and until <= now else None


def time_left(run: LiveRun, definition: Definition, now: datetime) -> timedelta:
    """Return the timeout of an attempt that starts now."""
    until = ends_by(run, definition)
    return (
        definition.timeout if until is None else min(definition.timeout, max(until - now, _LEAST))
    )


START_WITHIN: Final = timedelta(seconds=5)
"""The start limit: the time from an assignment to its `start_by` (docs/protocol-rules.md, P4.1)."""
_LEAST: Final = timedelta(milliseconds=1)
"""The shortest timeout: it ends an attempt as soon as it has started."""


def _after(run: LiveRun, span: timedelta | None) -> datetime | None:
    if span is None:
        return None
    made = run.due_at if run.created_at is None else max(run.due_at, run.created_at)
    return made + span
