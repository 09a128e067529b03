"""A handler's call, wherever it is made: what it is given, and what becomes of what it gives.

    payload → decoded → the handler → returned │ raised → Outcome

Shared by the worker and the processes of handlers (`workerd.handling`).
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import ParamSpec, TypeVar

from schedclient import handlers as sdk
from workerd.core.capture import KEEP
from workerd.core.outcome import (
    DONT_RETRY_CODE,
    MAX_ERROR,
    MAX_RESULT,
    Content,
    Outcome,
    Reason,
    Verdict,
)
from workerd.executors.large import TooLong, written

P = ParamSpec("P")
T = TypeVar("T")


_NOTHING = Outcome(Verdict.SUCCEEDED)
"""What most return."""


class Escaped(Exception):
    """A handler raised what Python keeps for itself, and what would end or hang its caller."""


def decoded(payload: Content | None) -> object:
    """The payload as a handler gets it. Raises ValueError or RecursionError for what isn't JSON."""
    if payload is None:
        return None
    return json.loads(payload.data) if payload.json else payload.data


def called(function: sdk.Handler, payload: object, context: sdk.Context) -> object:
    """What a plain function returns. Raises what it raises, or Escaped."""
    return fenced(function, payload, context)


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


def unfit(error: Exception) -> Outcome:
    """The payload isn't what this handler takes: another attempt would find the same."""
    return Outcome(Verdict.FAILED, Reason.DONT_RETRY, _sayable(str(error)))


def returned(answer: object, most: int = MAX_RESULT) -> Outcome:
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
            return Outcome(Verdict.FAILED, Reason.DONT_RETRY, wrong)
        except (TypeError, ValueError, RecursionError) as error:
            wrong = f"its result isn't JSON: {error}"
            return Outcome(Verdict.FAILED, Reason.DONT_RETRY, wrong)
    if len(content.data) > most:
        wrong = f"its result has {len(content.data)} bytes, more than {most}"
        return Outcome(Verdict.FAILED, Reason.DONT_RETRY, wrong)
    return Outcome(Verdict.SUCCEEDED, result=content)


def raised(error: Exception) -> Outcome:
    """It raised this; the traceback is the caller's to show."""
    told = error.__cause__ if isinstance(error, Escaped) and error.__cause__ else error
    text = _sayable(f"{type(told).__name__}: {told}")
    final = isinstance(told, SystemExit) and told.code == DONT_RETRY_CODE
    if final or isinstance(error, sdk.DontRetry):
        return Outcome(Verdict.FAILED, Reason.DONT_RETRY, text)
    wait = _wait(error.seconds) if isinstance(error, sdk.RetryAfter) else None
    return Outcome(Verdict.FAILED, Reason.EXCEPTION, text, retry_after=wait)


def trace(error: Exception) -> bytes:
    """Its traceback, as much as is kept of output."""
    return "".join(traceback.format_exception(error)).encode(errors="backslashreplace")[-KEEP:]


def _sayable(text: str) -> str:
    """A text of whole characters: a field of a message takes no others."""
    return text[:MAX_ERROR].encode(errors="replace").decode()


def _wait(seconds: float) -> timedelta | None:
    """None for what is no time at all, such as a NaN: the job's own policy decides then."""
    try:
        return max(timedelta(seconds=seconds), timedelta())
    except (TypeError, ValueError, OverflowError):
        return None
