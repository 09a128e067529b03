"""Handlers registered with `schedclient.handler`: coroutines on the loop, functions in threads.

Invariants
- What a handler raises is the attempt's outcome; nothing of it reaches the worker.
- A coroutine is stopped by cancelling it, a thread by `ctx.cancel`; nothing can end a thread that
  doesn't look. After a timeout or a cancel it is left behind past `kill_after`. What would be given
  back, to be run anew elsewhere, is waited for: while it runs nobody else may have it.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import logging
import traceback
from collections.abc import Mapping, Sequence
from datetime import timedelta

from schedclient import handlers as sdk
from schedkit.clock import utcnow
from schedkit.errors import Misconfigured
from schedproto.v1 import common_pb2
from schedproto.v1 import worker_service_pb2 as pb
from workerd.core.capture import KEEP, Piece
from workerd.core.outcome import (
    MAX_ERROR,
    Cause,
    Content,
    Outcome,
    Reason,
    Verdict,
    stopped,
)
from workerd.executors.base import Attempt, Stop, until_stopped
from workerd.executors.threads import Threads

log = logging.getLogger(__name__)

_FINAL = (Cause.TIMEOUT, Cause.SILENCE, Cause.CANCEL)
"""After these no other worker begins where this thread may still be."""

_NEVER_OUT = (
    SystemExit,
    KeyboardInterrupt,
    GeneratorExit,
    StopIteration,
    asyncio.CancelledError,
)


class Python:
    """The executor of `python`."""

    def __init__(self, handlers: Mapping[str, sdk.Handler]) -> None:
        self._handlers = handlers
        self._threads = Threads("handler")

    @classmethod
    def of_modules(cls, modules: Sequence[str]) -> Python:
        """All handlers that these modules register.

        Raises:
            Misconfigured: one of them can't be imported.
        """
        for name in modules:
            try:
                importlib.import_module(name)
            except Exception as error:  # the module is the user's and may raise anything
                raise Misconfigured(
                    f"handlers: can't import {name!r}: {type(error).__name__}: {error}"
                ) from error
        return cls(sdk.registered)

    @property
    def names(self) -> Sequence[str]:
        """What jobs may call."""
        return sorted(self._handlers)

    def objection(self, assignment: pb.Assignment) -> str:
        """A handler that isn't registered here."""
        name = assignment.python.handler
        return "" if name in self._handlers else f"no handler {name!r} on this worker"

    async def run(self, attempt: Attempt, stop: Stop) -> Outcome:
        """Call it."""
        function = self._handlers[attempt.assignment.python.handler]
        try:
            payload = _decoded(attempt.assignment.payload)
        except (ValueError, RecursionError) as error:
            return Outcome(Verdict.FAILED, Reason.DONT_RETRY, f"the payload isn't JSON: {error}")
        context = _context(attempt)
        try:
            if sdk.is_async(function):
                answer = await until_stopped(_awaited(function, payload, context, stop), stop)
            else:
                call = functools.partial(_called, function, payload, context)
                try:
                    future = self._threads.submit(call)
                except OSError as error:
                    told = f"this worker can't start it: {error.strerror}"
                    return Outcome(Verdict.RETURNED, error=told, began=False)
                answer = await _in_thread(future, context, attempt, stop)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is its outcome
            return _failed(error) if stop.cause is None else stopped(stop.cause)
        finally:
            context.cancel.set()
        return _returned(answer, attempt) if stop.cause is None else stopped(stop.cause)


async def _in_thread(
    future: asyncio.Future[object], context: sdk.Context, attempt: Attempt, stop: Stop
) -> object:
    loop = asyncio.get_running_loop()
    given_up: asyncio.Future[object] = loop.create_future()

    def end(kill: bool) -> None:
        context.cancel.set()
        if stop.cause in _FINAL:
            wait = 0.0 if kill else attempt.kill_after
            loop.call_later(wait, given_up.cancel)

    stop.listen(end)
    try:
        await asyncio.wait([future, given_up], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.deafen()
        given_up.cancel()
    if not future.done():
        log.warning("handler of run %s doesn't end; its thread is left behind", attempt.key.run)
        future.add_done_callback(_heard)
        return None
    return future.result()


class Escaped(Exception):
    """A handler raised what Python keeps for itself, and what would end or hang its caller."""


def _called(function: sdk.Handler, payload: object, context: sdk.Context) -> object:
    try:
        return function(payload, context)
    # No exit of a worker, no end of a loop; a future can't even hold a StopIteration.
    # Nobody cancels a thread: a CancelledError is the handler's own.
    except _NEVER_OUT as error:
        raise Escaped(repr(error)) from error


async def _awaited(
    function: sdk.Handler, payload: object, context: sdk.Context, stop: Stop
) -> object:
    me = asyncio.current_task()
    try:
        return await function(payload, context)
    except (SystemExit, KeyboardInterrupt) as error:
        raise Escaped(repr(error)) from error
    except asyncio.CancelledError as error:
        if stop.cause is not None or me is None or me.cancelling():
            raise  # ours: a stop, or the worker's end
        raise Escaped(repr(error)) from error


def _heard(future: asyncio.Future[object]) -> None:
    """Take the exception of a call that nobody waits for any more."""
    if not future.cancelled():
        future.exception()


def _decoded(payload: common_pb2.Payload) -> object:
    match payload.WhichOneof("kind"):
        case "json":
            return json.loads(payload.json)
        case "raw":
            return payload.raw
        case _:
            return None


def _context(attempt: Attempt) -> sdk.Context:
    given = attempt.assignment
    return sdk.Context(
        namespace=given.namespace,
        job=given.job,
        run_id=given.key.run_id,
        attempt=given.attempt,
        scheduled_at=attempt.scheduled_at,
        deadline=attempt.deadline,
        fencing_token=given.key.fencing_token,
        traceparent=given.traceparent,
        worker=attempt.worker,
        on_heartbeat=attempt.beat,
    )


def _returned(answer: object, attempt: Attempt) -> Outcome:
    if answer is None:
        return Outcome(Verdict.SUCCEEDED)
    if isinstance(answer, bytes):
        content = Content(answer, json=False)
    else:
        try:
            text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            content = Content(text.encode(), json=True)
        except (TypeError, ValueError, RecursionError) as error:
            wrong = f"its result isn't JSON: {error}"
            return Outcome(Verdict.FAILED, Reason.DONT_RETRY, wrong)
    if len(content.data) > attempt.most_result:
        wrong = f"its result has {len(content.data)} bytes, more than {attempt.most_result}"
        return Outcome(Verdict.FAILED, Reason.DONT_RETRY, wrong)
    return Outcome(Verdict.SUCCEEDED, result=content)


def _failed(error: Exception) -> Outcome:
    told = error.__cause__ if isinstance(error, Escaped) and error.__cause__ else error
    text = f"{type(told).__name__}: {told}"[:MAX_ERROR]
    trace = "".join(traceback.format_exception(error)).encode(errors="backslashreplace")[-KEEP:]
    output = (Piece(stderr=True, data=trace, offset=0, at=utcnow()),)
    if isinstance(error, sdk.DontRetry):
        return Outcome(Verdict.FAILED, Reason.DONT_RETRY, text, output=output)
    wait = timedelta(seconds=error.seconds) if isinstance(error, sdk.RetryAfter) else None
    return Outcome(Verdict.FAILED, Reason.EXCEPTION, text, output=output, retry_after=wait)
