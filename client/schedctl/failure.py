"""How a command fails: three lines on stderr (what, why, what to do) and an exit code.

error: there is no job "etl"
  why: NOT_FOUND, NO_SUCH_JOB
  try: did you mean "elt"? schedctl job list
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import click

from schedclient import ApiError, Misconfigured
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
    """What went wrong, as it is told."""

    what: str
    status: str
    reason: str = ""
    details: tuple[str, ...] = ()
    remedy: str = ""

    @property
    def exit_code(self) -> int:
        """As INTERFACE lists them."""
        return EXIT_CODES.get(self.status, BUG)

    def lines(self) -> tuple[str, str, str]:
        """What, why, what to do."""
        why = ", ".join(part for part in (self.status, self.reason) if part)
        why += "".join(f"; {detail}" for detail in self.details)
        do = self.remedy or _REMEDIES.get(self.status, "schedctl --help")
        return f"error: {_line(self.what)}", f"  why: {_line(why)}", f"  try: {_line(do)}"


_REMEDIES: Final = {
    "UNAVAILABLE": "check --endpoints, and that the members run: schedctl cluster status",
    "DEADLINE_EXCEEDED": "it may have happened: look first, or give a longer --timeout;"
    " `schedctl cluster doctor` says what doesn't answer",
    "INTERNAL": "look into the member's log, and report it",
    "UNAUTHENTICATED": "give a token, or choose another --context",
    "PERMISSION_DENIED": "ask for the right, or choose another --context",
    "RESOURCE_EXHAUSTED": "try again later",
}


def untold(error: ApiError) -> tuple[str, ...]:
    """The violations that the error's own sentence doesn't tell already."""
    return tuple(
        f"{one.field}: {one.problem}"
        for one in error.violations
        if one.field not in error.what or one.problem not in error.what
    )


class CommandFailure(Exception):
    """A command that can't go on; `app.run` shows it and leaves with its exit code."""

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


class UnfitEnvironment(Misconfigured):
    """What was set up otherwise than a command needs it, outside the contexts."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.remedy = remedy


def of_manifest(error: ApiError, where: str, name: str, remedy: str = "") -> CommandFailure:
    """The cluster's refusal of what a manifest says, with the place where it says so."""
    return CommandFailure(
        f"{where}: {name}: {error.what}",
        status=error.status,
        reason=error.reason,
        details=untold(error),
        remedy=remedy or error.remedy,
    )


class NotBuilt(CommandFailure):
    """Something that INTERFACE names and this version hasn't."""

    def __init__(self, what: str, remedy: str = "schedctl --help shows what there is") -> None:
        super().__init__(
            f"{what} isn't built yet", status="UNIMPLEMENTED", reason="NOT_BUILT", remedy=remedy
        )


def show(trouble: Trouble) -> int:
    """Tell it on stderr, if that takes it; its exit code."""
    try:
        for line in trouble.lines():
            click.echo(line, err=True)
    except OSError:  # a full disk, or a reader who has gone: the exit code still tells
        swallow(sys.stderr)
    return trouble.exit_code


def show_bug(error: BaseException) -> int:
    """A bug of ours: the traceback, then three lines like any other."""
    traceback.print_exception(error)
    return show(
        Trouble(f"a bug in schedctl: {error!r}", "INTERNAL", type(error).__name__, remedy=REPORT)
    )


def open_stdout() -> None:
    """Who was started with a closed stdout (`>&-`) has one that swallows all."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - for as long as the process


def standard_input() -> bytes:
    """All that comes on stdin.

    Raises:
        Failure: it is closed (`<&-`), or can't be read.
    """
    try:
        if sys.stdin is not None:
            return sys.stdin.buffer.read()
        why = "it is closed"
    except OSError as error:
        why = str(error.strerror)
    raise CommandFailure(
        f"standard input can't be read: {why}",
        reason="NO_INPUT",
        remedy="give it a file (< FILE) or a pipe, or name the file instead of -",
    )


def is_full(error: OSError) -> bool:
    """Whether stdout takes no more: the disk below it is full, or fails."""
    return error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def close_stdout() -> None:
    """The reader of our output has gone: say nothing more to it, at exit either."""
    swallow(sys.stdout)


def _line(text: str) -> str:
    return " ".join(text.split())
