"""What can go wrong while a development cluster is brought up or down.

DevError              FAILED_PRECONDITION: a sentence for the person at the terminal
├── MissingProgram    FAILED_PRECONDITION: etcd or PostgreSQL is nowhere to be found
├── NotUp             FAILED_PRECONDITION: what was asked for does not run
├── BadOverride       INVALID_ARGUMENT: a `--set` that cannot be followed
└── NotReady          DEADLINE_EXCEEDED: it did not come up in time
    └── Ended         FAILED_PRECONDITION: a part of it ended as it came up
"""

from __future__ import annotations

from pathlib import Path

from schedctl.dev.servers.processes import tail


class DevError(Exception):
    """Something a person can act on: `what` in a line, `hint` how, `evidence` from the logs."""

    status = "FAILED_PRECONDITION"
    reason = "DEV_CLUSTER"

    def __init__(self, what: str, hint: str = "", *, evidence: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.evidence = evidence


class MissingProgram(DevError):
    """A program that the cluster needs is not installed."""

    reason = "MISSING_PROGRAM"


class NotUp(DevError):
    """There is no running cluster, or not the part of it that was asked for."""

    reason = "NOT_UP"


class BadOverride(DevError):
    """A `--set` of another form than TARGET.KEY=VALUE, or for something that can't be set."""

    status = "INVALID_ARGUMENT"
    reason = "BAD_SETTING"


class NotReady(DevError):
    """The deadline passed before the cluster, or one part of it, was ready; or one ended."""

    status = "DEADLINE_EXCEEDED"
    reason = "NOT_READY"

    def out_of_time(self, timeout: float) -> None:
        """Say that `timeout` seconds were all that there were, and how to give more."""
        self.what = f"{self.what} (waited {timeout:g} s in all)"
        longer = f"wait longer, with --timeout {max(60.0, 2 * timeout):g}"
        self.hint = f"{longer}; {self.hint}" if self.hint else longer


class ProcessEnded(NotReady):
    """What was to come up has ended; its log tells why, most often in its last line."""

    status = "FAILED_PRECONDITION"
    reason = "ENDED"

    def out_of_time(self, timeout: float) -> None:
        """It would have ended however long one waits."""

    def __init__(self, names: str, log: Path) -> None:
        evidence = tail(log)
        last = evidence.rpartition("\n")[2].strip()
        super().__init__(
            f"{names} ended" + (f": {last}" if last else ""),
            f"mend what it says; more is in {log}",
            evidence=evidence,
        )
