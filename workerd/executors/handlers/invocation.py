"""Convert a handler's payload, and its returned or raised values to an outcome.

    payload → decoded → the handler → returned │ raised → Outcome

Shared by the worker and handler processes (`workerd.executors.handlers.handler_process`).
"""

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
    SUCCESS,
    AttemptOutcome,
    AttemptVerdict,
    Content,
    OutcomeReason,
    failed,
)
from workerd.executors.handlers.large_json import TooLong, written

_NAME: Final[Any] = type.__dict__["__name__"]
P = ParamSpec("P")
T = TypeVar("T")


class Escaped(Exception):
    """A handler raised an exception that would end or hang its caller."""


def decoded(payload: Content | None) -> object:
    """Return the payload's value. Raises ValueError or RecursionError for invalid JSON."""
    if payload is None:
        return None
    return json.loads(payload.data) if payload.json else payload.data


def fenced(function: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Call foreign code. Raises its exceptions; Escaped for other BaseExceptions."""
    try:
        return function(*given, **named)
    # SystemExit, a panic of a Rust module and others must not end the worker or a loop. A future
    # can't hold a StopIteration. A plain call isn't canceled: a CancelledError is its own.
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise Escaped(repr(error)) from error


def unfit(error: BaseException) -> AttemptOutcome:
    """Return the outcome of a payload that doesn't fit the handler; a retry can't fix it."""
    return failed(_sayable(words_of(error)), OutcomeReason.DONT_RETRY)


def returned(answer: object, most: int = MAX_RESULT) -> AttemptOutcome:
    if answer is None:
        return SUCCESS
    if isinstance(answer, bytes):
        content = Content(answer, json=False)
    else:
        try:
            content = Content(written(answer, most), json=True)
        except TooLong:
            wrong = f"the result is too large: more than {most} bytes"
            return failed(wrong, OutcomeReason.DONT_RETRY)
        except TooDeep as error:
            wrong = f"the result {error}; return a value with fewer levels, or bytes"
            return failed(wrong, OutcomeReason.DONT_RETRY)
        except (TypeError, ValueError) as error:
            wrong = f"the result can't be written as JSON: {error}; return JSON types, or bytes"
            return failed(wrong, OutcomeReason.DONT_RETRY)
    if len(content.data) > most:
        wrong = f"the result is too large: {len(content.data)} bytes; at most {most} are allowed"
        return failed(wrong, OutcomeReason.DONT_RETRY)
    return AttemptOutcome(AttemptVerdict.SUCCEEDED, result=content)


def raised(error: BaseException) -> AttemptOutcome:
    """Return the outcome of a raised exception, with the traceback as output."""
    text = _sayable(f"{class_of(error)}: {words_of(error)}")
    output = (Piece(stderr=True, data=trace(error), offset=0, at=utcnow()),)
    code = error.code if isinstance(error, SystemExit) else None
    final = type(code) is int and code == DONT_RETRY_CODE
    if final or isinstance(error, sdk.DontRetry):
        return failed(text, OutcomeReason.DONT_RETRY, output=output)
    wait = _wait(error) if isinstance(error, sdk.RetryAfter) else None
    return failed(text, OutcomeReason.EXCEPTION, retry_after=wait, output=output)


def trace(error: BaseException) -> bytes:
    """Return the traceback, limited like output. The exception, its causes and its notes are user
    objects: parts that raise while they are formatted are omitted.
    """
    lines: list[str] = []
    try:
        lines += traceback.format_exception(error)
    except BaseException as inner:  # noqa: BLE001 - see above
        lines.append("Traceback (most recent call last):\n")
        with contextlib.suppress(BaseException):
            lines += traceback.format_tb(error.__traceback__)
        lines.append(f"{class_of(error)}: {words_of(error)}\n")
        lines.append(f"(traceback can't be formatted: {class_of(inner)})\n")
    return "".join(lines).encode(errors="backslashreplace")[-KEEP:]


def class_of(error: BaseException) -> str:
    """Return the name of the class, also if it has a metaclass."""
    return str(_NAME.__get__(type(error)))


def words_of(error: BaseException) -> str:
    """Return the text of an exception, also if its `__str__` raises."""
    try:
        return str.__str__(str(error))
    except BaseException as inner:  # noqa: BLE001 - a user's `__str__` may raise anything
        return f"<no text: __str__ raised {class_of(inner)}>"


def _sayable(text: str) -> str:
    """Return valid UTF-8 text, as a protobuf field requires."""
    return text[:MAX_ERROR].encode(errors="replace").decode()


def _wait(error: sdk.RetryAfter) -> timedelta | None:
    """Return the delay; None if it isn't a valid duration: then the job's retry policy applies."""
    try:
        return max(timedelta(seconds=float(error.seconds)), timedelta())
    except Exception:  # noqa: BLE001 - a user's value may raise anything
        return None
