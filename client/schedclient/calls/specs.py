"""Specs of jobs and work: typed keywords, parsed as One JSON.

Times are aware datetimes (or RFC 3339 texts), durations timedeltas (or `"90s"`).
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias, TypedDict, TypeVar

from google.protobuf.message import Message

from schedclient.errors import from_form
from schedkit.protojson import FormErrors, Problem, from_json
from schedproto.v1 import calendar_service_pb2, common_pb2, job_pb2

Length: TypeAlias = timedelta | str
When: TypeAlias = datetime | str
Form: TypeAlias = Mapping[str, Any]
M = TypeVar("M", bound=Message)
N = TypeVar("N", job_pb2.Job, calendar_service_pb2.Calendar)


class Retry(TypedDict, total=False):
    """The retry policy: see docs/semantics/retries.md."""

    max_attempts: int
    backoff: Length
    factor: float
    max: Length
    jitter: float
    retry_on: Sequence[str]
    fail_on: Sequence[str]


class Limits(TypedDict, total=False):
    """Resource limits of a program: see `docs/semantics/actions.md`, "Limits"."""

    memory_bytes: int
    processes: int
    files: int


class Shell(TypedDict, total=False):
    """A program and its arguments, or a script with its interpreter."""

    argv: Sequence[str]
    script: str
    interpreter: Sequence[str]
    user: str
    cwd: str
    env: Mapping[str, str]
    env_from: Sequence[str]
    stdin: str
    stdin_text: str
    success_codes: Sequence[int]
    limits: Limits
    umask: int


class Http(TypedDict, total=False):
    """An HTTP call."""

    method: str
    url: str
    headers: Mapping[str, str]
    json: Any
    body: str
    success_statuses: Sequence[int]
    success_pattern: str
    follow_redirects: bool
    signing_key: str


class Grpc(TypedDict, total=False):
    """A gRPC call: `JobHandler.Run`, or `method` (`package.Service/Method`) by reflection."""

    endpoint: str
    method: str
    metadata: Mapping[str, str]


class Python(TypedDict, total=False):
    """A worker's handler. `env_from` and `limits` need a handler with its own process."""

    handler: str
    env_from: Sequence[str]
    limits: Limits


class Plugin(TypedDict, total=False):
    """The action of an external executor, with its own `config`."""

    executor: str
    config: Any


class NotificationSpec(TypedDict, total=False):
    """A notification: webhook, command or email (at least one), and its frequency."""

    webhook: str
    command: Sequence[str]
    email: str | Sequence[str]
    threshold: int
    min_interval: Length
    after: Length


class AfterSpec(TypedDict, total=False):
    """Parents of a job, and the outcome that counts: success, failure or any."""

    jobs: Sequence[str]
    when: str
    with_output: bool


class Work(TypedDict, total=False):
    """The action, attempts, timeouts and placement of a job. Exactly one of shell, http, grpc,
    python, plugin.
    """

    shell: Shell
    http: Http
    grpc: Grpc
    python: Python
    plugin: Plugin
    payload: Any
    priority: str
    pool: str
    slots: int
    require: Mapping[str, str | Sequence[str]]
    prefer: Mapping[str, str | Sequence[str]]
    placement: str
    retry: Retry
    delivery: str
    on_lease_lost: str
    timeout: Length
    start_deadline: Length
    run_timeout: Length
    heartbeat_timeout: Length
    kill_after: Length


class JobSpec(Work, total=False):
    """A job: work and its schedule. Exactly one of cron, every, at, on_demand, after."""

    labels: Mapping[str, str]
    cron: str | Sequence[str]
    every: Length
    phase: Length
    anchor: str
    at: When
    on_demand: bool
    time_zone: str
    start: When
    end: When
    max_runs: int
    jitter: Length
    exclude: Form
    dst: Form
    catch_up: Form
    overlap: str | Mapping[str, int]
    overlap_limit: int
    pause_after_failures: int
    after: AfterSpec
    on_failure: NotificationSpec
    on_recovery: NotificationSpec
    on_dead_letter: NotificationSpec
    on_late: NotificationSpec
    retention: Length
    paused: bool
    pause_note: str
    paused_until: When


def read_form(form: Form, message: type[M]) -> M:
    """Return the message of a form. Raises InvalidArgument: lists every problem."""
    try:
        return from_json(form, message)
    except FormErrors as error:
        raise from_form(error) from None


def described(spec: Form | N, message: type[N], *, name: str = "", namespace: str = "") -> N:
    """Return the message of a spec, as a copy. Raises as `read_form`."""
    if isinstance(spec, message):
        found = message()
        found.CopyFrom(spec)
    else:
        found = read_form(spec, message)
    found.name = name or found.name
    found.namespace = found.namespace or namespace
    return found


def job_message(spec: Form | job_pb2.Job, *, name: str = "", namespace: str = "") -> job_pb2.Job:
    return described(spec, job_pb2.Job, name=name, namespace=namespace)


def payload_message(value: Any) -> common_pb2.Payload | None:
    """Return the wire's Payload of a JSON value or bytes; None for None."""
    if value is None or isinstance(value, common_pb2.Payload):
        return value
    return job_message({"payload": value}).payload


def length_message(value: Length | None, called: str) -> Any:
    """Return the wire's Duration, or None. `called`: the caller's name of the argument."""
    return None if value is None else _read("every", value, called).every


def when_message(value: When | None, called: str) -> Any:
    """Return the wire's Timestamp, or None. `called`: the caller's name of the argument."""
    return None if value is None else _read("start", value, called).start


def _read(field: str, value: Any, called: str) -> job_pb2.Job:
    """Return a job with a value of the type of `field`. Problems are reported under `called`."""
    try:
        return from_json({field: value}, job_pb2.Job)
    except FormErrors as error:
        own = [
            Problem((called, *one.path[1:]), one.message, one.suggestion) for one in error.problems
        ]
        raise from_form(FormErrors(own)) from None


def enum_number(field: str, value: str | None) -> int:
    """Return the number of a word of the enum of the Job's `field`; 0 for None."""
    return 0 if value is None else int(getattr(job_message({field: value}), field))
