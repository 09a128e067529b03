"""Errors of calls, sorted by their cause.

    ScheddError (schedkit.errors)
    ├── ApiError                  what, status, reason, remedy, violations
    │   ├── RequestError          the caller's: the same request fails again
    │   │   ├── InvalidArgument       a field is wrong; `violations` says which
    │   │   ├── NotBuilt              not supported by this version (UNIMPLEMENTED)
    │   │   ├── NotFound
    │   │   ├── AlreadyExists         the name, or the idempotency key with another body
    │   │   ├── Conflict              changed by another caller meanwhile (ABORTED)
    │   │   ├── FailedPrecondition    it isn't in a state that allows this
    │   │   ├── Unauthenticated
    │   │   └── PermissionDenied
    │   ├── ClusterError          the cluster's: a retry, or another member, may succeed
    │   │   ├── ClusterUnavailable    no endpoint answers, or the cluster can't act now
    │   │   ├── Overloaded            RESOURCE_EXHAUSTED
    │   │   └── InternalError         a bug of the cluster's
    │   └── DeadlineExceeded      timed out; the call may have taken effect
    └── GuardError                a guarded target (`TableGuard`, `FileGuard`): what, remedy
        ├── StaleToken            a later attempt was here: resource, token, last_seen
        └── GuardBusy             another process holds a file's lock for too long

An invalid setting of the client itself (no endpoint, a token over a plaintext connection) raises
`schedkit.errors.Misconfigured`. An invalid spec raises `InvalidArgument` before any call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from google.rpc.status_pb2 import Status

from schedkit.errors import ScheddError
from schedkit.protojson import FormErrors
from schedkit.records import immutable_dataclass
from schedproto.v1 import common_pb2

DETAILS: Final = "grpc-status-details-bin"
REFUSED: Final = "REFUSED_STREAM"
"""The member rejected the call before it began. Any call may be retried."""
_REFUSED_STREAM: Final = "RST_STREAM with error code 7"
"""The text by which gRPC's core reports it (RFC 9113, 8.7); there is no code."""
BROKEN: Final = "CONNECTION_BROKEN"
"""No member answered, but one may have begun the call."""
CANCELLED: Final = "CANCELLED"
"""As BROKEN, and the call was reported as canceled."""
_UNSENT: Final = "failed to connect to all addresses"
"""The beginning of gRPC's message if no connection was open and nothing was sent."""
NO_ANSWER: Final = "NO_ANSWER"
"""The call timed out without any answer."""
_TIME_OVER: Final = "Deadline Exceeded"
"""The text by which gRPC's core reports it."""


@immutable_dataclass(frozen=True, slots=True)
class Violation:
    """An invalid field: its path as in the request, the problem, and a suggestion."""

    field: str
    problem: str


class ApiError(ScheddError):
    """A call failed.

    `what` is one sentence. `status` is the name of the gRPC status. `reason` is an UPPER_CASE code
    for programs (may be empty). `remedy` says what to do (may be empty). `metadata` is the rest of
    ErrorInfo. `endpoint` is the member that answered (empty: no member was reachable).
    """

    status = "UNKNOWN"

    def __init__(
        self,
        what: str,
        *,
        status: str = "",
        reason: str = "",
        remedy: str = "",
        violations: Sequence[Violation] = (),
        metadata: Mapping[str, str] | None = None,
        endpoint: str = "",
    ) -> None:
        super().__init__(what)
        self.what = what
        self.status = status or type(self).status
        self.reason = reason
        self.remedy = remedy
        self.violations = tuple(violations)
        self.metadata = dict(metadata or {})
        self.endpoint = endpoint


class RequestError(ApiError):
    """The request failed because of the caller."""


class InvalidArgument(RequestError):
    """A field isn't valid."""

    status = "INVALID_ARGUMENT"


class NotBuilt(RequestError):
    """The call isn't supported by this version of the cluster."""

    status = "UNIMPLEMENTED"


class NotFound(RequestError):
    """Not found."""

    status = "NOT_FOUND"


class AlreadyExists(RequestError):
    """The name is taken, or the idempotency key was used with another body."""

    status = "ALREADY_EXISTS"


class Conflict(RequestError):
    """The object was changed by another caller meanwhile: the etag is old."""

    status = "ABORTED"


class FailedPrecondition(RequestError):
    """The object isn't in a state that allows this."""

    status = "FAILED_PRECONDITION"


class Unauthenticated(RequestError):
    """The cluster can't authenticate the caller."""

    status = "UNAUTHENTICATED"


class PermissionDenied(RequestError):
    """The caller's role doesn't allow the call."""

    status = "PERMISSION_DENIED"


class ClusterError(ApiError):
    """The request failed because of the cluster."""


class ClusterUnavailable(ClusterError):
    """No endpoint answers, or the cluster can't act now."""

    status = "UNAVAILABLE"


class Overloaded(ClusterError):
    """The cluster has reached a limit."""

    status = "RESOURCE_EXHAUSTED"


class InternalError(ClusterError):
    """A bug in the cluster."""

    status = "INTERNAL"


class DeadlineExceeded(ApiError):
    """The call timed out. A change may have taken effect. For a read, the remedy says that nothing
    was changed.
    """

    status = "DEADLINE_EXCEEDED"

    def after(self, refusal: ClusterUnavailable) -> DeadlineExceeded:
        """Return the same error, with the last rejection."""
        who = f" by {refusal.endpoint}" if refusal.endpoint else ""
        last = (
            f"the last try was rejected{who}: {refusal.what} ({refusal.reason or refusal.status})"
        )
        return DeadlineExceeded(
            f"{self.what}; {last}",
            reason=self.reason,
            remedy=self.remedy,
            metadata=self.metadata,
            endpoint=self.endpoint,
        )


class GuardError(ScheddError):
    """A guarded target wasn't written. `what`: the cause; `remedy`: what to do."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


class StaleToken(GuardError):
    """The target has seen a greater token: the writer was replaced by a later attempt."""

    def __init__(self, resource: str, token: int, last_seen: int) -> None:
        super().__init__(
            f"stale fencing token {token} for {resource!r}: an attempt with the greater token"
            f" {last_seen} has already used it",
            "a later attempt has replaced this one: roll back, write nothing more and end this"
            " attempt; if no later attempt exists, another job uses the resource: give each job"
            " its own resource",
        )
        self.args = (resource, token, last_seen)  # for pickle
        self.resource = resource
        self.token = token
        self.last_seen = last_seen


class GuardBusy(GuardError):
    """Another process has held the lock for too long: most likely it is stopped."""


_BY_STATUS: Final[dict[str, type[ApiError]]] = {
    **{cls.status: cls for of in (RequestError, ClusterError) for cls in of.__subclasses__()},
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "OUT_OF_RANGE": InvalidArgument,
}


def from_rpc(error: grpc.aio.AioRpcError, endpoint: str) -> ApiError:
    """Return the error of a call that reached gRPC, with all its details."""
    status = error.code().name
    if status == "RESOURCE_EXHAUSTED" and "message larger than max" in (error.details() or ""):
        return InvalidArgument(
            "the request is larger than 4 MiB, the limit of a message",
            reason="TOO_LARGE",
            remedy="store the data where the job can read it, and send its address",
            endpoint=endpoint,
        )
    if status == "UNAVAILABLE" and _REFUSED_STREAM in (error.details() or ""):
        return ClusterUnavailable(
            "the member rejected the call before it began: too many calls run on this connection",
            reason=REFUSED,
            remedy="call again, or make fewer calls at a time",
            endpoint=endpoint,
        )
    if status == "CANCELLED":  # a caller's own cancel raises asyncio.CancelledError
        return ClusterUnavailable(
            "the member, or a proxy in front of it, canceled the call; the call may have taken"
            " effect",
            status=status,
            reason=CANCELLED,
            remedy="check whether the change was made, then call again if not; a call with an"
            " idempotency key can be repeated at once, because it takes effect only once",
            endpoint=endpoint,
        )
    info, bad = _details(error.trailing_metadata())
    if status == "DEADLINE_EXCEEDED" and error.details() == _TIME_OVER:
        return DeadlineExceeded(
            f"the call to {endpoint} timed out", reason=NO_ANSWER, endpoint=endpoint
        )
    if status == "UNAVAILABLE" and not info.reason and _UNSENT not in (error.details() or ""):
        return ClusterUnavailable(
            f"no answer from {endpoint}: {error.details() or 'the connection broke'}",
            reason=BROKEN,
            endpoint=endpoint,
        )
    metadata = dict(info.metadata)
    return _BY_STATUS.get(status, InternalError)(
        error.details() or status,
        status=status,
        reason=info.reason,
        remedy=metadata.pop("remedy", ""),
        violations=[Violation(one.field, one.description) for one in bad.field_violations],
        metadata=metadata,
        endpoint=endpoint,
    )


def from_result(error: common_pb2.CallError) -> ApiError:
    """Return the error of one request of a batch, as a single call would have raised it."""
    return _BY_STATUS.get(error.code, InternalError)(
        error.message,
        status=error.code,
        reason=error.reason,
        remedy=error.remedy,
        violations=[Violation(one.field, one.problem) for one in error.violations],
    )


def from_form(error: FormErrors) -> InvalidArgument:
    """Return the error of a spec that can't be read, as the cluster would have reported it."""
    first, *others = error.problems
    more = f" (and {len(others)} more)" if others else ""
    return InvalidArgument(
        f"{first}{more}",
        reason="INVALID_FIELD",
        remedy="correct the fields and call again; nothing was sent",
        violations=[Violation(one.where, one.what) for one in error.problems],
    )


def _details(trailing: grpc.aio.Metadata | None) -> tuple[ErrorInfo, BadRequest]:
    """Return ErrorInfo and BadRequest of the trailing metadata; blank ones if absent."""
    info, bad, status = ErrorInfo(), BadRequest(), Status()
    for key, value in trailing or ():
        if key != DETAILS or not isinstance(value, bytes):
            continue
        try:
            status.ParseFromString(value)
            for detail in status.details:
                _ = detail.Unpack(info) or detail.Unpack(bad)
        except DecodeError:
            continue  # details are optional; the status is enough
    return info, bad
