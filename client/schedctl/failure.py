"""Failures of a command: three lines on stderr (what, why, what to do) and an exit code.

error: there is no job "etl"
  why: NOT_FOUND, NO_SUCH_JOB
  try: did you mean "elt"? schedctl job list
"""

import os
import sys
import traceback
from collections.abc import Iterable
from typing import Final

import click

from schedclient import ApiError, Misconfigured
from schedkit.records import dataclass
from schedkit.text.streams import swallow

EXIT_CODES: Final = {
    "OK": 0,
    "RUN_FAILED": 1,
    "INVALID_ARGUMENT": 2,
    "OUT_OF_RANGE": 2,
    "UNIMPLEMENTED": 2,
    "NOT_FOUND": 3,
    "UNAUTHENTICATED": 4,
    "PERMISSION_DENIED": 4,
    "ALREADY_EXISTS": 5,
    "ABORTED": 5,
    "FAILED_PRECONDITION": 5,
    "UNAVAILABLE": 6,
    "CANCELLED": 6,
    "RESOURCE_EXHAUSTED": 6,
    "DEADLINE_EXCEEDED": 7,
    "INTERNAL": 70,
    "INTERRUPTED": 130,
}
"""Statuses to exit codes; every other status is a bug, 70."""

BUG: Final = 70
REPORT: Final = "report it with the lines above, please"


@dataclass(frozen=True, slots=True)
class Trouble:
    what: str
    status: str
    reason: str = ""
    details: tuple[str, ...] = ()
    remedy: str = ""

    @property
    def exit_code(self) -> int:
        return EXIT_CODES.get(self.status, BUG)

    def lines(self) -> tuple[str, str, str]:
        """Return the three lines: what failed, why, what to do."""
        why = ", ".join(part for part in (self.status, self.reason) if part)
        why += "".join(f"; {detail}" for detail in self.details)
        do = self.remedy or _REMEDIES.get(self.status, "schedctl --help")
        return f"error: {_line(self.what)}", f"  why: {_line(why)}", f"  try: {_line(do)}"


_REMEDIES: Final = {
    "UNAVAILABLE": "check --endpoints and that the members run: schedctl cluster status",
    "DEADLINE_EXCEEDED": "check whether the change was made before you retry, or give a longer"
    " --timeout; schedctl cluster doctor finds components that don't answer",
    "INTERNAL": "read the traceback in the member's log, and report the error as a bug",
    "UNAUTHENTICATED": "set a token for the context (schedctl config set NAME --token-file FILE),"
    " or choose another --context",
    "PERMISSION_DENIED": "ask an admin for a token or certificate with the required role, or choose"
    " another --context",
    "RESOURCE_EXHAUSTED": "wait some seconds, then run the command again",
}


def more_violations(error: ApiError) -> tuple[str, ...]:
    """Return the violations that the error's message doesn't include."""
    return tuple(
        f"{one.field}: {one.problem}"
        for one in error.violations
        if one.field not in error.what or one.problem not in error.what
    )


class CommandFailure(Exception):
    """The failure of a command; `app.run` prints it and exits with its code."""

    def __init__(
        self,
        what: str,
        *,
        status: str = "INVALID_ARGUMENT",
        reason: str = "USAGE",
        remedy: str = "",
        details: Iterable[str] = (),
    ) -> None:
        super().__init__(what)
        self.trouble = Trouble(what, status, reason, tuple(details), remedy)


def wrong_flag(what: str, remedy: str) -> CommandFailure:
    return CommandFailure(what, reason="WRONG_FLAG", remedy=remedy)


class UnfitEnvironment(Misconfigured):
    """A local file or setting, outside the contexts, that doesn't fit the command."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.remedy = remedy


def of_manifest(error: ApiError, where: str, name: str, remedy: str = "") -> CommandFailure:
    """Return the cluster's rejection of a manifest, with file and line."""
    return CommandFailure(
        f"{where}: {name}: {error.what}",
        status=error.status,
        reason=error.reason,
        details=more_violations(error),
        remedy=remedy or error.remedy,
    )


def show(trouble: Trouble) -> int:
    """Print the failure on stderr, if possible, and return its exit code."""
    try:
        for line in trouble.lines():
            click.echo(line, err=True)
    except OSError:  # a full disk or a closed pipe: the exit code remains
        swallow(sys.stderr)
    return trouble.exit_code


def show_bug(error: BaseException) -> int:
    """Print the traceback of a bug, then the three lines; return the exit code."""
    traceback.print_exception(error)
    return show(
        Trouble(f"a bug in schedctl: {error!r}", "INTERNAL", type(error).__name__, remedy=REPORT)
    )


def open_stdout() -> None:
    """Replace a closed stdout (`>&-`) by one that discards everything."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - for as long as the process


def standard_input() -> bytes:
    """Read stdin to its end. Raises CommandFailure: stdin is closed (`<&-`) or can't be read."""
    try:
        if sys.stdin is not None:
            return sys.stdin.buffer.read()
        why = "stdin is closed"
    except OSError as error:
        why = str(error.strerror)
    raise CommandFailure(
        f"standard input can't be read: {why}",
        reason="NO_INPUT",
        remedy="redirect a file (< FILE) or a pipe, or name the file instead of -",
    )


def _line(text: str) -> str:
    return " ".join(text.split())
