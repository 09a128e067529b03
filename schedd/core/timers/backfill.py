"""Backfill: choose the scheduled times of a past range to run, and limit the runs at a time
(docs/semantics/backfills.md).

The times are chosen once, when the backfill is created. A later edit of the schedule doesn't change
them, only the definition that they run. A run of a backfill has the scheduled time but its own id,
so the row of the schedule's run isn't changed.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final

from schedd.core.ids import BackfillId, JobId, RunId, ShardId
from schedd.core.jobs.definition import Overlap, Priority
from schedd.core.runs.lifecycle import LIVE, State
from schedkit.records import dataclass

MOST_INSTANTS: Final = 10_000
"""The most scheduled times of a range: they are stored in one row."""

MOST_PARALLEL: Final = 1_000

TOGETHER: Final = frozenset({Overlap.ALLOW, Overlap.BUFFER_ALL})
"""Policies under which no run is skipped or replaced when several are created at once."""


class Rerun(StrEnum):
    """Which scheduled times that already ran are run again."""

    NONE = "NONE"
    FAILED = "FAILED"
    ALL = "ALL"


@dataclass(frozen=True, slots=True)
class Ran:
    """An existing run of a scheduled time, made by the schedule, a backfill or a redrive."""

    at: datetime
    run_id: RunId
    state: State
    dispatched: bool


@dataclass(frozen=True, slots=True)
class OmittedTime:
    """A scheduled time of the range that is omitted. `run_id` None: it has no run yet."""

    at: datetime
    state: State
    why: str
    run_id: RunId | None = None


@dataclass(frozen=True, slots=True)
class BackfillSelection:
    """The scheduled times that a backfill runs, oldest first, and those that it leaves out."""

    instants: tuple[datetime, ...]
    omitted: tuple[OmittedTime, ...]


@dataclass(frozen=True, slots=True)
class ExistingRuns:
    """The rows of a job's scheduled times, read at once under the lock of the job's row."""

    ran: Sequence[Ran]
    queued: Collection[datetime]
    """Times that other backfills will run."""
    ahead: datetime | None
    """From this time on the schedule fires automatically. None: it fires no more."""


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """A requested backfill, with all scheduled times of its range."""

    backfill_id: BackfillId
    first: datetime
    last: datetime
    instants: tuple[datetime, ...]
    rerun: Rerun
    overlap: Overlap | None
    max_parallel: int
    priority: Priority
    by: str


def plan(instants: Iterable[datetime], existing: ExistingRuns, rerun: Rerun) -> BackfillSelection:
    """Choose which scheduled times of a range to run. `instants` are in order."""
    rows: dict[datetime, list[Ran]] = defaultdict(list)
    for row in existing.ran:
        rows[row.at].append(row)
    chosen: list[datetime] = []
    omitted: list[OmittedTime] = []
    for at in instants:
        if why := _kept_from(at, rows.get(at, ()), existing, rerun):
            omitted.append(why)
        else:
            chosen.append(at)
    return BackfillSelection(tuple(chosen), tuple(omitted))


def _kept_from(
    at: datetime, rows: Sequence[Ran], existing: ExistingRuns, rerun: Rerun
) -> OmittedTime | None:
    for row in rows:
        if row.state in LIVE:
            return OmittedTime(at, row.state, "a run of this time is in progress", row.run_id)
    if at in existing.queued:
        return OmittedTime(at, State.PENDING, "another backfill will run this time")
    if existing.ahead is not None and at >= existing.ahead:
        return OmittedTime(at, State.PENDING, "the job's schedule will still run this time")
    succeeded = next((row for row in rows if row.state is State.SUCCEEDED), None)
    if succeeded is not None:
        why = "a run of this time succeeded; to run it again, use rerun all"
        omitted = OmittedTime(at, succeeded.state, why, succeeded.run_id)
        return None if rerun is Rerun.ALL else omitted
    failed = next((row for row in rows if row.dispatched), None)
    if failed is not None and rerun is Rerun.NONE:
        why = "a run of this time failed; to run it again, use rerun failed"
        return OmittedTime(at, failed.state, why, failed.run_id)
    return None


# Records of backfills, for the API and for the owner that creates their runs.


@dataclass(frozen=True, slots=True)
class BackfillRecord:
    """The first `made` of the `total` scheduled times have runs; `open`: more will be created.
    `states` counts the runs by state.
    """

    backfill_id: BackfillId
    job_id: JobId
    namespace: str
    job: str
    shard: ShardId
    first: datetime
    last: datetime
    total: int
    made: int
    open: bool
    overlap: Overlap | None
    max_parallel: int
    priority: Priority
    states: dict[State, int]
    created_at: datetime
    created_by: str
    cancelled_at: datetime | None
    """When a person canceled it, or its job was deleted."""
    cancelled_by: str

    @property
    def over(self) -> bool:
        """Whether all its runs have ended and no more will be created."""
        to_come = self.open and self.cancelled_at is None
        return not to_come and not any(self.states.get(state) for state in LIVE)


@dataclass(frozen=True, slots=True)
class Backfilled:
    """A stored backfill, with the scheduled times that it runs and leaves out."""

    record: BackfillRecord
    plan: BackfillSelection


@dataclass(frozen=True, slots=True)
class OpenBackfill:
    backfill_id: BackfillId
    job_id: JobId
    shard: ShardId
