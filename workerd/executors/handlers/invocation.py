"""A handler's call, wherever it is made: what it is given, and what becomes of what it gives.

    payload → decoded → the handler → returned │ raised → Outcome

Shared by the worker and the processes of handlers (`workerd.executors.handlers.handler_process`).
"""

from __future__ import annotations

import contextlib
import json
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, ParamSpec, TypeVar

from schedclient import handlers as sdk
from schedkit.clock import utcnow
from schedkit.text.json_text import TooDeep
from workerd.core.capture import KEEP, Piece
from workerd.core.outcome import (
    DONT_RETRY_CODE,
    MAX_ERROR,
    MAX_RESULT,
    AttemptOutcome,
    AttemptVerdict,
    Content,
    OutcomeReason,
)
from workerd.executors.handlers.large_json import TooLong, written

_NAME: Final[Any] = type.__dict__["__name__"]
P = ParamSpec("P")
T = TypeVar("T")


_NOTHING = AttemptOutcome(AttemptVerdict.SUCCEEDED)
"""What most return."""


class Escaped(Exception):
    """A handler raised what Python keeps for itself, and what would end or hang its caller."""


def decoded(payload: Content | None) -> object:
    """The payload as a handler gets it. Raises ValueError or RecursionError for what isn't JSON."""
    if payload is None:
        return None
    return json.loads(payload.data) if payload.json else payload.data


def fenced(function: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """What another's function gives. Raises the exceptions that it raises; Escaped for the rest."""
    try:
        return function(*given, **named)
    # No exit of a worker, no end of a loop, no panic of a module in Rust; a future can't even hold
    # a StopIteration. Nobody cancels a plain call: a CancelledError is its own.
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise Escaped(repr(error)) from error


def unfit(error: BaseException) -> AttemptOutcome:
    """The payload isn't what this handler takes: another attempt would find the same."""
    return AttemptOutcome(
        AttemptVerdict.FAILED, OutcomeReason.DONT_RETRY, _sayable(words_of(error))
    )


def returned(answer: object, most: int = MAX_RESULT) -> AttemptOutcome:
    """It returned this, of at most so many bytes."""
    if answer is None:
        return _NOTHING
    if isinstance(answer, bytes):
        content = Content(answer, json=False)
    else:
        try:
            content = Content(written(answer, most), json=True)
        except TooLong:
            wrong = f"its result has more than {most} bytes"
            return AttemptOutcome(AttemptVerdict.FAILED, OutcomeReason.DONT_RETRY, wrong)
        except TooDeep as error:
            wrong = f"the result {error}; return a flatter value, or bytes"
            return AttemptOutcome(AttemptVerdict.FAILED, OutcomeReason.DONT_RETRY, wrong)
        except (TypeError, ValueError) as error:
            wrong = f"its result isn't JSON: {error}"
            return AttemptOutcome(AttemptVerdict.FAILED, OutcomeReason.DONT_RETRY, wrong)
    if len(content.data) > most:
        wrong = f"its result has {len(content.data)} bytes, more than {most}"
        return AttemptOutcome(AttemptVerdict.FAILED, OutcomeReason.DONT_RETRY, wrong)
    return AttemptOutcome(AttemptVerdict.SUCCEEDED, result=content)


def raised(error: BaseException) -> AttemptOutcome:
    """The outcome of a handler that raised this, with the traceback as its output."""
    text = _sayable(f"{class_of(error)}: {words_of(error)}")
    output = (Piece(stderr=True, data=trace(error), offset=0, at=utcnow()),)
    final = isinstance(error, SystemExit) and _exit_code(error) == DONT_RETRY_CODE
    if final or isinstance(error, sdk.DontRetry):
        return AttemptOutcome(AttemptVerdict.FAILED, OutcomeReason.DONT_RETRY, text, output=output)
    wait = _wait(error) if isinstance(error, sdk.RetryAfter) else None
    return AttemptOutcome(
        AttemptVerdict.FAILED, OutcomeReason.EXCEPTION, text, retry_after=wait, output=output
    )


def trace(error: BaseException) -> bytes:
    """Its traceback, as much as is kept of output. The exception, its causes and its notes are a
    user's objects: whatever raises when it is looked at is left out.
    """
    lines: list[str] = []
    try:
        lines += traceback.format_exception(error)
    except BaseException as inner:  # noqa: BLE001 - as said
        lines.append("Traceback (most recent call last):\n")
        with contextlib.suppress(BaseException):
            lines += traceback.format_tb(error.__traceback__)
        lines.append(f"{class_of(error)}: {words_of(error)}\n")
        lines.append(f"(its traceback can't be formatted: {class_of(inner)})\n")
    return "".join(lines).encode(errors="backslashreplace")[-KEEP:]


def class_of(error: BaseException) -> str:
    """The name of its class, though the class has a metaclass of its own."""
    return str(_NAME.__get__(type(error)))


def words_of(error: BaseException) -> str:
    """What it says, or that it can't say it."""
    try:
        return str.__str__(str(error))
    except BaseException as inner:  # noqa: BLE001 - a user's `__str__` may raise anything
        return f"<its text can't be read: __str__ raised {class_of(inner)}>"


def _exit_code(error: SystemExit) -> int | None:
    code = error.code
    return code if type(code) is int else None


def _sayable(text: str) -> str:
    """A text of whole characters: a field of a message takes no others."""
    return text[:MAX_ERROR].encode(errors="replace").decode()


def _wait(error: sdk.RetryAfter) -> timedelta | None:
    """None for a value that isn't a duration, such as a NaN: the job's own policy decides then."""
    try:
        return max(timedelta(seconds=float(error.seconds)), timedelta())
    except Exception:  # noqa: BLE001 - a user's value may raise anything
        return None
