"""Backfills: runs of a job's past, as values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from schedclient.values.base import Value
from schedproto.v1 import job_service_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut(Value):
    """An instant of a backfill's range that isn't run; without `run_id` there is no run of it."""

    scheduled_at: datetime
    run_id: str | None
    state: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill(Value):
    """Runs of a past range: `total` instants, of which `to_come` have no run yet, and how the runs
    of the others stand. `state` is ACTIVE, DONE or CANCELLED; the range is in `first` and `last`.
    """

    backfill_id: str
    job: str
    job_id: str
    state: str
    overlap: str | None
    max_parallel: int
    priority: str | None
    total: int
    to_come: int
    waiting: int
    running: int
    retrying: int
    succeeded: int
    failed: int
    skipped: int
    cancelled: int
    created_at: datetime | None
    created_by: str | None
    cancelled_at: datetime | None
    cancelled_by: str | None

    @property
    def first(self) -> datetime:
        """From when on, inclusive. The wire calls it `from`, which is a word of Python's."""
        first: datetime = getattr(self.message, "from").ToDatetime(tzinfo=UTC)
        return first

    @property
    def last(self) -> datetime:
        """Until when, inclusive."""
        last: datetime = cast("job_service_pb2.Backfill", self.message).to.ToDatetime(tzinfo=UTC)
        return last

    @property
    def ended(self) -> bool:
        """Whether nothing of it is there any more, or to come."""
        return self.state != "ACTIVE" and not self.waiting + self.running + self.retrying


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillPlan(Value):
    """The instants that a backfill runs, those of its range that it leaves out, and itself; None
    for a dry run. `left_out` is empty where an idempotency key gave an earlier one.
    """

    instants: tuple[datetime, ...]
    left_out: tuple[LeftOut, ...]
    backfill: Backfill | None
