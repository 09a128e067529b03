"""Runs, attempts, logs, results, explanations and events, as values."""

from datetime import datetime
from enum import StrEnum
from typing import Any, Final, cast

from schedclient.values.base import Value
from schedkit.protojson import payload_value
from schedkit.records import immutable_dataclass
from schedproto.v1 import run_pb2


class RunState(StrEnum):
    """State of a run."""

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
"""States that aren't final."""


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress(Value):
    """Reported progress of a running attempt: `done` of `total`, at the time `at`."""

    fraction: float
    done: float
    total: float
    note: str | None
    at: datetime | None


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class Parent(Value):
    """A parent run of a run in a chain, and its outcome."""

    job: str
    run_id: str
    state: str


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
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
    losses: int
    """Number of times that its worker was lost while it ran."""
    max_losses: int
    """Losses at which the run fails; 0: none so far."""

    @property
    def ended(self) -> bool:
        """Whether the state is final."""
        return self.state not in LIVE

    @property
    def succeeded(self) -> bool:
        """Whether it succeeded."""
        return self.state == RunState.SUCCEEDED


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(Value):
    """An attempt of a run, or an assignment that was lost."""

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


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class LogPiece(Value):
    """A piece of a run's output, bytes as the job wrote them. `stream` is STDOUT or STDERR."""

    stream: str
    data: bytes
    offset: int
    at: datetime | None
    omitted: int
    """Bytes omitted directly before this piece."""
    fencing_token: int
    """Token of the attempt that wrote this, if the run is followed; otherwise 0."""
    note: str | None
    """A remark on the log instead of data, for example why it is incomplete."""


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class Result(Value):
    """The result of a run. `value` is JSON, or bytes if it wasn't JSON. `stored`: it was too large
    for the database. `problem`: why it isn't kept.
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
        """Whether the run returned nothing, not even `null`."""
        return not self.stored and self.value is None and not self.size


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class Check(Value):
    """A check that the explanation is based on."""

    question: str
    answer: str
    remedy: str | None


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class Explanation(Value):
    """Why a run waits, or why it ended as it did."""

    answer: str
    checks: tuple[Check, ...]
    refused: bool
    """The run waits because each suitable worker has rejected it."""


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class Gap(Value):
    """Changes that a stream lost, in words. `before`: only runs scheduled before then that have
    ended meanwhile are affected; None: all runs.
    """

    why: str
    scheduled_before: datetime | None


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEvent(Value):
    """A change of leader, or a member or worker that was lost or returned. `kind`: leader-changed,
    member-lost, member-returned, worker-lost, worker-returned or worker-restarted. `object`:
    cluster/leader, member/NAME or worker/NAME. `text`: one sentence.
    """

    at: datetime
    kind: str
    object: str
    text: str
    reason: str | None


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent(Value):
    """The current state of a run, a gap, or a change of the cluster. `cursor`: the position after
    it, valid at any member.
    """

    run: Run | None
    gap: Gap | None
    cluster: ClusterEvent | None
    cursor: str
