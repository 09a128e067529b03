"""What calls return: frozen values with aware UTC instants, made by `reading`. Those of the cluster
itself are in `cluster_values`.

Invariants
- A value never changes; asking again gives a new one.
- None means unknown, as in One JSON; an instant is an aware datetime in UTC, a length a timedelta.
- `value.message` is the wire's message in full, `value.to_json()` its One JSON.
- A state or reason that is newer than this code is shown by its number, never an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, cast

from google.protobuf.message import Message

from schedkit.jsonform import payload_value, to_json
from schedproto.v1 import job_service_pb2, run_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """Base of all values: the message it was made from."""

    message: Message = field(repr=False, compare=False)

    def to_json(self, *, snake: bool = False) -> dict[str, Any]:
        """One JSON of it, every key there."""
        return to_json(self.message, snake=snake)


class RunState(StrEnum):
    """Where a run stands."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    RETRYING = "RETRYING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"
    MISSED = "MISSED"
    COALESCED = "COALESCED"


LIVE: Final = frozenset({RunState.PENDING, RunState.RUNNING, RunState.RETRYING})
"""States that a run leaves again; every other one is its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class After(Value):
    """The jobs that a job runs after: SUCCESS (also if None), FAILURE or ANY of their ends."""

    jobs: tuple[str, ...]
    when: str | None
    with_output: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Value):
    """A definition. The whole of it is in `message`; here is what programs look at."""

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
    runs_made: int
    calendar_versions: Mapping[str, int]
    next_run_at: datetime | None
    created_at: datetime | None
    updated_at: datetime | None

    @property
    def action(self) -> str | None:
        """shell, http, grpc, python or plugin."""
        chosen: str | None = self.message.WhichOneof("action")
        return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress(Value):
    """How far a running attempt is, by its own word: `done` of `total`, said `at`."""

    fraction: float
    done: float
    total: float
    note: str | None
    at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent(Value):
    """A run that a chain's run came after, and how it had ended."""

    job: str
    run_id: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Value):
    """The record of one occurrence of a job, or of one-time work."""

    run_id: str
    namespace: str
    job: str | None
    state: str
    reason: str | None
    priority: str | None
    scheduled_at: datetime | None
    due_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    attempt: int
    assignments: int
    fencing_token: int
    worker: str | None
    exit_code: int | None
    lateness_ms: int | None
    count: int
    scheduled_until: datetime | None
    job_id: str | None
    generation: int
    error: str | None
    trigger: str | None
    retry_at: datetime | None
    backfill_id: str | None
    fired_by: str | None
    tenure: str | None
    excluded_by: str | None
    redrive_of: str | None
    progress: RunProgress | None
    parent_run_id: str | None
    target: str | None
    children: int
    parents: tuple[Parent, ...]

    @property
    def ended(self) -> bool:
        """Whether it will never change again."""
        return self.state not in LIVE

    @property
    def succeeded(self) -> bool:
        """Whether it ended well."""
        return self.state == RunState.SUCCEEDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(Value):
    """One try of a run, or one handing out that was lost."""

    attempt: int
    fencing_token: int
    worker: str | None
    assigned_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    state: str
    reason: str | None
    exit_code: int | None
    error: str | None
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPiece(Value):
    """A piece of a run's output, bytes as the job wrote them. `stream` is STDOUT or STDERR."""

    stream: str
    data: bytes
    offset: int
    at: datetime | None
    omitted: int
    """Bytes left out just before it."""
    fencing_token: int
    """Of the attempt that wrote it, where the run is followed; else 0."""
    note: str | None
    """Instead of data: what is to be known of the log, such as why it isn't whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Value):
    """What a run returned: `value` is JSON's, or bytes where it was no JSON. `stored`: it was too
    large for the database; `problem`: and why it isn't kept.
    """

    run_id: str
    size: int
    sha256: str | None
    stored: bool
    problem: str | None

    @property
    def value(self) -> Any:
        """The JSON value, bytes, or None."""
        payload = cast("run_pb2.RunResult", self.message).result
        return payload.raw if payload.WhichOneof("kind") == "raw" else payload_value(payload)

    @property
    def empty(self) -> bool:
        """Whether nothing was returned, not even `null`."""
        return not self.stored and self.value is None and not self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter(Value):
    """A run that failed for good, and waits for a person until it is settled: REDRIVEN or
    DISCARDED. `redriven_as` is the run that does it again.
    """

    run: Run
    fingerprint: str
    died_at: datetime | None
    settled: str | None
    settled_at: datetime | None
    settled_by: str | None
    redriven_as: str | None
    redrive_id: str | None
    note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterGroup(Value):
    """Dead letters of one job with one kind of error, that wait; `promised` of them to a redrive.
    `run_id` is the newest, and `error` its own. `job` is None for submitted runs.
    """

    fingerprint: str
    namespace: str
    job: str | None
    reason: str | None
    error: str | None
    exit_code: int | None
    count: int
    promised: int
    first_died_at: datetime | None
    last_died_at: datetime | None
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrive(Value):
    """Dead letters that are done again, `rate` a second: `made` of `total` so far, and `runs` says
    how many of those are in which state. `state` is OPEN, STOPPED or DONE.
    """

    redrive_id: str
    namespace: str
    job: str | None
    fingerprint: str | None
    rate: float
    total: int
    made: int
    left_out: int
    state: str
    runs: Mapping[str, int]
    created_at: datetime | None
    created_by: str | None
    stopped_at: datetime | None
    stopped_by: str | None
    finished_at: datetime | None
    payload_edited: bool

    @property
    def left(self) -> int:
        """How many it is still to do again."""
        return self.total - self.made - self.left_out


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrivePlan(Value):
    """How many dead letters a redrive does again, and itself; None for a dry run."""

    total: int
    redrive: Redrive | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Value):
    """One thing that was looked at to answer why."""

    question: str
    answer: str
    remedy: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation(Value):
    """Why a run waits, or why it ended so."""

    answer: str
    checks: tuple[Check, ...]
    refused: bool
    """It waits because each worker that might run it has refused it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantExplanation(Value):
    """Why a job ran, or not, at one instant, and the row that says so; None where there is none."""

    answer: str
    run: Run | None
    backfilled: tuple[Run, ...]
    """Runs that backfills made for this instant, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant(Value):
    """One coming instant of a job: nominal, and with jitter. `excluded_by`: the calendar, in words,
    for which it doesn't run.
    """

    scheduled_at: datetime
    due_at: datetime
    excluded_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DateRange(Value):
    """Days, both inclusive. The first is `message`'s `from`."""

    to: str

    @property
    def first(self) -> str:
        """The first of them."""
        return str(getattr(self.message, "from"))


@dataclass(frozen=True, slots=True, kw_only=True)
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
    behind: int
    updated_at: datetime | None
    updated_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool(Value):
    """Jobs that share a `limit` of runs under way at once (however many if 0), a `rate` of starts
    as `"100/m"` (however often if None), or both. `recent` started within the rate's last time.
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
