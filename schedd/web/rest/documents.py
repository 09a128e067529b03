"""Serve three requests whose format doesn't follow the protos, by calls of the table.

    POST   /api/v1/jobs {…, callback_url}  → CreateJob         → {job_id, next_fire_time}
    GET    /api/v1/jobs/{id}/status        → GetJob, ListRuns  → {job_id, status, last_run, …}
    POST   /api/tasks {taskName, …}        → SubmitRun         → {job_id, run_id}
    DELETE /api/v1/jobs/{id}               follows the table: {deleted: true}

Only these answer in snake_case. Errors have the usual format and name the keys as sent. Keys are
accepted in lowerCamelCase and snake_case.
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from schedd.api.calls import make_call
from schedd.api.errors import CallError, FieldViolation, refuse
from schedd.api.services import Caller, Services
from schedd.web.rest import problems, requests
from schedkit.protojson import FormErrors, from_json, instant_text
from schedkit.protojson.scalars import enum_word
from schedproto.v1 import common_pb2, job_pb2, run_pb2, run_service_pb2

CALLBACK: Final = "callback_url"
CALLBACKS: Final = (CALLBACK, "callbackUrl")
UNTAKEN: Final = ("If-Match", "If-None-Match", "Last-Event-ID")
"""Headers that a task doesn't support."""

PRIORITIES: Final = {
    1: common_pb2.PRIORITY_HIGH,
    2: common_pb2.PRIORITY_MEDIUM,
    3: common_pb2.PRIORITY_LOW,
}
LONGEST_DELAY: Final = 100 * 365 * 24 * 3600 * 1000
"""Milliseconds: a hundred years."""
OF_CALLBACK: Final = ("job.http.url", "http.url")
"""Fields of the callback of a job."""

CAME_TO_WORK: Final = (
    common_pb2.RUN_STATE_PENDING,
    common_pb2.RUN_STATE_RUNNING,
    common_pb2.RUN_STATE_RETRYING,
    common_pb2.RUN_STATE_SUCCEEDED,
    common_pb2.RUN_STATE_FAILED,
    common_pb2.RUN_STATE_CANCELLED,
    common_pb2.RUN_STATE_MISSED,
)
"""States that a status considers: not those of skipped and coalesced scheduled times."""
WAITING: Final = CAME_TO_WORK[:3]
LOOKED_THROUGH: Final = 1_000
"""Runs that a status reads, at most."""

_STATES: Final = common_pb2.RunState.DESCRIPTOR

STATUS_PATH: Final = re.compile(r"/api/v1/jobs/([^/:]+)/status")
TASKS_PATH: Final = "/api/tasks"


# -- a job with a callback


def callback_of(body: Mapping[str, Any]) -> str:
    return next((key for key in CALLBACKS if key in body), "")


def as_job(body: Mapping[str, Any], callback: str) -> dict[str, Any]:
    """Return the job of a callback: an HTTP POST to the callback, with the payload as its body.

    Raises:
        CallError: the callback isn't a text, is given twice, or the job has another action, too.
    """
    job = {key: value for key, value in body.items() if key != callback}
    if other := callback_of(job):
        _refuse([_twice(other, callback)])
    if not isinstance(body[callback], str) or not body[callback]:
        _refuse([FieldViolation(callback, "must be an http or https URL")])
    if "http" in job:
        _refuse([FieldViolation(callback, "conflicts with `http`; give one of them")])
    return job | {"http": {"method": "POST", "url": body[callback]}}


async def create(
    services: Services, caller: Caller, request: Message, callback: str
) -> job_pb2.Job:
    """Create the job. Raises CallError, with the keys as sent."""
    try:
        return await make_call(services, caller, request, job_pb2.Job)
    except CallError as error:
        problems.rename(error, partial(_as_sent, dict.fromkeys(OF_CALLBACK, callback)))
        raise


def made(job: job_pb2.Job) -> dict[str, Any]:
    return {"job_id": job.job_id, "next_fire_time": _instant(job, "next_run_at")}


# -- status of a job


async def status(services: Services, caller: Caller, request: Message) -> dict[str, Any]:
    """Return the status of a job, by its newest run that waits or has started. A task is identified
    by the id of its run.

    Raises:
        CallError: the job wasn't found, or can't be read.
    """
    found = await make_call(services, caller, request, job_pb2.Job)
    coming, now = [_instant(found, "next_run_at")], services.clock.now()
    newest, began, ended = None, None, None
    async for run in _runs(services, caller, found):
        if run.HasField("retry_at") and run.retry_at.ToDatetime(tzinfo=UTC) > now:
            coming.append(_instant(run, "retry_at"))
        began = await _began(services, caller, run)
        if began is not None:
            newest = newest or run
            break
        if run.state not in WAITING:
            ended = ended or run  # before it could start, or its start wasn't reported
        elif run.due_at.ToDatetime(tzinfo=UTC) <= now:
            newest = newest or run
        else:
            coming.append(_instant(run, "due_at"))
    if not any(coming):
        newest = newest or ended  # no further run: the job has ended like that run
    return {
        "job_id": found.job_id,
        "status": enum_word(_STATES, newest.state if newest else common_pb2.RUN_STATE_PENDING),
        "last_run": began,
        "next_run": min(filter(None, coming), default=None),
        "retry_count": max(0, newest.attempt - 1) if newest else 0,
    }


async def _began(services: Services, caller: Caller, run: run_pb2.Run) -> str | None:
    """Return the start of its latest attempt with a known start."""
    if run.attempt <= 1 or run.HasField("started_at"):
        return _instant(run, "started_at")
    request = run_service_pb2.ListAttemptsRequest(run_id=run.run_id)
    answer = await make_call(services, caller, request, run_service_pb2.ListAttemptsResponse)
    starts = (_instant(each, "started_at") for each in answer.attempts)
    return max((start for start in starts if start), default=None)


async def _runs(services: Services, caller: Caller, job: job_pb2.Job) -> AsyncIterator[run_pb2.Run]:
    request = run_service_pb2.ListRunsRequest(
        namespace=job.namespace, job=job.job_id, states=CAME_TO_WORK, page_size=50
    )
    for _ in range(0, LOOKED_THROUGH, request.page_size):
        page = await make_call(services, caller, request, run_service_pb2.ListRunsResponse)
        for run in page.runs:
            yield run
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


# -- tasks


async def submit(
    services: Services, caller: Caller, body: Mapping[str, Any], key: str | None = None
) -> dict[str, Any]:
    """Submit a task: one run of a Python handler. The same task with the same `customJobId`, or
    `key` (a header), returns the same run.

    Raises:
        CallError: with the keys of the task.
    """
    request, stands_at = as_submit(body), _stands_at(body)
    if key is not None and request.idempotency_key not in ("", key):
        differs = "differs from the header Idempotency-Key"
        _refuse([FieldViolation(stands_at["idempotency_key"], differs)])
    if key is not None:
        request.idempotency_key = key
        stands_at["idempotency_key"] = "Idempotency-Key"
    try:
        run = await make_call(services, caller, request, run_pb2.Run)
    except CallError as error:
        problems.rename(error, partial(_as_sent, stands_at))
        raise
    return {"job_id": run.run_id, "run_id": run.run_id}


def as_submit(body: Mapping[str, Any]) -> run_service_pb2.SubmitRunRequest:
    """Return the submit of a task. Raises InvalidArgumentError with all problems. Pure."""
    sent = _sent(body)
    wrong = [
        FieldViolation(key, f"unknown key; a task has {', '.join(_TASK)}")
        if key not in _SPELT
        else _twice(key, sent[_SPELT[key]])
        for key in body
        if sent.get(_SPELT.get(key, "")) != key
    ]
    form: dict[str, Any] = {}
    for key, (path, valid, problem, as_field) in _TASK.items():
        value = body.get(sent.get(key, key))
        if value is None and key != "taskName":
            continue
        if valid(value):
            requests.nest(form, path.split("."), as_field(value))
        else:
            empty = value == "" and problem is _NOT_TEXT
            wrong.append(FieldViolation(sent.get(key, key), _EMPTY if empty else problem))
    if wrong:
        _refuse(wrong)
    try:
        return from_json(form, run_service_pb2.SubmitRunRequest)
    except FormErrors as errors:
        stands_at = _stands_at(body)
        named = ((_as_sent(stands_at, one.where), one.what) for one in errors.problems)
        _refuse([FieldViolation(*one) for one in named])
        raise


def _sent(body: Mapping[str, Any]) -> dict[str, str]:
    sent: dict[str, str] = {}
    for key in body:
        if key in _SPELT:
            sent.setdefault(_SPELT[key], key)
    return sent


def _stands_at(body: Mapping[str, Any]) -> dict[str, str]:
    """Return field of the submit → the key as sent."""
    sent = _sent(body)
    return {path: sent.get(key, key) for key, (path, *_) in _TASK.items()}


def unasked(key: str) -> str:
    return "must be in the body, not in the address" if key in _SPELT else "unknown parameter"


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _same(value: Any) -> Any:
    return value


_NOT_TEXT: Final = "the value must be a string"
_EMPTY: Final = "the value is empty: give a text, or leave the key out"
_TASK: Final[Mapping[str, tuple[str, Callable[[Any], bool], str, Callable[[Any], Any]]]] = {
    "taskName": (
        "spec.python.handler",
        _is_text,
        "the task's name must be the name of a Python handler",
        _same,
    ),
    "payload": ("spec.payload", lambda _: True, "", _same),
    "delayMs": (
        "delay",
        lambda value: _is_whole(value) and 0 <= value <= LONGEST_DELAY,
        f"the delay must be whole milliseconds, from 0 to {LONGEST_DELAY}",
        lambda value: f"{value // 1000}.{value % 1000:03d}s",
    ),
    "priority": (
        "spec.priority",
        lambda value: _is_whole(value) and value in PRIORITIES,
        "the priority must be 1 (HIGH), 2 (MEDIUM) or 3 (LOW)",
        lambda value: enum_word(common_pb2.Priority.DESCRIPTOR, PRIORITIES[value]),
    ),
    "customJobId": ("idempotency_key", _is_text, _NOT_TEXT, _same),
    "namespace": ("namespace", _is_text, _NOT_TEXT, _same),
}
"""Key of a task → field of the submit, whether a value is valid, the problem of others, and the
value as the field takes it.
"""
_SPELT: Final = {
    spelt: key for key in _TASK for spelt in (key, re.sub("([A-Z])", r"_\1", key).lower())
}
"""Spelling of a key of a task → the key."""


def _as_sent(keys: Mapping[str, str], path: str) -> str:
    """Return the path with the key as sent, if the field comes from a key."""
    for field, key in keys.items():
        if path == field or path.startswith((f"{field}.", f"{field}[")):
            return key + path.removeprefix(field)
    return path


def _twice(key: str, other: str) -> FieldViolation:
    return FieldViolation(key, f"the key is given twice, also as {other}")


def _refuse(wrong: list[FieldViolation]) -> None:
    refuse(wrong, "INVALID_FIELD", "correct the request and send it again; nothing was stored")


def _instant(message: Message, field: str) -> str | None:
    at: Timestamp = getattr(message, field)
    return instant_text(at) if message.HasField(field) else None
