"""What went wrong, as RFC 9457 problem details: the web's counterpart of `rpc/status.py`.

    CallError ──▶ 400 application/problem+json
                  {type, title, status, detail, reason, remedy, violations: [{field, problem}]}

`reason` is the UPPER_CASE word that programs look at, `remedy` what a person can do; `type` is the
same word as a URN; fields have their names in REST (`field_names`). All keys are always there, as
in One JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from starlette.responses import Response

from schedd.api.errors import CallError, Violation, of_world
from schedd.web.rest import field_names
from schedkit.errors import Unavailable
from schedkit.protojson import FormErrors

MEDIA_TYPE: Final = "application/problem+json"

STATUSES: Final[dict[str, tuple[int, str]]] = {
    "INVALID_ARGUMENT": (400, "The request is wrong"),
    "UNAUTHENTICATED": (401, "It isn't known who asks"),
    "PERMISSION_DENIED": (403, "Who asks may not"),
    "NOT_FOUND": (404, "There is no such thing"),
    "METHOD_NOT_ALLOWED": (405, "This path has no such method"),
    "ALREADY_EXISTS": (409, "It is there already"),
    "ABORTED": (409, "It was changed meanwhile"),
    "PRECONDITION_FAILED": (412, "It was changed meanwhile"),
    "FAILED_PRECONDITION": (409, "It isn't in a state that allows this"),
    "CONTENT_TOO_LARGE": (413, "The request is too large"),
    "UNSUPPORTED_MEDIA_TYPE": (415, "The body is no JSON"),
    "CROSS_ORIGIN": (403, "Another site's page asked for this"),
    "REQUEST_TIMEOUT": (408, "The request came too slowly"),
    "RESOURCE_EXHAUSTED": (429, "It is more than one may have"),
    "INTERNAL": (500, "A bug of ours"),
    "UNIMPLEMENTED": (501, "It isn't built yet"),
    "UNAVAILABLE": (503, "The cluster can't do this just now"),
    "DEADLINE_EXCEEDED": (504, "It may have happened"),
}
"""Code of a refusal (gRPC's, and HTTP's own) → status and title."""


def problem(
    code: str,
    detail: str,
    *,
    reason: str,
    remedy: str = "",
    violations: Iterable[Violation] = (),
) -> dict[str, Any]:
    """The body of a refusal."""
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


def of(error: CallError | Unavailable) -> dict[str, Any]:
    """The body for what a call raised."""
    if isinstance(error, Unavailable):
        error = of_world(error)
    return problem(
        error.code,
        field_names.detail(error.message, error.violations),
        reason=error.reason,
        remedy=error.remedy,
        violations=field_names.violations(error.violations),
    )


def of_form(errors: FormErrors) -> dict[str, Any]:
    """The body for a form that can't be read: every problem at once."""
    return problem(
        "INVALID_ARGUMENT",
        str(errors),
        reason="INVALID_FIELD",
        remedy="mend the fields and call again; nothing was stored",
        violations=[Violation(one.where, one.what) for one in errors.problems],
    )


def refused(body: Mapping[str, Any]) -> Response:
    """The answer; who isn't known is told how to be."""
    return answer(body, {"www-authenticate": "Bearer"} if body["status"] == 401 else None)


class RequestProblem(Exception):
    """A request that is refused before it becomes a call; `body` is its problem."""

    def __init__(self, body: dict[str, Any], headers: Mapping[str, str] | None = None) -> None:
        super().__init__(body["detail"])
        self.body = body
        self.headers = headers


def answer(body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """The response with this problem."""
    content = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    found = Response(content, body["status"], headers, MEDIA_TYPE)
    found.headers["cache-control"] = "no-store"
    if body["status"] == STATUSES["UNAVAILABLE"][0]:
        found.headers["retry-after"] = "1"
    return found
