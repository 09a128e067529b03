"""Retention: decide when an ended run is deleted. Pure.

    a run has ended ─┬─ the cluster's retention of logs has passed ─→ its logs are deleted
                     └─ its job's retention, or the cluster's, has passed ─→ all of it is deleted
    a waiting dead letter is kept, unless the cluster sets `dead_letters`

Invariants
- Live runs are kept, and runs that were scheduled within `FLOOR`. A timer that is set back by less
  (an `at` may be a minute past) still finds the row, so no scheduled time fires twice.
- A job's retention has priority over the cluster's, also for its logs. It doesn't apply to waiting
  dead letters: a short retention of runs doesn't mean that failures need no attention.
- Dead letters that are queued for a redrive are kept.
"""

from datetime import datetime, timedelta
from typing import Final

from schedd.core.ids import JobId, ShardId
from schedd.core.runs.model import RunKey
from schedkit.records import dataclass

FLOOR: Final = timedelta(minutes=2)
LEAST: Final = timedelta(seconds=1)
"""The shortest retention that can be set."""
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
    """An ended run, for the decision on its retention.

    - `until`: the last scheduled time of its row.
    - `own`: its job's retention; None: the cluster's applies.
    - `waits`: whether it is an unresolved dead letter.
    - `queued`: whether it is queued for a redrive.
    """

    key: RunKey
    shard: ShardId
    job_id: JobId
    ended_at: datetime
    until: datetime
    own: timedelta | None = None
    ephemeral: bool = False
    waits: bool = False
    queued: bool = False


@dataclass(frozen=True, slots=True)
class OldRuns:
    """A page of old rows: the runs that may be deleted, and the last key of the page, after which
    the next page begins. None: this was the last page.
    """

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
