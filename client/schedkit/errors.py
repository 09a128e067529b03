"""The failures of schedd, sorted by who is at fault.

    ScheddError
    ├── Unavailable     the world: etcd, PostgreSQL or a peer is away. Loops alone retry it
    │   ├── OutcomeUnknown   a write without an answer: read back before acting on it
    │   ├── TookTooLong      done by nobody in the time it has: ask for less, or later
    │   ├── DatabaseUnavailable   PostgreSQL is stopped, unreachable or restarting
    │   ├── BrokenData       a value that the database rejects: set that row aside
    │   └── Rejected         a dependency answers and rejects us: login, rights, schema, writes
    ├── Misconfigured   the operator: told all at once (`config.ConfigErrors`), exit code 2
    │   └── NotNow      the calendar, a full disk, a rejection: may be right later, exit 75
    └── Fault           ourselves: a bug. Nobody catches it; the process restarts clean

Invariants
- Foreign errors (grpc, psycopg2, socket) are converted where they enter, at the adapter.
- A refusal (a stale token, a full worker, an unknown job) is a returned value, never raised.
"""

from __future__ import annotations

from typing import Final


class ScheddError(Exception):
    """Root of all that schedd raises on purpose."""


class Unavailable(ScheddError):
    """Something outside this process is away, or may be: the outcome of the call is unknown.

    Trying again later is right; acting as if nothing had happened is not.

    `reason` is a snake_case word for metrics; `remedy` says what a person can change, if it lasts.
    """

    reason = "unavailable"
    remedy = ""

    def __init__(self, *what: object, reason: str = "", remedy: str = "") -> None:
        super().__init__(*what)
        self.reason = reason or self.reason
        self.remedy = remedy or self.remedy


class OutcomeUnknown(Unavailable):
    """A write went out and no answer came: it may have been applied, now or a little later.

    Read back under the same lock before deciding anything on it.
    """


class TookTooLong(Unavailable):
    """What was asked for isn't done in the time that it may take, and nothing of it stands.

    The same again takes as long: ask for less at once, or later.
    """


class DatabaseUnavailable(Unavailable):
    """PostgreSQL is stopped, unreachable or restarting; the transaction wasn't committed."""


class BrokenData(Unavailable):
    """The database or its driver rejects a value of the batch: find the row, set it aside.

    Where nothing bisects, only this call fails; a loop retries and goes on with other work.
    """


class Rejected(Unavailable):
    """A dependency answers, and rejects this process: login, rights, schema or writes.

    A person has to change something there, and a running process waits for that: it retries with
    backoff like any `Unavailable`. It may end a start (`NotNow`), never a process that has served.

    `cause` is a sentence with what was rejected.
    """

    def __init__(self, reason: str, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}. {remedy}", reason=reason, remedy=remedy)
        self.cause = cause


class Misconfigured(ScheddError):
    """The operator asked for something that can't be. The message says what to change."""


class NotNow(Misconfigured):
    """It can't be by this host's clock, for its full disk, or because a dependency rejects us, and
    nothing else is wrong. Who ends by it may be started again: a clock is set right after a start,
    certificates are renewed, room is made, and a password or a grant is corrected.
    """

    EXIT_CODE: Final = 75  # EX_TEMPFAIL


class Fault(ScheddError):
    """A bug: an invariant of ours doesn't hold. Ends the tenure, and the process."""
