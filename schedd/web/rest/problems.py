"""Encode errors as RFC 9457 problem details: the counterpart of `rpc/status.py`.

    CallError ──▶ 400 application/problem+json
                  {type, title, status, detail, reason, remedy, violations: [{field, problem}]}

`reason` is the reason code for programs, `type` the same as a URN, `remedy` the action for people.
All keys are always present, as in One JSON. Fields have their names in REST:

    page_token isn't …      ──▶  pageToken isn't …
    retry.max_attempts: …   ──▶  retry.maxAttempts: …
    job.name: …             ──▶  name: …   where the body is the job
    time_zone: …            ──▶  time zone: …   on a page

Invariant: only names of request fields are changed, and only in places that name a field. Names
that people chose stay as they are, and so do the keys of `documents`.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import cache
from typing import Any, Final, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from starlette.responses import Response

from schedd.api.calls import methods
from schedd.api.errors import CallError, FieldViolation, dependency_error
from schedkit.errors import Unavailable
from schedkit.protojson import FormErrors

MEDIA_TYPE: Final = "application/problem+json"

STATUSES: Final[dict[str, tuple[int, str]]] = {
    "INVALID_ARGUMENT": (400, "Invalid request"),
    "UNAUTHENTICATED": (401, "Not authenticated"),
    "PERMISSION_DENIED": (403, "Permission denied"),
    "NOT_FOUND": (404, "Not found"),
    "METHOD_NOT_ALLOWED": (405, "Method not allowed"),
    "ALREADY_EXISTS": (409, "Already exists"),
    "ABORTED": (409, "Changed by another request"),
    "PRECONDITION_FAILED": (412, "Changed by another request"),
    "FAILED_PRECONDITION": (409, "Not possible in the current state"),
    "CONTENT_TOO_LARGE": (413, "Request too large"),
    "UNSUPPORTED_MEDIA_TYPE": (415, "The body isn't JSON"),
    "CROSS_ORIGIN": (403, "Cross-origin request rejected"),
    "REQUEST_TIMEOUT": (408, "Request timed out"),
    "RESOURCE_EXHAUSTED": (429, "Limit reached"),
    "INTERNAL": (500, "Internal error"),
    "UNAVAILABLE": (503, "Temporarily unavailable"),
    "DEADLINE_EXCEEDED": (504, "Timed out, outcome unknown"),
}
"""Error code (of gRPC, and of HTTP) → status and title."""


def problem(
    code: str,
    detail: str,
    *,
    reason: str,
    remedy: str = "",
    violations: Iterable[FieldViolation] = (),
) -> dict[str, Any]:
    status, title = STATUSES[code]
    return {
        "type": "urn:schedd:problem:" + reason.lower().replace("_", "-"),
        "title": title,
        "status": status,
        "detail": detail,
        "reason": reason,
        "remedy": remedy or None,
        "violations": [asdict(one) for one in violations],
    }


def problem_of(error: CallError | Unavailable) -> dict[str, Any]:
    if isinstance(error, Unavailable):
        error = dependency_error(error)
    return problem(
        error.code,
        renamed_detail(error.message, error.violations),
        reason=error.reason,
        remedy=error.remedy,
        violations=renamed(error.violations),
    )


def refused(body: Mapping[str, Any]) -> Response:
    """Return the answer; a 401 names the authentication scheme."""
    return problem_response(body, {"www-authenticate": "Bearer"} if body["status"] == 401 else None)


class RequestProblem(Exception):
    """A request that is rejected before it becomes a call; `body` is its problem."""

    def __init__(
        self, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **rest: Any
    ) -> None:
        super().__init__(detail)
        self.body = problem(code, detail, **rest)
        self.headers = headers


def of_form(errors: FormErrors) -> RequestProblem:
    """Return the error for an invalid JSON message, with every problem."""
    return RequestProblem(
        "INVALID_ARGUMENT",
        str(errors),
        reason="INVALID_FIELD",
        remedy="correct the fields and retry; nothing was stored",
        violations=[FieldViolation(one.where, one.what) for one in errors.problems],
    )


def problem_response(body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    content = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    found = Response(content, body["status"], headers, MEDIA_TYPE)
    found.headers["cache-control"] = "no-store"
    if body["status"] == STATUSES["UNAVAILABLE"][0]:
        found.headers["retry-after"] = "1"
    return found


# Names of fields in errors. Pure.

_WORD: Final = re.compile(r"[a-z0-9_]+")


def field(path: str) -> str:
    """Return the path of a field in REST."""
    return _WORD.sub(lambda word: _names().get(word[0], word[0]), path)


def in_words(path: str) -> str:
    """Return the path of a field in words, for pages."""
    return path.replace("_", " ")


def renamed(found: Iterable[FieldViolation]) -> list[FieldViolation]:
    return [FieldViolation(field(one.field), one.problem) for one in found]


def renamed_detail(
    sentence: str, found: Iterable[FieldViolation], named: Callable[[str], str] = field
) -> str:
    """Return the sentence, with the field at its beginning as in REST."""
    first = max((one.field for one in found if sentence.startswith(one.field)), key=len, default="")
    return named(first) + sentence[len(first) :]


def rename(error: CallError, named: Callable[[str], str]) -> None:
    error.message = renamed_detail(error.message, error.violations, named)
    error.violations = tuple(
        FieldViolation(named(one.field), one.problem) for one in error.violations
    )


def within(body: str, path: str) -> str:
    """Return a path of the request relative to the body, which is the request's field `body`."""
    return path.removeprefix(f"{body}.")


def rename_outcomes(batch: Message) -> None:
    """Rename the fields in the errors of a batch's answer."""
    results: Iterable[Any] = getattr(batch, "results", ())
    for error in (one.error for one in results if one.HasField("error")):
        found = [FieldViolation(one.field, one.problem) for one in error.violations]
        error.message = renamed_detail(error.message, found)
        for one in error.violations:
            one.field = field(one.field)


@cache
def _names() -> dict[str, str]:
    seen: dict[str, Descriptor] = {}
    left = [method.input_type for method in methods()]
    while left:
        message = left.pop()
        if message.full_name not in seen:
            seen[message.full_name] = message
            left += [one.message_type for one in _fields(message) if one.message_type is not None]
    return {one.name: one.json_name for message in seen.values() for one in _fields(message)}


def _fields(message: Descriptor) -> Iterator[FieldDescriptor]:
    return iter(cast("Iterable[FieldDescriptor]", message.fields))  # upb's has its interface
