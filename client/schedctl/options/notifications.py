"""Options for notifications: `--on-failure webhook=https://… --on-failure threshold=3`."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click

from schedctl.failure import wrong_flag
from schedctl.options.global_options import flag_of
from schedkit.protojson.problems import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])

FLAGS: Final = {
    "on_failure": "Notification to send after a run failed for good",
    "on_recovery": "Notification to send at the first success after a notified failure",
    "on_dead_letter": "Notification to send when a run becomes a dead letter",
    "on_late": "Notification to send when a run starts late or not at all",
}
KEYS: Final = ("webhook", "email", "command", "threshold", "min_interval", "after")
METAVAR: Final = "webhook=URL|email=…"


def notice_options(default: str) -> Callable[[F], F]:
    """Return a decorator that adds an option for each kind of notification; each is repeatable."""

    def decorate(command: F) -> F:
        for field, text in reversed(FLAGS.items()):
            flag, shown = flag_of(field), f"{text}; repeatable.{default}"
            command = click.option(flag, multiple=True, metavar=METAVAR, help=shown)(command)
        return command

    return decorate


def form(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that these options describe."""
    return {
        field: _notice(flag_of(field), flags[field])
        for field in FLAGS
        if flags.get(field) and field not in cleared(flags)
    }


def cleared(flags: Mapping[str, Any]) -> list[str]:
    """Return the notifications to remove: their option is empty, as in `--on-late ''`."""
    return [field for field in FLAGS if tuple(flags.get(field) or ()) == ("",)]


def _notice(flag: str, written: Sequence[str]) -> dict[str, Any]:
    notice: dict[str, Any] = {}
    for one in written:
        key, equals, value = one.partition("=")
        if not equals or key not in KEYS:
            hint = did_you_mean(key, KEYS) if equals else ""
            raise wrong_flag(
                f"{flag} {one!r} isn't valid: it must be KEY=VALUE with one of the keys"
                f" {', '.join(KEYS)}",
                hint or f"write {flag} {METAVAR}",
            )
        if key == "email":
            notice.setdefault("email", []).append(value)
        elif key in notice:
            raise wrong_flag(f"{flag} {key} is given twice", f"give {key} once")
        else:
            notice[key] = _words(flag, value) if key == "command" else value
    return notice


def _words(flag: str, value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError as error:
        raise wrong_flag(
            f"the command of {flag} can't be split into words: {error}",
            "quote the words as in a shell",
        ) from None
