"""Flags for what a command may have at most."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from schedctl.failure import CommandFailure
from schedkit.text import size

F = TypeVar("F", bound=Callable[..., Any])

_FLAGS: Final = {
    "memory_bytes": "--limit-memory",
    "processes": "--limit-processes",
    "files": "--limit-files",
}
FLAG_OF: Final = {
    f"{action}.limits.{limit}": flag
    for action in ("shell", "python")
    for limit, flag in _FLAGS.items()
}
"""Fields to the flags that set them."""


def options(command: F) -> F:
    """What a command may have at most."""
    for option in reversed(
        [
            click.option(
                "--limit-memory", metavar="64MiB", help="Of a command or a handler's process."
            ),
            click.option("--limit-processes", metavar="N", help="And threads, at once."),
            click.option("--limit-files", metavar="N", help="Open in one process."),
        ]
    ):
        command = option(command)
    return command


def form(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The limits that the flags name.

    Raises:
        Failure: one can't be read, or is no limit.
    """
    limits = {
        limit: flags[flag[2:].replace("-", "_")]
        for limit, flag in _FLAGS.items()
        if flags.get(flag[2:].replace("-", "_")) is not None
    }
    if "memory_bytes" in limits:
        try:
            limits["memory_bytes"] = str(size.parse(limits["memory_bytes"]))
        except ValueError as wrong:
            raise CommandFailure(
                f"--limit-memory: {wrong}", reason="WRONG_FLAG", remedy="write --limit-memory 64MiB"
            ) from None
    for limit, flag in _FLAGS.items():
        if limits.get(limit, "1").strip().strip("0") == "":
            raise CommandFailure(
                f"{flag}: 0 is no limit",
                reason="WRONG_FLAG",
                remedy="to lift one, `schedctl apply` the job's manifest without it",
            )
    return limits
