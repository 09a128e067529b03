"""Flags that say who is told: `--on-failure webhook=https://… --on-failure threshold=3`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click

from schedctl.failure import CommandFailure
from schedkit.protojson.problems import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])

FLAGS: Final = {
    "on_failure": "When a run failed for good.",
    "on_recovery": "When one succeeds after a failure that was told.",
    "on_dead_letter": "When a run became a dead letter.",
    "on_late": "When a run starts late, or not at all.",
}
KEYS: Final = ("webhook", "email", "command", "threshold", "silence", "after")
METAVAR: Final = "webhook=URL|email=…"


def notice_options(command: F) -> F:
    """Who is told of what; each flag as often as it takes."""
    for field, text in reversed(FLAGS.items()):
        flag = f"--{field.replace('_', '-')}"
        command = click.option(flag, multiple=True, metavar=METAVAR, help=text)(command)
    return command


def form(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that these flags describe."""
    return {
        field: _notice(f"--{field.replace('_', '-')}", flags[field])
        for field in FLAGS
        if flags.get(field) and field not in cleared(flags)
    }


def cleared(flags: Mapping[str, Any]) -> list[str]:
    """Fields of which nobody is to be told any more: their flag says nothing, `--on-late ''`."""
    return [field for field in FLAGS if tuple(flags.get(field) or ()) == ("",)]


def _notice(flag: str, written: Sequence[str]) -> dict[str, Any]:
    notice: dict[str, Any] = {}
    for one in written:
        key, equals, value = one.partition("=")
        if not equals or key not in KEYS:
            hint = did_you_mean(key, KEYS) if equals else ""
            raise _wrong(
                f"{flag} {one!r} says none of {', '.join(KEYS)}", hint or f"write {flag} {METAVAR}"
            )
        if key == "email":
            notice.setdefault("email", []).append(value)
        elif key in notice:
            raise _wrong(f"{flag} {key} is given twice", "give it once")
        else:
            notice[key] = _words(flag, value) if key == "command" else value
    return notice


def _words(flag: str, value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError as error:
        raise _wrong(f"{flag} command: {error}", "quote its words as in a shell") from None


def _wrong(problem: str, remedy: str) -> CommandFailure:
    return CommandFailure(problem, reason="WRONG_FLAG", remedy=remedy)
