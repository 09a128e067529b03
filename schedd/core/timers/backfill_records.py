"""Records of backfills, for the API and for the owner that creates their runs."""

from datetime import datetime

from schedd.core.ids import BackfillId, JobId, ShardId
from schedd.core.jobs.definition import Overlap, Priority
from schedd.core.runs.lifecycle import LIVE, State
from schedd.core.timers.backfill import BackfillSelection
from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class BackfillRecord:
    """A backfill as the API shows it: its scheduled times and its progress.

    The first `made` of its `total` scheduled times have runs; `open`: more will be created.
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
    """A backfill with runs to create, in the shard of its job."""

    backfill_id: BackfillId
    job_id: JobId
    shard: ShardId
