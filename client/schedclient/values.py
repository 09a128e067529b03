"""What calls return: frozen values with aware UTC instants, made by `reading`.

Invariants
- A value never changes; asking again gives a new one.
- None means unknown, as in One JSON; an instant is an aware datetime in UTC, a length a timedelta.
- `value.message` is the wire's message in full, `value.to_json()` its One JSON.
- A state or reason that is newer than this code is shown by its number, never an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, cast

from google.protobuf.message import Message

from schedkit.jsonform import payload_value, to_json
from schedproto.v1 import run_pb2


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
    time_zone: str | None
    priority: str | None
    timeout: timedelta | None
    paused: bool
    pause_note: str | None
    next_run_at: datetime | None
    created_at: datetime | None
    updated_at: datetime | None

    @property
    def action(self) -> str | None:
        """shell, http, grpc or python."""
        chosen: str | None = self.message.WhichOneof("action")
        return chosen


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Value):
    """What a run returned: `value` is JSON's, or bytes where it was no JSON."""

    run_id: str
    size: int
    sha256: str | None

    @property
    def value(self) -> Any:
        """The JSON value, bytes, or None."""
        payload = cast("run_pb2.RunResult", self.message).result
        return payload.raw if payload.WhichOneof("kind") == "raw" else payload_value(payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter(Value):
    """A run that failed for good and waits for a person."""

    run: Run
    fingerprint: str
    died_at: datetime | None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant(Value):
    """One coming instant of a job: nominal, and with jitter."""

    scheduled_at: datetime
    due_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster(Value):
    """The cluster as it stands."""

    cluster_id: str
    leader: str | None
    term: int
    shards: int
    owned: int
    members: int
    workers: int
    pending: int
    running: int
    retrying: int
    jobs: int
    dead_letters: int
    version: str | None
    paused: bool
    paused_at: datetime | None
    paused_by: str | None
    pause_note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Value):
    """One schedd process. `role` LEADER or FOLLOWER; `state` LIVE, DRAINING or FENCED."""

    name: str
    role: str
    state: str
    shards: int
    weight: int
    grpc: str | None
    http: str | None
    version: str | None
    tenure: str | None
    attached: bool
    database: bool
    tzdata: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Value):
    """What a checkup found. `severity` OK, WARN or BAD; `why` and `remedy` None where all is well.

    `subject`: the member, endpoint, worker or table that it is about.
    """

    area: str
    severity: str
    check: str
    subject: str | None
    what: str
    why: str | None
    remedy: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup(Value):
    """All findings of one member that was asked. `now`: cluster time when it answered."""

    findings: tuple[Finding, ...]
    member: str | None
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderTransfer(Value):
    """A planned change of leader: names of members, terms, and how long it took."""

    old_leader: str
    new_leader: str
    old_term: int
    new_term: int
    took: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardMove(Value):
    """A shard whose owner changed, or would: names of members, None for nobody."""

    shard: int
    old_owner: str | None
    new_owner: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard(Value):
    """One hash partition of the jobs."""

    shard: int
    owner: str | None
    epoch: int
    tenure: str | None
    assigned: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker(Value):
    """One workerd. `state` LIVE, DRAINING or LOST."""

    name: str
    incarnation: str
    state: str
    slots: int
    free: int
    running: int
    labels: Mapping[str, str]
    handlers: tuple[str, ...]
    version: str | None
    host: str | None
    started_at: datetime | None
    lease_age: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry(Value):
    """Who did what to which, and with what outcome."""

    at: datetime
    actor: str
    action: str
    object: str
    outcome: str
    reason: str | None
    run_id: str | None
    fencing_token: int
    worker: str | None
    source: str | None
    before: str | None
    after: str | None
