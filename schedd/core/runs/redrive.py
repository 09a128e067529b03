"""Redrives: run dead letters again at a rate, each at most once.

    chosen ─→ queued for the redrive ─→ run at its rate ─→ a new run each, of the job as it is now
                   └─ stopped: free for another           └─ resolved: REDRIVEN

The id of the new run is derived from the dead run's id, so repeated requests create one run.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from schedd.core.ids import JobId, RedriveId, RunId, ShardId
from schedd.core.jobs.definition import Definition, Overlap
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.overlap import REPLACES
from schedkit.records import dataclass

LEAST_RATE: Final = 0.01
MOST_RATE: Final = 1_000.0
USUAL_RATE: Final = 10.0
"""Runs a second."""

MOST_IN_LINE: Final = 100
"""Runs of a job that buffers all, under way or waiting, past which a redrive makes no more: they
wait in line, and a line is bounded.
"""

_BURST: Final = timedelta(seconds=1)
"""What wasn't used of the rate is kept for so long."""


class LetterOutcome(StrEnum):
    """What became of a dead letter."""

    REDRIVEN = "REDRIVEN"
    DISCARDED = "DISCARDED"


@dataclass(frozen=True, slots=True)
class RedriveGroup:
    """Of the letters that wait, those of one kind of error of one job, or of what was `submitted`
    under one name. `job` is exactly that, be it empty.
    """

    job: str
    fingerprint: str
    submitted: bool


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which of the letters that wait; what isn't said chooses all. `job`: id or name."""

    namespace: str
    job: str = ""
    fingerprint: str = ""
    run_ids: tuple[RunId, ...] = ()
    group: RedriveGroup | None = None
    """That alone."""
    until: datetime | None = None
    """Of these the ones that died at or before it."""
    at_most: int | None = None
    """Where there are more, none is dealt with."""

    def is_more(self, count: int) -> bool:
        """Whether so many are more than was asked for."""
        return self.at_most is not None and count > self.at_most


@dataclass(frozen=True, slots=True)
class RedriveRequest:
    """A redrive as it is asked for. `rate`: runs a second; `payload` instead of each run's own."""

    redrive_id: RedriveId
    shard: ShardId
    choice: LetterFilter
    rate: float
    payload: bytes | None
    by: str


@dataclass(frozen=True, slots=True)
class RedriveRecord:
    """A redrive as the API shows it. Of `total` letters, `waiting` are queued and `made` have new
    runs. The others were resolved otherwise, are in another redrive, or belong to deleted jobs.
    """

    redrive_id: RedriveId
    shard: ShardId
    namespace: str
    job: str
    fingerprint: str
    rate: float
    edited: bool
    """It gives runs another payload than theirs."""
    total: int
    waiting: int
    made: int
    open: bool
    states: Mapping[State, int]
    """How many of the runs that were made are in which state."""
    created_at: datetime
    created_by: str
    stopped_at: datetime | None
    stopped_by: str
    finished_at: datetime | None
    submitted: bool | None
    """Of submitted runs alone, or of the job alone. None: of whatever is named so."""


@dataclass(frozen=True, slots=True)
class OpenRedrive:
    """A redrive with letters to run. `jobs`: the jobs of the next letters."""

    redrive_id: RedriveId
    shard: ShardId
    jobs: tuple[JobId, ...]


@dataclass(frozen=True, slots=True)
class RedriveLine:
    """How runs that do others again stand beside the others of their job.

    Of a job that does one at a time one is made when nothing of it is there: it is skipped for
    nothing, and what the schedule makes next waits its turn, or replaces it, as the job says.
    """

    generation: int
    """Of the definition that says so: at another one none is made."""
    overlap: Overlap | None
    """By what they go; None: as their job says."""
    most: int | None
    """How many of the job may be there, with the next one; None: any number."""


def again(state: State, reason: str | None) -> bool:
    """Whether a run that ended so may be done again: what ran and failed, was cancelled, or waited
    past its start deadline. What its schedule never made is a backfill's.
    """
    if state is State.MISSED:
        return reason == Reason.START_DEADLINE
    return state in {State.FAILED, State.CANCELLED}


def line_of(definition: Definition) -> RedriveLine:
    """How the runs that do a job's dead ones again stand beside its others."""
    policy = definition.overlap
    if policy is Overlap.ALLOW:
        return RedriveLine(definition.generation, None, None)
    if policy is Overlap.BUFFER_ALL:
        return RedriveLine(definition.generation, None, MOST_IN_LINE)
    if policy in REPLACES:
        return RedriveLine(definition.generation, None, 1)
    return RedriveLine(definition.generation, Overlap.BUFFER_ALL, 1)


def allowance(
    rate: float, fed_until: datetime | None, now: datetime, most: int
) -> tuple[int, datetime | None]:
    """How many runs may be made now, at most `most`, and until when a rate is used up if they are.

    `fed_until`: as it was; None at first, when one is made at once.
    """
    each = timedelta(seconds=1 / rate)
    start = now - each if fed_until is None else max(fed_until, now - max(_BURST, each))
    start = min(start, now)  # the database's clock may have gone back
    count = min(most, int((now - start) / each + 1e-6))
    return count, start + count * each
