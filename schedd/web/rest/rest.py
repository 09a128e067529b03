"""REST: every call of the table, requested by its HTTP rule, answered in One JSON.

    request ─rules─▶ route ─requests─▶ message ─api/calls─▶ answer ─protojson─▶ JSON, or events
                                                   └─CallError─▶ problems

This module knows no single call, except the status of those that create something. Requests that
don't follow the protos are in `documents`.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping
from contextlib import ExitStack
from functools import cached_property, lru_cache, partial
from typing import Any, Final
from urllib.parse import quote

from google.protobuf.message import Message
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from schedd.api.calls import BATCHES, STREAMING, UNARY, methods
from schedd.api.errors import AbortedError, CallError, FieldViolation, refuse
from schedd.api.runs.logs import BEGINNING
from schedd.api.runs.stream_readers import Places
from schedd.api.services import DEFAULT_NAMESPACE, Services
from schedd.runtime.budgeted_work import converted
from schedd.web.http_auth import caller_of
from schedd.web.rest import bodies, documents, openapi, problems, requests
from schedd.web.rest.documents import CALLBACK, LONGEST_DELAY, PRIORITIES, TASKS_PATH
from schedd.web.rest.http_rules import RouteMatch, Routes
from schedd.web.rest.openapi import NAMESPACE, answered, asked
from schedd.web.rest.problems import RequestProblem
from schedd.web.streams import EventStream, ServerSentEvent
from schedkit.errors import Unavailable
from schedkit.protojson import to_json
from schedproto.v1 import job_pb2, run_service_pb2

# OpenAPI operations of the requests in `documents`.

_TEXT: Final = {"type": "string", "minLength": 1}
_TEXT_OR_NULL: Final = {**_TEXT, "type": ["string", "null"]}
_INSTANT: Final = {"type": ["string", "null"], "format": "date-time"}


def _object(*required: str, **properties: Any) -> dict[str, Any]:
    """Return the schema of an object; without names, all of its keys are required."""
    keys = list(required or properties)
    return {"type": "object", "properties": properties, "required": keys}


DOCUMENT_OPERATIONS: Final[Mapping[str, Any]] = {
    "/api/v1/jobs": {
        "post": {
            "requestBody": asked(
                _object(
                    *("name", "cron", CALLBACK),
                    name=_TEXT,
                    cron=_TEXT,
                    callback_url={"type": "string", "format": "uri"},
                    priority={"type": "string", "enum": ["LOW", "MEDIUM", "HIGH"]},
                    payload={},
                )
                | {
                    "description": "A job that posts its payload to a URL; other fields of a job"
                    " are allowed, too."
                }
            ),
            "responses": answered(201, _object(job_id=_TEXT, next_fire_time=_INSTANT)),
        }
    },
    "/api/v1/jobs/{job}/status": {
        "get": {
            "operationId": "getJobStatus",
            "tags": ["Job"],
            "summary": "Get the status of a job",
            "parameters": [
                {"name": "job", "in": "path", "required": True, "schema": _TEXT},
                {"name": "namespace", "in": "query", "schema": NAMESPACE},
            ],
            "responses": answered(
                200,
                _object(
                    job_id=_TEXT,
                    status=_TEXT,
                    last_run=_INSTANT,
                    next_run=_INSTANT,
                    retry_count={"type": "integer", "minimum": 0},
                ),
            ),
        }
    },
    TASKS_PATH: {
        "post": {
            "operationId": "submitTask",
            "tags": ["Run"],
            "summary": "Run a Python handler once",
            "requestBody": asked(
                _object(
                    "taskName",
                    taskName=_TEXT,
                    payload={},
                    delayMs={"type": ["integer", "null"], "minimum": 0, "maximum": LONGEST_DELAY},
                    priority={
                        "description": "1 HIGH, 2 MEDIUM, 3 LOW",
                        "enum": [*PRIORITIES, None],
                    },
                    customJobId=_TEXT_OR_NULL,
                    namespace=_TEXT_OR_NULL,
                )
                | {"additionalProperties": False}
            ),
            "responses": answered(202, _object(job_id=_TEXT, run_id=_TEXT)),
        }
    },
}
"""Operations that aren't calls, by path and method."""

log = logging.getLogger(__name__)

FIRST_WITHIN: Final = 1.0
"""Seconds to wait for a stream's first answer, or its error, before the response begins."""
STANDS: Final = run_service_pb2.RunEvent()
"""The event that only marks the beginning of a stream; it isn't sent."""
KEPT: Final = 4_096
"""Cached events of runs, one or two KB each."""
STREAMS_OF_ONE_HOST: Final = 224
"""Fewer than its connections, so that one stream more is rejected with a reason."""

OPENAPI_PATH: Final = "/api/v1/openapi.json"
NO_HEADERS: Final[Mapping[str, str]] = {}
NOT_KEPT: Final = {"cache-control": "no-store"}
CREATE: Final = "schedd.v1.JobService.CreateJob"

STATUSES: Final[dict[str, int]] = {
    CREATE: 201,
    "schedd.v1.JobService.TriggerJob": 202,
    "schedd.v1.RunService.SubmitRun": 202,
}
"""Calls whose success isn't 200."""


class Rest:
    def __init__(self, services: Services, closing: asyncio.Event) -> None:
        self.routes: Final = Routes(methods())
        self._services = services
        self._closing = closing
        self._places = Places(STREAMS_OF_ONE_HOST)

    @cached_property
    def _openapi(self) -> tuple[bytes, str]:
        """Return the document and its etag, made at the first request for it."""
        made = openapi.document(
            [one for one in self.routes.all if one.method.full_name in {**UNARY, **STREAMING}],
            self._services.version,
            statuses=STATUSES,
            streaming=STREAMING,
            words=DOCUMENT_OPERATIONS,
        )
        content = _json(made).encode()
        return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'

    def _document(self, request: Request) -> Response:
        _only(request, "GET")
        content, etag = self._openapi
        headers = {"etag": etag, "cache-control": "no-cache"}
        known = ",".join(request.headers.getlist("if-none-match")).replace("W/", "").split(",")
        if {etag, "*"} & {one.strip() for one in known}:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type="application/json")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._route_request(request)
        except ClientDisconnect:
            log.info("caller disconnected during a request")
            return
        except RequestProblem as refusal:
            response = problems.problem_response(refusal.body, refusal.headers)
        except CallError as error:
            response = problems.refused(_problem(error, request))
        except Unavailable as error:
            log.warning("call rejected, a dependency is unavailable: %s", error)
            response = problems.problem_response(problems.problem_of(error))
        await response(scope, receive, send)

    async def _route_request(self, request: Request) -> ASGIApp:
        path = _raw_path(request.scope)
        if (asked := documents.STATUS_PATH.fullmatch(path)) is not None:
            return await self._status(request, asked[1])
        if path == documents.TASKS_PATH:
            return await self._task(request)
        if path == OPENAPI_PATH:
            return self._document(request)
        found = self._find(request, path)
        body = await bodies.body_of(request, expected=bool(found.route.body))
        try:
            return await self._call(request, found, body)
        except CallError as error:
            problems.rename(error, partial(requests.named, request.headers))
            problems.rename(error, partial(problems.within, found.route.body))
            raise

    async def _call(
        self, request: Request, found: RouteMatch, body: Mapping[str, Any] | None
    ) -> ASGIApp:
        name = found.route.method.full_name
        if name == CREATE and body is not None and (callback := documents.callback_of(body)):
            message = requests.read_request(request, found, documents.as_job(body, callback))
            job = await documents.create(self._services, caller_of(request), message, callback)
            return _json_response(_json(documents.made(job)), 201, _headers(job, 201))
        size = getattr(request.state, "body_size", 0)
        message = await converted(size, partial(requests.read_request, request, found, body))
        if name in STREAMING:
            return await self._stream(request, name, message)
        answer = await UNARY[name](self._services, caller_of(request), message)
        if name in BATCHES:
            problems.rename_outcomes(answer)
        status = STATUSES.get(name, 200)
        content = await converted(answer.ByteSize(), lambda: _json(to_json(answer)))
        return _json_response(content, status, _headers(answer, status))

    async def _stream(self, request: Request, name: str, message: Message) -> ASGIApp:
        """Return a stream, which counts until it ends. If the reader already has its end, return
        204, so that a browser stops reconnecting.
        """
        caller = caller_of(request)
        with ExitStack() as place:
            place.enter_context(self._places.taken(caller.source.removeprefix("http:")))
            answers = _renamed(STREAMING[name](self._services, caller, message), request.headers)
            stream = await _streamed(
                answers, self._closing, getattr(message, requests.NEWEST, None)
            )
            if stream is None:
                return Response(status_code=204, headers=NOT_KEPT)
            stream.call_at_end(place.pop_all().close)
            return stream

    # -- requests that aren't in the table --

    async def _status(self, request: Request, job: str) -> Response:
        _only(request, "GET")
        await bodies.body_of(request, expected=False)
        wanted = requests.read_request(request, self._find(request, f"/api/v1/jobs/{job}"), None)
        found = await documents.status(self._services, caller_of(request), wanted)
        return _json_response(_json(found), 200)

    async def _task(self, request: Request) -> Response:
        _only(request, "POST")
        body = await bodies.body_of(request, expected=True) or {}
        _without_query(request)
        refuse(
            [
                FieldViolation(header, "not supported by this call")
                for header in documents.UNTAKEN
                if header in request.headers
            ],
            "INVALID_REQUEST",
            "leave the header out",
        )
        key = requests.key_of(request.headers)
        made = await documents.submit(self._services, caller_of(request), body, key)
        return _json_response(_json(made), 202)

    def _find(self, request: Request, path: str) -> RouteMatch:
        found = self.routes.find(request.method, path)
        if isinstance(found, RouteMatch):
            return found
        if not found:
            raise RequestProblem(
                "NOT_FOUND",
                f"path {request.url.path} not found",
                reason="NO_SUCH_PATH",
                remedy="use a path below /api/v1/, such as /api/v1/jobs",
            )
        raise _not_allowed(request, found)


def _only(request: Request, verb: str) -> None:
    if request.method != verb and (verb, request.method) != ("GET", "HEAD"):
        raise _not_allowed(request, [verb])


def _not_allowed(request: Request, verbs: Collection[str]) -> RequestProblem:
    allowed = ", ".join(sorted(verbs))
    detail = f"method {request.method} not allowed for {request.url.path}, only {allowed}"
    headers = {"allow": allowed}
    return RequestProblem(
        "METHOD_NOT_ALLOWED", detail, reason="METHOD_NOT_ALLOWED", headers=headers
    )


def _without_query(request: Request) -> None:
    refuse(
        [FieldViolation(key, documents.unasked(key)) for key in request.query_params],
        "INVALID_REQUEST",
        "leave the parameter out of the address",
    )


def _raw_path(scope: Scope) -> str:
    """Return the path before `%2F` and `%3A` are decoded."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    return raw.partition(b"?")[0].decode("ascii", "replace")


def _headers(answer: Message, status: int) -> dict[str, str]:
    """Return the headers for a job: its etag, and the location of a new job."""
    if not isinstance(answer, job_pb2.Job):
        return {}
    headers = {"etag": answer.etag}
    if status == 201:
        headers["location"] = f"/api/v1/jobs/{quote(answer.name, safe='')}"
        if answer.namespace != DEFAULT_NAMESPACE:
            headers["location"] += f"?namespace={answer.namespace}"
    return headers


def _json_response(content: str, status: int, headers: Mapping[str, str] = NO_HEADERS) -> Response:
    return Response(content, status, {**headers, **NOT_KEPT}, "application/json")


async def _streamed(
    answers: AsyncIterator[Message], closing: asyncio.Event, after: str | None = None
) -> EventStream | None:
    """Return the answers as events. `after`: the cursor to continue from; empty: from the
    beginning; None: the stream has no cursor.

    An early error is raised here. A slow first answer is awaited by the response, which detects a
    disconnected reader.

    Returns None if the reader already has the end of the stream.
    """
    first = asyncio.create_task(_first(answers), name="first answer of a stream")
    try:
        await asyncio.wait([first], timeout=FIRST_WITHIN)
    except asyncio.CancelledError:
        first.cancel()
        raise
    if first.done() and first.result() is None and after:
        return None
    at = "" if after is None else after or BEGINNING
    stream = EventStream(_events(first, answers, at), closing)
    stream.call_at_end(first.cancel)
    return stream


async def _events(
    first: asyncio.Task[Message | None], answers: AsyncIterator[Message], at: str
) -> AsyncGenerator[ServerSentEvent, None]:
    """Yield the answers as events. The event `end` has the id of the last event, or `at`, so that a
    reader that reconnects with it gets 204.
    """
    try:
        if (answer := await first) is not None and answer != STANDS:
            yield (event := _event(answer))
            at = event.id or at
        async for answer in answers:
            yield (event := _event(answer))
            at = event.id or at
        yield ServerSentEvent("{}", name="end", id=at)
    except (CallError, Unavailable) as error:
        yield ServerSentEvent(_json(problems.problem_of(error)), name="error")


def _event(answer: Message) -> ServerSentEvent:
    """Return an answer as an event; events of runs are cached."""
    if not isinstance(answer, run_service_pb2.RunEvent):
        return ServerSentEvent(_json(to_json(answer)), id=getattr(answer, "cursor", ""))
    return _run_event(answer.SerializeToString())


@lru_cache(KEPT)
def _run_event(written: bytes) -> ServerSentEvent:
    """Return the event of a run. Its id is its cursor. An event with only a cursor has no data:
    browsers keep the id and don't report it.
    """
    answer = run_service_pb2.RunEvent.FromString(written)
    name = next((kind for kind in ("gap", "cluster") if answer.HasField(kind)), "")
    bare = not (name or answer.HasField("run"))
    return ServerSentEvent("" if bare else _json(to_json(answer)), name, answer.cursor)


async def _renamed(
    answers: AsyncIterator[Message], headers: Mapping[str, str]
) -> AsyncIterator[Message]:
    """Yield the answers; errors name the header that a field was given in."""
    try:
        async for answer in answers:
            yield answer
    except CallError as error:
        problems.rename(error, partial(requests.named, headers))
        raise


async def _first(answers: AsyncIterator[Message]) -> Message | None:
    return await anext(answers, None)


def _problem(error: CallError, request: Request) -> dict[str, Any]:
    """Return its problem; a failed `If-Match` has status 412."""
    body = problems.problem_of(error)
    if isinstance(error, AbortedError) and "if-match" in request.headers:
        status, title = problems.STATUSES["PRECONDITION_FAILED"]
        body |= {"status": status, "title": title}
    return body


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
