"""Redrives: run dead letters again at a rate, each at most once. The id of the new run is derived
from the dead run's, so repeated requests create one (docs/semantics/dead-letters-and-redrives.md).
"""

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
"""The most live runs of a job with `buffer_all`. At this number a redrive creates no more, as the
buffer is bounded.
"""

_BURST: Final = timedelta(seconds=1)
"""The time for which an unused part of the rate is kept."""


class LetterOutcome(StrEnum):
    REDRIVEN = "REDRIVEN"
    DISCARDED = "DISCARDED"


@dataclass(frozen=True, slots=True)
class RedriveGroup:
    """`submitted`: the letters of submitted runs with this name. `job` matches exactly."""

    job: str
    fingerprint: str
    submitted: bool


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """A filter of waiting dead letters; an unset field matches all. `job`: id or name."""

    namespace: str
    job: str = ""
    fingerprint: str = ""
    run_ids: tuple[RunId, ...] = ()
    group: RedriveGroup | None = None
    until: datetime | None = None
    """Only runs that failed at or before this time."""
    at_most: int | None = None
    """The most letters that may match. If more do, none is changed."""

    def is_more(self, count: int) -> bool:
        return self.at_most is not None and count > self.at_most


@dataclass(frozen=True, slots=True)
class RedriveRequest:
    """A requested redrive. `rate`: runs per second; `payload`: replaces each run's own."""

    redrive_id: RedriveId
    shard: ShardId
    choice: LetterFilter
    rate: float
    payload: bytes | None
    by: str


@dataclass(frozen=True, slots=True)
class RedriveRecord:
    """Of `total` letters, `waiting` are queued and `made` have new runs. The others were resolved
    otherwise, are in another redrive, or belong to deleted jobs.
    """

    redrive_id: RedriveId
    shard: ShardId
    namespace: str
    job: str
    fingerprint: str
    rate: float
    edited: bool
    """Whether it replaces the runs' payloads."""
    total: int
    waiting: int
    made: int
    open: bool
    states: Mapping[State, int]
    """The number of its new runs by state."""
    created_at: datetime
    created_by: str
    stopped_at: datetime | None
    stopped_by: str
    finished_at: datetime | None
    submitted: bool | None
    """Whether it matches submitted runs only (True) or the job only (False). None: both."""


@dataclass(frozen=True, slots=True)
class OpenRedrive:
    """A redrive with queued letters. `jobs`: the jobs of the next letters."""

    redrive_id: RedriveId
    shard: ShardId
    jobs: tuple[JobId, ...]


@dataclass(frozen=True, slots=True)
class RedriveLine:
    """How redriven runs overlap with other runs of their job. If it allows one run at a time, a
    redriven run is created only while the job has no live run, and is never skipped.
    """

    generation: int
    """The definition's generation. At another generation no run is created."""
    overlap: Overlap | None
    """The overlap policy of redriven runs. None: the job's policy."""
    most: int | None
    """The most live runs of the job, including the next one. None: no limit."""


def again(state: State, reason: str | None) -> bool:
    """Return whether an ended run may be redriven: it failed, was canceled, or missed its start
    deadline. Scheduled times that never ran are for backfills.
    """
    if state is State.MISSED:
        return reason == Reason.START_DEADLINE
    return state in {State.FAILED, State.CANCELLED}


def line_of(definition: Definition) -> RedriveLine:
    """Return how redriven runs overlap with other runs of the job."""
    policy = definition.overlap
    most = {Overlap.ALLOW: None, Overlap.BUFFER_ALL: MOST_IN_LINE}.get(policy, 1)
    own = None if policy in (Overlap.ALLOW, Overlap.BUFFER_ALL, *REPLACES) else Overlap.BUFFER_ALL
    return RedriveLine(definition.generation, own, most)


def allowance(
    rate: float, fed_until: datetime | None, now: datetime, most: int
) -> tuple[int, datetime | None]:
    """Return how many runs to create now, at most `most`, and until when that uses up the rate.

    `rate`: runs per second. `fed_until`: the time that the last call returned; None: this is the
    first call, and one run is created at once.
    """
    each = timedelta(seconds=1 / rate)
    start = now - each if fed_until is None else max(fed_until, now - max(_BURST, each))
    start = min(start, now)  # the database's clock may have gone back
    count = min(most, int((now - start) / each + 1e-6))
    return count, start + count * each
