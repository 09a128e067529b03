"""Encode errors as RFC 9457 problem details: the counterpart of `rpc/status.py`.

    CallError ──▶ 400 application/problem+json
                  {type, title, status, detail, reason, remedy, violations: [{field, problem}]}

`reason` is the reason code for programs, `type` the same as a URN, `remedy` the action for people.
Fields have their names in REST (`field_names`). All keys are always present, as in One JSON.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from starlette.responses import Response

from schedd.api.errors import CallError, FieldViolation, dependency_error
from schedd.web.rest import field_names
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
        field_names.detail(error.message, error.violations),
        reason=error.reason,
        remedy=error.remedy,
        violations=field_names.violations(error.violations),
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
