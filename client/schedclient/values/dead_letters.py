"""Dead letters and redrives, as values."""

from collections.abc import Mapping
from datetime import datetime

from schedclient.values.base import Value
from schedclient.values.runs import LIVE, Run
from schedkit.records import immutable_dataclass


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter(Value):
    """A run that failed for good, and waits until it is REDRIVEN or DISCARDED (`resolution`).
    `redriven_as` is the new run.
    """

    run: Run
    fingerprint: str
    died_at: datetime | None
    resolution: str | None
    resolved_at: datetime | None
    resolved_by: str | None
    redriven_as: str | None
    redrive_id: str | None
    note: str | None


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterGroup(Value):
    """Waiting dead letters of one job with one kind of error; `queued` of them wait for a redrive.
    `run_id` is the newest, and `error` its error. For `submitted` runs, `job` is the name that they
    were given, if any.
    """

    fingerprint: str
    namespace: str
    job: str | None
    reason: str | None
    error: str | None
    exit_code: int | None
    count: int
    queued: int
    first_died_at: datetime | None
    last_died_at: datetime | None
    run_id: str
    submitted: bool


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class Redrive(Value):
    """A redrive of dead letters, `rate` per second. `created` of `total` runs are created so far;
    `runs` counts them by state. `state` is OPEN, STOPPED or DONE. `submitted`: whether the group
    had submitted runs or runs of the job with this name; None: both.
    """

    redrive_id: str
    namespace: str
    job: str | None
    fingerprint: str | None
    rate: float
    total: int
    created: int
    omitted: int
    state: str
    runs: Mapping[str, int]
    created_at: datetime | None
    created_by: str | None
    stopped_at: datetime | None
    stopped_by: str | None
    finished_at: datetime | None
    payload_edited: bool
    submitted: bool | None

    @property
    def left(self) -> int:
        """Dead letters that are still queued."""
        return self.total - self.created - self.omitted

    @property
    def ended(self) -> bool:
        """Whether the redrive was stopped, or all its runs have ended. Only for a redrive that was
        read by its id: lists have no `runs`.
        """
        return self.state == "STOPPED" or (self.state == "DONE" and not self.runs.keys() & LIVE)


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class RedrivePlan(Value):
    """The number of dead letters that a redrive selects, and the redrive; None for a dry run."""

    total: int
    redrive: Redrive | None
