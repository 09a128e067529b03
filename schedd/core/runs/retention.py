"""Retention: when what has ended isn't kept any more. Pure.

    a run has ended ─┬─ logs of the cluster are over ─→ what it wrote goes
                     └─ its job's retention, or the cluster's, is over ─→ all of it goes
    a dead letter that waits stays, unless the cluster's `dead_letters` says how long

Invariants
- What hasn't ended stays, and what was due within `FLOOR`: a timer that is set back by that little
  (an `at` may be a minute past) still finds its row, so no instant fires again for want of one.
- A job's own retention goes before the cluster's, for its logs too; for no dead letter that waits:
  whoever keeps runs for a day hasn't said that nobody need look at what failed.
- What is promised to a redrive stays.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from schedd.core.ids import JobId, ShardId
from schedd.core.runs.model import RunKey
from schedkit.records import dataclass

FLOOR: Final = timedelta(minutes=2)
LEAST: Final = timedelta(seconds=1)
"""What a retention is at least."""
MOST: Final = timedelta(days=36_500)


@dataclass(frozen=True, slots=True)
class Retention:
    """How long the cluster keeps what has ended. `dead_letters`: None is for ever."""

    runs: timedelta = timedelta(days=30)
    logs: timedelta = timedelta(days=7)
    dead_letters: timedelta | None = None

    @property
    def shortest(self) -> timedelta:
        """The least of these."""
        lengths = (self.runs, self.logs, self.dead_letters)
        return min(one for one in lengths if one is not None)


DEFAULTS: Final = Retention()


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that has ended, as far as its retention goes. `until`: the last instant it stands for;
    `own`: its job's retention; `waits`: it is a dead letter that nobody has settled.
    """

    key: RunKey
    shard: ShardId
    job_id: JobId
    ended_at: datetime
    until: datetime
    own: timedelta | None = None
    ephemeral: bool = False
    waits: bool = False
    promised: bool = False


@dataclass(frozen=True, slots=True)
class OldRuns:
    """A page of old rows: those that may go, and the key that the next page begins after; None: it
    was the last.
    """

    runs: list[EndedRun]
    last: RunKey | None


@dataclass(frozen=True, slots=True)
class Unwanted:
    """Something in the result store whose rows are gone."""

    place: str
    shard: ShardId


def is_over(run: EndedRun, retention: Retention, now: datetime) -> bool:
    """Whether all of it goes."""
    if now - max(run.until, run.key.scheduled_at) < FLOOR:
        return False
    if run.waits:
        kept = None if run.promised else retention.dead_letters
    else:
        kept = retention.runs if run.own is None else run.own
    return kept is not None and now - run.ended_at >= kept


def log_is_over(run: EndedRun, retention: Retention, now: datetime) -> bool:
    """Whether what it wrote goes, though the run stays."""
    if run.waits or run.own is not None:
        return False
    return now - run.ended_at >= retention.logs
