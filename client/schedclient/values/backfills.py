"""Backfills: runs of a job's past, as values."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from schedclient.values.base import Value
from schedproto.v1 import job_service_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Omitted(Value):
    """A scheduled time that a backfill leaves out, and its run, if there is one."""

    scheduled_at: datetime
    run_id: str | None
    state: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill(Value):
    """Runs of a past range. Of `total` scheduled times, `not_created` have no run yet; `runs`
    counts the others by state. `state` is ACTIVE, DONE or CANCELLED; `first` and `last` are the
    range.
    """

    backfill_id: str
    job: str
    job_id: str
    state: str
    overlap: str | None
    max_parallel: int
    priority: str | None
    total: int
    not_created: int
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
        """The start of the range, inclusive: the wire's `from`, a keyword of Python."""
        first: datetime = getattr(self.message, "from").ToDatetime(tzinfo=UTC)
        return first

    @property
    def last(self) -> datetime:
        """The end of the range, inclusive."""
        last: datetime = cast("job_service_pb2.Backfill", self.message).to.ToDatetime(tzinfo=UTC)
        return last

    @property
    def ended(self) -> bool:
        """Whether all runs of the backfill have ended, and none will follow."""
        return self.state != "ACTIVE" and not self.waiting + self.running + self.retrying


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillPlan(Value):
    """The scheduled times that a backfill runs, those that it leaves out, and the backfill; None
    for a dry run. `omitted` is empty if the idempotency key returned an earlier backfill.
    """

    instants: tuple[datetime, ...]
    omitted: tuple[Omitted, ...]
    backfill: Backfill | None
