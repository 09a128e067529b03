"""Jobs with their scheduled times, pools and calendars, as values."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import cast

from schedclient.values.base import Value
from schedclient.values.runs import Run
from schedkit.records import immutable_dataclass
from schedproto.v1 import job_service_pb2


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class After(Value):
    """The jobs that a job runs after, and their outcome: SUCCESS (also if None), FAILURE or ANY."""

    jobs: tuple[str, ...]
    when: str | None
    with_output: bool


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class Job(Value):
    """A definition. `message` has all of it; the fields here are those that most programs need."""

    job_id: str
    namespace: str
    name: str
    generation: int
    etag: str
    labels: Mapping[str, str]
    cron: tuple[str, ...]
    every: timedelta | None
    at: datetime | None
    on_demand: bool
    after: After | None
    time_zone: str | None
    priority: str | None
    pool: str | None
    timeout: timedelta | None
    paused: bool
    pause_note: str | None
    paused_until: datetime | None
    max_runs: int
    runs_created: int
    calendar_versions: Mapping[str, int]
    next_run_at: datetime | None
    created_at: datetime | None
    updated_at: datetime | None
    warnings: tuple[str, ...] = ()
    """Why no running worker can take its runs, in answers to create and update."""

    @property
    def action(self) -> str | None:
        """shell, http, grpc, python or plugin."""
        chosen: str | None = self.message.WhichOneof("action")
        return chosen


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class Instant(Value):
    """A future scheduled time of a job, without and with jitter. `excluded_by`: the calendar that
    excludes it, in words.
    """

    scheduled_at: datetime
    due_at: datetime
    excluded_by: str | None


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class InstantExplanation(Value):
    """Why a job ran, or not, at a scheduled time, and its row; None if there is none."""

    answer: str
    run: Run | None
    backfilled: tuple[Run, ...]
    """Runs that backfills created for this scheduled time, oldest first."""


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class Pool(Value):
    """Jobs that share a `limit` of runs in progress (0: unlimited), a `rate` of starts as `"100/m"`
    (None: unlimited), or both. `recent` started within the last period of the rate.
    """

    namespace: str
    name: str
    limit: int
    rate: str | None
    version: int
    paused: bool
    pause_note: str | None
    paused_by: str | None
    jobs: int
    running: int
    waiting: int
    recent: int
    updated_at: datetime | None
    updated_by: str | None


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class DateRange(Value):
    """Days, both inclusive. The first is `message`'s `from`."""

    to: str

    @property
    def first(self) -> str:
        """The first day."""
        return str(getattr(self.message, "from"))


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class Calendar(Value):
    """Days and times that jobs exclude; one version of it."""

    namespace: str
    name: str
    version: int
    dates: tuple[str, ...]
    weekdays: tuple[str, ...]
    ranges: tuple[DateRange, ...]
    cron: tuple[str, ...]
    time_zone: str | None
    roll: str | None
    jobs: int
    jobs_behind: int
    updated_at: datetime | None
    updated_by: str | None


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class Omitted(Value):
    """A scheduled time that a backfill leaves out, and its run, if there is one."""

    scheduled_at: datetime
    run_id: str | None
    state: str
    why: str


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
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


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class BackfillPlan(Value):
    """The scheduled times that a backfill runs, those that it leaves out, and the backfill; None
    for a dry run. `omitted` is empty if the idempotency key returned an earlier backfill.
    """

    instants: tuple[datetime, ...]
    omitted: tuple[Omitted, ...]
    backfill: Backfill | None
