"""Errors of etcd as our errors, and the meaning of each status as a pure function.

    Unavailable (schedkit)
    ├── OutcomeUnknown   a write without an answer: it may have been applied, read back
    ├── LeaseGone        the lease of the write has expired: acquire a new one
    ├── NoSpace          etcd rejects writes until an operator frees space (Rejected)
    └── RevisionGone     the requested revision was compacted, or never reached
    │   Rejected (schedkit)
    ├── AccessDenied     wrong password, or a permission that the user lacks
    │   └── RightsOff    etcd's authentication is off: raised only by `authenticate`
    Fault (schedkit)
    └── EtcdRefused      etcd found the request itself wrong: a bug of ours

Invariants
- `judge` knows for each status whether the request may have been applied. In doubt, it may have.
- grpc's own errors don't leave this package.
- Only an INVALID_ARGUMENT of etcd itself is a bug of ours. Every other status is retried. Its cause
  is etcd, its operator, or a process that answers in its place.
"""

import enum
from collections.abc import Callable
from shlex import quote
from typing import Final

from grpc import StatusCode

from schedd.etcd.access import EtcdAccess, Login
from schedkit.clock import boottime
from schedkit.errors import Fault, OutcomeUnknown, Rejected, ScheddError, Unavailable
from schedkit.records import dataclass


class LeaseGone(Unavailable):
    """The lease that a write names has expired or was revoked; nothing was written."""


class NoSpace(Rejected):
    """etcd's database is full: it answers reads and rejects writes; nothing was written."""


class RevisionGone(Unavailable):
    """The revision of a read was compacted, or this etcd never reached it."""


class AccessDenied(Rejected):
    """etcd rejects the user, the password, or the operation."""


class RightsOff(AccessDenied):
    """A user was configured, but etcd's authentication is off."""


class EtcdRefused(Fault):
    """etcd reports that the request is invalid: we built it wrong."""


class EtcdRemedy(enum.Enum):
    """The next step of the connection within the deadline of the same call."""

    NONE = "tell the caller"
    ELSEWHERE = "not applied, or harmless twice: try the next endpoint"
    TOKEN = "not applied: get a new token and try again"  # noqa: S105 (no password)


@dataclass(frozen=True, slots=True)
class EtcdFailure:
    """A status of etcd, classified. `distrust`: the endpoint itself is suspect, so later calls try
    another one first.
    """

    error: ScheddError
    remedy: EtcdRemedy = EtcdRemedy.NONE
    distrust: bool = False


class EtcdCallFailed(Exception):
    """A request failed once, with the classified status. Used only between our own modules."""

    def __init__(self, failure: EtcdFailure) -> None:
        super().__init__(str(failure.error))
        self.failure = failure


class LoginBackoff:
    """Repetition of a login's failure for a short time, without another login.

    etcd spends a tenth of a second of its processor on the hash of each password. If every call
    retried the login, etcd would have no time for other work, such as a change of the password. A
    login without an answer in time counts as a failure too: etcd continues to hash for it.
    """

    WAIT: Final = 2.0

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock = clock
        self._rejected: EtcdCallFailed | None = None
        self._login: Login | None = None
        self._until = 0.0

    def check(self, login: Login) -> None:
        """Raise the last failure of this login if it is younger than `WAIT` seconds."""
        if self._rejected is not None and self._login == login and self._clock() < self._until:
            raise EtcdCallFailed(self._rejected.failure)

    def timed_out(self, login: Login) -> None:
        """Remember that this login got no answer within a call's deadline."""
        silent = EtcdFailure(
            Unavailable("etcd: the login timed out; schedd retries the login after 2 s")
        )
        self.failed(EtcdCallFailed(silent), login)

    def failed(self, failed: EtcdCallFailed, login: Login) -> None:
        """Remember a login that etcd rejected, or didn't answer in time."""
        failure = failed.failure
        spent = isinstance(failure.error, Unavailable) and failure.remedy is EtcdRemedy.NONE
        if isinstance(failure.error, AccessDenied) or spent:
            self._rejected, self._login = failed, login
            self._until = self._clock() + self.WAIT


_AWAY: Final = frozenset(
    {
        StatusCode.UNAVAILABLE,
        StatusCode.DEADLINE_EXCEEDED,
        StatusCode.CANCELLED,  # by the server: our own cancellation never arrives here
        StatusCode.ABORTED,
        StatusCode.INTERNAL,
        StatusCode.UNKNOWN,
        StatusCode.DATA_LOSS,
    }
)

_STALE_TOKEN: Final = (
    "invalid auth token",
    "revision of auth store is old",
    "user name is empty",  # authentication was enabled after we had connected without a token
)

_LOGIN_REMEDY: Final = (
    "Correct etcd.user and etcd.password, or the users of etcd (etcdctl user …); a reload (SIGHUP)"
    " applies changed settings"
)
_SPACE_REMEDY: Final = "Compact and defragment etcd, then `etcdctl alarm disarm`"

# Limits that an operator may have lowered: --max-request-bytes, --max-txn-ops.
_LIMITS: Final = ("request is too large", "too many operations in txn request")

# Messages that etcd sends before it proposes anything to its peers.
_NOT_APPLIED: Final = (
    "etcdserver: no leader",
    "etcdserver: not leader",
    "etcdserver: too many requests",
    "etcdserver: rpc not supported for learner",
)


def judge(
    code: StatusCode, details: str, *, writes: bool, access: EtcdAccess | None = None
) -> EtcdFailure:
    """Return the meaning of a failed call. `writes`: sending the request twice could do harm.
    `access`: for the names in the remedy of a missing permission.
    """
    words = details or code.name
    message = f"etcd: {words}"
    if code is StatusCode.UNAUTHENTICATED or details.endswith(_STALE_TOKEN):
        return EtcdFailure(_denied(words, access), EtcdRemedy.TOKEN)
    if details.endswith("authentication is not enabled"):
        off = RightsOff("auth_disabled", f"etcd's authentication is off: {words}", _LOGIN_REMEDY)
        return EtcdFailure(off)
    if code is StatusCode.PERMISSION_DENIED or "authentication failed" in details:
        return EtcdFailure(_denied(words, access))
    if details.startswith(_NOT_APPLIED):
        return EtcdFailure(Unavailable(message), EtcdRemedy.ELSEWHERE, distrust=True)
    if code in _AWAY:
        return _away(code, message, writes=writes)
    return EtcdFailure(_answered(code, details, message))


def _denied(words: str, access: EtcdAccess | None) -> AccessDenied:
    if "permission denied" in words:
        user = access.login.user if access and access.login else "USER"
        prefix = quote(access.prefix) if access else "PREFIX"
        remedy = (
            "Grant a role of the user access to the prefix: `etcdctl role grant-permission ROLE"
            f" --prefix=true readwrite {prefix}`; `etcdctl user get {quote(user)}` lists the roles"
        )
        return AccessDenied(
            "permission_denied", f"etcd denies the user a permission: {words}", remedy
        )
    return AccessDenied("login_rejected", f"etcd rejects the login: {words}", _LOGIN_REMEDY)


def _away(code: StatusCode, message: str, *, writes: bool) -> EtcdFailure:
    if writes:
        unknown = OutcomeUnknown(f"{message} (the request may have been applied)")
        return EtcdFailure(unknown, distrust=True)
    spent = code is StatusCode.DEADLINE_EXCEEDED
    return EtcdFailure(
        Unavailable(message), EtcdRemedy.NONE if spent else EtcdRemedy.ELSEWHERE, distrust=True
    )


def _answered(code: StatusCode, details: str, message: str) -> ScheddError:
    if "lease not found" in details:
        return LeaseGone(message)
    if "database space exceeded" in details:
        return NoSpace("no_space", f"etcd's database is full: {details}", _SPACE_REMEDY)
    if "mvcc: required revision" in details:
        return RevisionGone(message)
    if code is StatusCode.INVALID_ARGUMENT and not details.endswith(_LIMITS):
        return EtcdRefused(message)
    return Unavailable(f"{message} ({code.name})")
