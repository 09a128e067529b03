"""Retention: decide when an ended run is deleted (docs/semantics/retention.md). Pure.

Invariants
- Live runs are kept, and runs that were scheduled within `FLOOR`. A timer that is set back by less
  (an `at` may be a minute past) still finds the row, so no scheduled time fires twice.
- A job's retention has priority over the cluster's, also for its logs, but not for waiting dead
  letters. Those that are queued for a redrive are kept.
"""

from datetime import datetime, timedelta
from typing import Final

from schedd.core.ids import JobId, ShardId
from schedd.core.runs.model import RunKey
from schedkit.records import dataclass

FLOOR: Final = timedelta(minutes=2)
LEAST: Final = timedelta(seconds=1)
MOST: Final = timedelta(days=36_500)


@dataclass(frozen=True, slots=True)
class Retention:
    """The cluster's retention, counted from a run's end. `dead_letters` None: kept forever."""

    runs: timedelta = timedelta(days=30)
    logs: timedelta = timedelta(days=7)
    dead_letters: timedelta | None = None

    @property
    def shortest(self) -> timedelta:
        lengths = (self.runs, self.logs, self.dead_letters)
        return min(one for one in lengths if one is not None)


DEFAULTS: Final = Retention()


@dataclass(frozen=True, slots=True)
class EndedRun:
    key: RunKey
    shard: ShardId
    job_id: JobId
    ended_at: datetime
    until: datetime
    """The last scheduled time of its row."""
    own: timedelta | None = None
    """Its job's retention; None: the cluster's applies."""
    ephemeral: bool = False
    waits: bool = False
    """Whether it is an unresolved dead letter."""
    queued: bool = False
    """Whether it is queued for a redrive."""


@dataclass(frozen=True, slots=True)
class OldRuns:
    """A page of old rows, and its last key, after which the next begins; None: the last page."""

    runs: list[EndedRun]
    last: RunKey | None


@dataclass(frozen=True, slots=True)
class Unwanted:
    """An object in the result store whose rows were deleted."""

    place: str
    shard: ShardId


def is_over(run: EndedRun, retention: Retention, now: datetime) -> bool:
    """Return whether the retention of the whole run has passed."""
    if now - max(run.until, run.key.scheduled_at) < FLOOR:
        return False
    if run.waits:
        kept = None if run.queued else retention.dead_letters
    else:
        kept = retention.runs if run.own is None else run.own
    return kept is not None and now - run.ended_at >= kept


def log_is_over(run: EndedRun, retention: Retention, now: datetime) -> bool:
    """Return whether the retention of the run's logs has passed, although the run is kept."""
    if run.waits or run.own is not None:
        return False
    return now - run.ended_at >= retention.logs
