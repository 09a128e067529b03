"""Errors of `schedctl dev`.

DevError              FAILED_PRECONDITION: any error of a development cluster
├── MissingProgram    FAILED_PRECONDITION: etcd or PostgreSQL not found
├── NotUp             FAILED_PRECONDITION: the cluster, or a part of it, isn't running
├── BadOverride       INVALID_ARGUMENT: a `--set` that isn't valid
└── NotReady          DEADLINE_EXCEEDED: the start timed out
    └── ProcessEnded  FAILED_PRECONDITION: a process ended during the start
"""

from pathlib import Path

from schedctl.dev.servers.processes import tail


class DevError(Exception):
    """An error for the user: `what` failed, `hint` as remedy, `evidence` from the logs."""

    status = "FAILED_PRECONDITION"
    reason = "DEV_CLUSTER"

    def __init__(self, what: str, hint: str = "", *, evidence: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.evidence = evidence


class MissingProgram(DevError):
    """A required program isn't installed."""

    reason = "MISSING_PROGRAM"


class NotUp(DevError):
    """The cluster, or a part of it, doesn't exist or isn't running."""

    reason = "NOT_UP"


class BadOverride(DevError):
    """A `--set` that isn't TARGET.KEY=VALUE, or whose key can't be set."""

    status = "INVALID_ARGUMENT"
    reason = "BAD_SETTING"


class NotReady(DevError):
    """The cluster, or a part of it, wasn't ready at the deadline, or a process ended."""

    status = "DEADLINE_EXCEEDED"
    reason = "NOT_READY"

    def out_of_time(self, timeout: float) -> None:
        """Add the elapsed time and the remedy of a longer timeout."""
        self.what = f"{self.what} (waited {timeout:g} s)"
        longer = f"allow more time: --timeout {max(60.0, 2 * timeout):g}"
        self.hint = f"{longer}; {self.hint}" if self.hint else longer


class ProcessEnded(NotReady):
    """A process ended during the start; the last line of its log usually says why."""

    status = "FAILED_PRECONDITION"
    reason = "ENDED"

    def out_of_time(self, timeout: float) -> None:
        """Change nothing: a longer timeout wouldn't help."""

    def __init__(self, names: str, log: Path) -> None:
        evidence = tail(log)
        last = evidence.rpartition("\n")[2].strip()
        super().__init__(
            f"{names} ended during the start" + (f": {last}" if last else ""),
            f"read the log, and correct the cause: {log}",
            evidence=evidence,
        )
