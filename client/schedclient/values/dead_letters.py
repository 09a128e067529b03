"""Dead letters, and the redrives that do them again, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from schedclient.values.base import Value
from schedclient.values.runs import LIVE, Run


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
    `run_id` is the newest, and `error` its own. `job` of what was `submitted` is the name that
    it was given, if any.
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
    submitted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrive(Value):
    """Dead letters that are done again, `rate` a second: `made` of `total` so far, and `runs` says
    how many of those are in which state. `state` is OPEN, STOPPED or DONE. `submitted` says of one
    group whose it was, submitted runs' or the job's; None: whatever was named so.
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
    submitted: bool | None

    @property
    def left(self) -> int:
        """How many it is still to do again."""
        return self.total - self.made - self.left_out

    @property
    def ended(self) -> bool:
        """Whether it was stopped, or all is made and has ended: of one that was asked for by its
        id, for of a list's `runs` is empty.
        """
        return self.state == "STOPPED" or (self.state == "DONE" and not self.runs.keys() & LIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrivePlan(Value):
    """How many dead letters a redrive does again, and itself; None for a dry run."""

    total: int
    redrive: Redrive | None
