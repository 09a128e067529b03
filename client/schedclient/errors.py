"""What a call can end in, sorted by who is at fault.

    ScheddError (schedkit.errors)
    ├── ApiError                  what, status, reason, remedy, violations
    │   ├── RequestError          the caller: sending it again as it is won't help
    │   │   ├── InvalidArgument       a field is wrong; `violations` says which
    │   │   ├── NotBuilt              this version can't do it (UNIMPLEMENTED)
    │   │   ├── NotFound
    │   │   ├── AlreadyExists         the name, or the idempotency key with another body
    │   │   ├── Conflict              somebody else changed it meanwhile (ABORTED)
    │   │   ├── FailedPrecondition    it isn't in a state that allows this
    │   │   ├── Unauthenticated
    │   │   └── PermissionDenied
    │   ├── ClusterError          the cluster: later, or elsewhere, it may work
    │   │   ├── ClusterUnavailable    no endpoint answers, or the cluster can't act now
    │   │   ├── Overloaded            RESOURCE_EXHAUSTED
    │   │   └── InternalError         a bug of the cluster's
    │   └── DeadlineExceeded      nobody: no answer in time; it may have happened
    └── GuardError                a guarded target (`TableGuard`, `FileGuard`): what, remedy
        ├── StaleToken            a later attempt was here: resource, token, last_seen
        └── GuardBusy             somebody holds the lock of a file for too long

A wrong setting of the client itself (no endpoint, a token over a plain connection) is
`schedkit.errors.Misconfigured`; a wrong spec is `InvalidArgument`, found before anything is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from google.rpc.status_pb2 import Status

from schedkit.errors import ScheddError
from schedkit.protojson import FormErrors
from schedproto.v1 import common_pb2

DETAILS: Final = "grpc-status-details-bin"
REFUSED: Final = "REFUSED_STREAM"
"""Why a call ended that nobody began on: it may be made again, whatever it does."""
_REFUSED_STREAM: Final = "RST_STREAM with error code 7"
"""How gRPC's core tells it (RFC 9113, 8.7): in words alone."""
BROKEN: Final = "CONNECTION_BROKEN"
"""Why a call ended to which no member has answered, though it may have begun on it."""
CANCELLED: Final = "CANCELLED"
"""The same, and somebody said so."""
_UNSENT: Final = "failed to connect to all addresses"
"""How gRPC's core begins where no connection stood: it has sent nothing."""
NO_ANSWER: Final = "NO_ANSWER"
"""Why a call ended whose time was over before anybody had told anything."""
_TIME_OVER: Final = "Deadline Exceeded"
"""How gRPC's core tells that."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One field that is wrong: its path as in the request, what is wrong, and a suggestion."""

    field: str
    problem: str


class ApiError(ScheddError):
    """A call that did not succeed.

    `what` is one sentence; `status` the gRPC status's name; `reason` an UPPER_CASE word that
    programs may look at (empty if none was sent); `remedy` what to do about it (may be empty);
    `metadata` the rest of ErrorInfo; `endpoint` who said so (empty: nobody could be asked).
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
    """The caller's fault."""


class InvalidArgument(RequestError):
    """A field is wrong."""

    status = "INVALID_ARGUMENT"


class NotBuilt(RequestError):
    """This version of the cluster can't do it."""

    status = "UNIMPLEMENTED"


class NotFound(RequestError):
    """There is no such thing."""

    status = "NOT_FOUND"


class AlreadyExists(RequestError):
    """The name is taken, or the idempotency key was used with another body."""

    status = "ALREADY_EXISTS"


class Conflict(RequestError):
    """Somebody else changed it meanwhile: the etag is old."""

    status = "ABORTED"


class FailedPrecondition(RequestError):
    """It isn't in a state that allows this."""

    status = "FAILED_PRECONDITION"


class Unauthenticated(RequestError):
    """The cluster doesn't know who is asking."""

    status = "UNAUTHENTICATED"


class PermissionDenied(RequestError):
    """The cluster knows, and doesn't allow it."""

    status = "PERMISSION_DENIED"


class ClusterError(ApiError):
    """The cluster's fault."""


class ClusterUnavailable(ClusterError):
    """No endpoint answers, or the one that does can't act now."""

    status = "UNAVAILABLE"


class Overloaded(ClusterError):
    """Too much is asked of it."""

    status = "RESOURCE_EXHAUSTED"


class InternalError(ClusterError):
    """A bug in the cluster."""

    status = "INTERNAL"


class DeadlineExceeded(ApiError):
    """No answer in time, or none any more: a change may have happened; of a read the remedy says
    that nothing did.
    """

    status = "DEADLINE_EXCEEDED"

    def after(self, refusal: ClusterUnavailable) -> DeadlineExceeded:
        """The same, with what was heard while there was time."""
        who = f", of {refusal.endpoint}" if refusal.endpoint else ""
        heard = f"the last refusal{who}: {refusal.what} ({refusal.reason or refusal.status})"
        return DeadlineExceeded(
            f"{self.what}; {heard}",
            reason=self.reason,
            remedy=self.remedy,
            metadata=self.metadata,
            endpoint=self.endpoint,
        )


class GuardError(ScheddError):
    """A guarded target that isn't written: `what` happened, `remedy` what to do about it."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


class StaleToken(GuardError):
    """The target has seen a greater token: whoever asks was replaced meanwhile."""

    def __init__(self, resource: str, token: int, last_seen: int) -> None:
        super().__init__(
            f"stale fencing token {token} for {resource!r}: {last_seen} was seen",
            "a later attempt has taken over: roll back, write nothing more and end"
            " (if there is none, other jobs use this resource: give each job its own)",
        )
        self.args = (resource, token, last_seen)  # what it is made of again behind a pickle
        self.resource = resource
        self.token = token
        self.last_seen = last_seen


class GuardBusy(GuardError):
    """Somebody has held the lock for too long: most likely stopped in the midst of it."""


_BY_STATUS: Final[dict[str, type[ApiError]]] = {
    **{
        cls.status: cls
        for cls in (
            InvalidArgument,
            NotBuilt,
            NotFound,
            AlreadyExists,
            Conflict,
            FailedPrecondition,
            Unauthenticated,
            PermissionDenied,
            ClusterUnavailable,
            Overloaded,
            DeadlineExceeded,
        )
    },
    "OUT_OF_RANGE": InvalidArgument,
}


def from_rpc(error: grpc.aio.AioRpcError, endpoint: str) -> ApiError:
    """The error of a call that reached gRPC, with all that its details say."""
    status = error.code().name
    if status == "RESOURCE_EXHAUSTED" and "message larger than max" in (error.details() or ""):
        return InvalidArgument(
            "the request is larger than a message may be (4 MiB)",
            reason="TOO_LARGE",
            remedy="put what is large somewhere that the job can read, and give its address",
            endpoint=endpoint,
        )
    if status == "UNAVAILABLE" and _REFUSED_STREAM in (error.details() or ""):
        return ClusterUnavailable(
            "the member takes no more calls on this connection at present; it has begun on none",
            reason=REFUSED,
            remedy="call again, or make fewer calls at a time",
            endpoint=endpoint,
        )
    if status == "CANCELLED":  # who cancels a call of its own hears asyncio.CancelledError
        return ClusterUnavailable(
            "the member, or what lies before it, cancelled the call; it may have happened",
            status=status,
            reason=CANCELLED,
            remedy="call again; what has an idempotency key happens once",
            endpoint=endpoint,
        )
    info, bad = _details(error.trailing_metadata())
    if status == "DEADLINE_EXCEEDED" and error.details() == _TIME_OVER:
        return DeadlineExceeded(
            f"{endpoint} gave no whole answer in time", reason=NO_ANSWER, endpoint=endpoint
        )
    if status == "UNAVAILABLE" and not info.reason and _UNSENT not in (error.details() or ""):
        return ClusterUnavailable(
            f"{endpoint} gave no answer: {error.details() or 'the connection broke'}",
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
    """The error of one request of several, as a call of its own would have raised it."""
    return _BY_STATUS.get(error.code, InternalError)(
        error.message,
        status=error.code,
        reason=error.reason,
        remedy=error.remedy,
        violations=[Violation(one.field, one.problem) for one in error.violations],
    )


def from_form(error: FormErrors) -> InvalidArgument:
    """A spec that can't be read, as the cluster would have said it."""
    first, *others = error.problems
    more = f" (and {len(others)} more)" if others else ""
    return InvalidArgument(
        f"{first}{more}",
        reason="INVALID_FIELD",
        remedy="mend the fields and call again; nothing was sent",
        violations=[Violation(one.where, one.what) for one in error.problems],
    )


def _details(trailing: grpc.aio.Metadata | None) -> tuple[ErrorInfo, BadRequest]:
    """ErrorInfo and BadRequest of the trailing metadata; blank ones where nothing was sent."""
    info, bad, status = ErrorInfo(), BadRequest(), Status()
    for key, value in trailing or ():
        if key != DETAILS or not isinstance(value, bytes):
            continue
        try:
            status.ParseFromString(value)
            for detail in status.details:
                _ = detail.Unpack(info) or detail.Unpack(bad)
        except DecodeError:
            continue  # details are a courtesy; the status itself stands
    return info, bad
