"""What calls return: frozen values with aware UTC instants, made from the wire by their own fields.

Invariants
- A value never changes; asking again gives a new one.
- None means unknown, as in One JSON; an instant is an aware datetime in UTC, a length a timedelta.
- `value.message` is the wire's message in full, `value.to_json()` its One JSON.
- A state or reason that is newer than this code is shown by its number, never an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar, get_args, get_type_hints

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from schedkit.jsonform import enum_word, payload_value, to_json

V = TypeVar("V", bound="Value")


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
        payload = getattr(self.message, "result")  # noqa: B009 - Message has no typed fields
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


_NESTED: Final[dict[str, type[Value]]] = {
    "schedd.v1.Run": Run,
    "schedd.v1.ExplainRunResponse.Check": Check,
}
"""Which value each nested message becomes."""


def value_of(cls: type[V], message: Message) -> V:
    """The value of a message: each field of `cls` from the message's field of that name."""
    fields = message.DESCRIPTOR.fields_by_name
    read = {name: _read(message, fields[name], optional) for name, optional in _shape(cls)}
    return cls(message=message, **read)


def _shape(cls: type[Value]) -> tuple[tuple[str, bool], ...]:
    """The names of a value's own fields, and whether each may be None."""
    if cls not in _SHAPES:
        hints = get_type_hints(cls)
        names = [one.name for one in dataclasses.fields(cls) if one.name != "message"]
        _SHAPES[cls] = tuple((name, type(None) in get_args(hints[name])) for name in names)
    return _SHAPES[cls]


_SHAPES: Final[dict[type[Value], tuple[tuple[str, bool], ...]]] = {}


def _read(message: Message, of: Any, optional: bool) -> Any:
    value = getattr(message, of.name)
    if of.message_type is not None and of.message_type.GetOptions().map_entry:
        return dict(value)
    if of.is_repeated:
        return tuple(_single(of, one) for one in value)
    if optional and of.has_presence and not message.HasField(of.name):
        return None
    single = _single(of, value)
    return None if optional and single == "" else single


def _single(of: FieldDescriptor, value: Any) -> Any:
    if of.enum_type is not None:
        word = enum_word(of.enum_type, value)
        return "" if word is None else str(word)
    if of.message_type is None:
        return value
    name = of.message_type.full_name
    if name == "google.protobuf.Timestamp":
        return value.ToDatetime(tzinfo=UTC)
    if name == "google.protobuf.Duration":
        return value.ToTimedelta()
    return value_of(_NESTED[name], value)
