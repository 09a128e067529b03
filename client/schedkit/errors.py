"""The failures of schedd, by their cause.

    ScheddError
    ├── Unavailable     a dependency (etcd, PostgreSQL, a peer) is unavailable. Loops alone retry it
    │   ├── OutcomeUnknown   a write without an answer: read back before acting on it
    │   ├── TookTooLong      not done within its timeout: ask for less, or later
    │   ├── DatabaseUnavailable   PostgreSQL is stopped, unreachable or restarting
    │   ├── BrokenData       a value that the database rejects: set that row aside
    │   └── Rejected         a dependency answers and rejects us: login, rights, schema, writes
    ├── Misconfigured   the operator: all errors at once (`config.ConfigErrors`), exit code 2
    │   └── NotNow      the clock, a full disk, a rejection: a retry may succeed, exit 75
    └── Fault           a bug of ours. It is never caught; the process restarts clean

Invariants
- Foreign errors (grpc, psycopg2, socket) are converted in the adapter.
- A rejection (a stale token, a full worker, an unknown job) is a returned value, never raised.
"""

from typing import Final


class ScheddError(Exception):
    """Base class of all exceptions of schedd."""


class Unavailable(ScheddError):
    """A dependency is unavailable, or may be: the outcome of the call is unknown.

    The caller may retry later. It must not assume that nothing happened.

    `reason` is a snake_case word for metrics. `remedy` says what an operator can change if it
    lasts.
    """

    reason = "unavailable"
    remedy = ""

    def __init__(self, *what: object, reason: str = "", remedy: str = "") -> None:
        super().__init__(*what)
        self.reason = reason or self.reason
        self.remedy = remedy or self.remedy


class OutcomeUnknown(Unavailable):
    """A write got no answer. It may have been applied, or may be applied soon. Read back under the
    same lock before any decision based on it.
    """


class TookTooLong(Unavailable):
    """The call timed out without effect. A retry takes as long: ask for less at once, or later."""


class DatabaseUnavailable(Unavailable):
    """PostgreSQL is stopped, unreachable or restarting; the transaction wasn't committed."""


class BrokenData(Unavailable):
    """The database or its driver rejects a value of the batch. Find the row and set it aside.
    Without bisection only this call fails; a loop retries and continues with other work.
    """


class Rejected(Unavailable):
    """A dependency answers, and rejects this process: login, rights, schema or writes.

    An operator must change something there. A running process retries with backoff, as for any
    `Unavailable`. It may end a start (`NotNow`), never a process that has served.

    `cause`: a sentence that names the rejected request.
    """

    def __init__(self, reason: str, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}. {remedy}", reason=reason, remedy=remedy)
        self.cause = cause


class Misconfigured(ScheddError):
    """A setting of the operator isn't valid. The message says what to change."""


class NotNow(Misconfigured):
    """The start failed for a temporary cause: this host's clock, its full disk, or a dependency
    that rejects us. A later start may succeed, after an operator has fixed the cause.
    """

    EXIT_CODE: Final = 75  # EX_TEMPFAIL


class Fault(ScheddError):
    """A bug: an invariant of ours doesn't hold. Ends the tenure and the process."""
