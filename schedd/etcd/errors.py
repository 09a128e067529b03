"""What went wrong with etcd, as our errors; what a status of etcd means, as a pure function.

    Unavailable (schedkit)
    ├── OutcomeUnknown   a write without an answer: it may have been applied, read back
    ├── LeaseGone        what the write stood on has expired: acquire anew
    ├── NoSpace          etcd refuses writes until an operator has made room
    └── RevisionGone     the revision asked for was compacted away (or was never reached)
    Misconfigured (schedkit)
    └── AccessDenied     wrong password, or a right that the user lacks
        └── RightsOff    etcd knows no users: only `authenticate` meets it
    Fault (schedkit)
    └── Refused          etcd found the request itself wrong: a bug of ours

Invariants
- `judge` knows for each status whether the request can have been applied; in doubt it says that
  it can.
- grpc's own errors don't leave this package.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from grpc import StatusCode

from schedkit.errors import Fault, Misconfigured, OutcomeUnknown, ScheddError, Unavailable


class LeaseGone(Unavailable):
    """The lease that a write names has expired or was revoked; nothing was written."""


class NoSpace(Unavailable):
    """etcd's database is full: it answers reads and refuses writes; nothing was written."""


class RevisionGone(Unavailable):
    """A read at a revision that was compacted away, or that this etcd never reached."""


class AccessDenied(Misconfigured):
    """etcd doesn't accept the user, its password, or what it tried to do."""


class RightsOff(AccessDenied):
    """A user was configured, but this etcd checks no rights."""


class Refused(Fault):
    """etcd calls the request invalid: we built it wrong."""


class Remedy(enum.Enum):
    """What the connection may still do within the deadline of the same call."""

    NONE = "tell the caller"
    ELSEWHERE = "not applied, or harmless twice: try the next endpoint"
    TOKEN = "not applied: get a new token and try again"  # noqa: S105 (no password)


@dataclass(frozen=True, slots=True)
class Failure:
    """A status of etcd, judged.

    `distrust`: the endpoint itself is suspect, so that later calls should go to another one.
    """

    error: ScheddError
    remedy: Remedy
    distrust: bool


class CallFailed(Exception):
    """One sending failed; carries what that means. Between our own modules only."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure.error))
        self.failure = failure


_AWAY: Final = frozenset(
    {
        StatusCode.UNAVAILABLE,
        StatusCode.DEADLINE_EXCEEDED,
        StatusCode.CANCELLED,  # by the other side: our own cancellation never gets here
        StatusCode.ABORTED,
        StatusCode.INTERNAL,
        StatusCode.UNKNOWN,
        StatusCode.DATA_LOSS,
    }
)

_STALE_TOKEN: Final = (
    "invalid auth token",
    "revision of auth store is old",
    "user name is empty",  # rights were enabled after we had connected without a token
)

# etcd gives these before it proposes anything to its peers.
_NOT_APPLIED: Final = (
    "etcdserver: no leader",
    "etcdserver: not leader",
    "etcdserver: too many requests",
    "etcdserver: rpc not supported for learner",
)


def judge(code: StatusCode, details: str, *, writes: bool) -> Failure:
    """What a failed call means. `writes`: a second sending of the request could do harm."""
    told = f"etcd: {details or code.name}"
    if code is StatusCode.UNAUTHENTICATED or details.endswith(_STALE_TOKEN):
        return Failure(AccessDenied(told), Remedy.TOKEN, distrust=False)
    if details.endswith("authentication is not enabled"):
        return Failure(RightsOff(told), Remedy.NONE, distrust=False)
    if code is StatusCode.PERMISSION_DENIED or "authentication failed" in details:
        return Failure(AccessDenied(told), Remedy.NONE, distrust=False)
    if details.startswith(_NOT_APPLIED):
        return Failure(Unavailable(told), Remedy.ELSEWHERE, distrust=True)
    if code in _AWAY:
        return _away(code, told, writes=writes)
    return Failure(_answered(details, told), Remedy.NONE, distrust=False)


def _away(code: StatusCode, told: str, *, writes: bool) -> Failure:
    if writes:
        unknown = OutcomeUnknown(f"{told} (the request may have been applied)")
        return Failure(unknown, Remedy.NONE, distrust=True)
    spent = code is StatusCode.DEADLINE_EXCEEDED
    return Failure(Unavailable(told), Remedy.NONE if spent else Remedy.ELSEWHERE, distrust=True)


def _answered(details: str, told: str) -> ScheddError:
    if "lease not found" in details:
        return LeaseGone(told)
    if "database space exceeded" in details:
        return NoSpace(told)
    if "mvcc: required revision" in details:
        return RevisionGone(told)
    return Refused(told)
