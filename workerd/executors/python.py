"""Handlers registered with `schedclient.handler`: coroutines on the loop, functions in threads, and
those that ask for it in processes of their own (`apart`).

Invariants
- What a handler raises is the attempt's outcome; nothing of it reaches the worker.
- A coroutine is stopped by cancelling it, a thread by `ctx.cancel`; nothing can end one that
  swallows that, or doesn't look. After a timeout or a cancel it is left behind past `kill_after`.
- A coroutine runs in its attempt's own task: whatever it does to that, the attempt has its outcome.
  What would be given back, to be run anew elsewhere, is waited for: while it runs nobody else may
  have it.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from schedclient import handlers as sdk
from schedclient.handlers import Mode
from schedkit.clock import utcnow
from schedkit.errors import Misconfigured
from schedproto.v1 import worker_service_pb2 as pb
from workerd.core.capture import Piece
from workerd.core.outcome import Cause, Content, Outcome, Verdict, stopped
from workerd.executors.apart import Apart
from workerd.executors.base import Attempt, Stop, bounds_of, uncancelled, undisturbed
from workerd.executors.calling import (
    Escaped,
    called,
    decoded,
    fenced,
    raised,
    returned,
    trace,
    unfit,
)
from workerd.executors.fitting import Fit, Misfit, fit_of
from workerd.executors.large import LARGE, beside, light
from workerd.executors.threads import Threads
from workerd.nursery import cancel

log = logging.getLogger(__name__)

_FINAL = (Cause.TIMEOUT, Cause.SILENCE, Cause.CANCEL)
"""After these no other worker begins where this one may still be at work."""


class Caller:
    """Calls functions on the loop and in threads, and makes outcomes of what becomes of them."""

    def __init__(self) -> None:
        self._threads = Threads("handler")

    async def call(
        self, function: sdk.Handler, fit: Fit, attempt: Attempt, stop: Stop, *, loop: bool
    ) -> Outcome:
        """`loop`: it gives something to be awaited; else it has a thread."""
        try:
            payload = await read(fit, attempt.content)
        except Misfit as error:
            return unfit(error)
        except (ValueError, RecursionError) as error:
            return unfit(ValueError(f"the payload isn't JSON: {error}"))
        except Escaped as error:
            return _raised(error)
        context = _context(attempt)
        try:
            if loop:
                answer = await _awaited(function, payload, context, attempt, stop)
            else:
                thread = functools.partial(called, function, payload, context)
                try:
                    future = self._threads.submit(thread)
                except OSError as error:
                    told = f"this worker can't start it: {error.strerror}"
                    return Outcome(Verdict.RETURNED, error=told, began=False)
                answer = await _stayed(future, attempt, stop, context)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is its outcome
            return _raised(error) if stop.cause is None else stopped(stop.cause)
        finally:
            context.cancel.set()
        if stop.cause is not None:
            return stopped(stop.cause)
        if light(answer):
            return returned(answer, attempt.most_result)
        try:
            written = beside(functools.partial(fenced, returned, answer, attempt.most_result))
            return await undisturbed(written, stop)
        except Exception as error:  # noqa: BLE001 - a value may do anything as it is looked at
            return _raised(error)


def import_all(modules: Sequence[str]) -> None:
    """Have these register their handlers.

    Raises:
        Misconfigured: one of them can't be imported.
    """
    for name in modules:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # it is the user's and may raise anything
            raise Misconfigured(
                f"handlers: can't import {name!r}: {type(error).__name__}: {error}"
            ) from error


def check(modules: Sequence[str]) -> None:
    """Import them, as a worker does that starts, and look at what they register.

    Raises:
        Misconfigured: what a start would.
    """
    import_all(modules)
    for name, each in sdk.registered.items():
        _fit(name, each)


def is_there(module: str) -> bool:
    """Whether there is such a module, by its name alone: neither it nor its packages are imported,
    for what they would register isn't taken while a worker runs.
    """
    importlib.invalidate_caches()
    path: Sequence[str] | None = None
    names = module.split(".")
    for depth in range(1, len(names) + 1):
        name = ".".join(names[:depth])
        found = (finder.find_spec(name, path) for finder in sys.meta_path)
        spec = next((each for each in found if each is not None), None)
        if spec is None:
            return False
        path = spec.submodule_search_locations or []
    return True


class Python:
    """The executor of `python`."""

    def __init__(
        self, handlers: Mapping[str, sdk.Registered], apart: Apart, caller: Caller
    ) -> None:
        """Raises Misconfigured: what a handler takes can't be told from its annotation."""
        self._handlers = handlers
        self._apart = apart
        self._caller = caller
        self._fits = {name: _fit(name, each) for name, each in handlers.items()}

    @classmethod
    def of_modules(cls, modules: Sequence[str], apart: Apart, caller: Caller) -> Python:
        """All handlers that these modules register.

        Raises:
            Misconfigured: one of them can't be imported.
        """
        import_all(modules)
        return cls(sdk.registered, apart, caller)

    @property
    def names(self) -> Sequence[str]:
        """What jobs may call."""
        return sorted(self._handlers)

    def objection(self, assignment: pb.Assignment) -> str:
        """A handler that isn't registered here; what it can't be held to here."""
        action = assignment.python
        handler = self._handlers.get(action.handler)
        if handler is None:
            return f"no handler {action.handler!r} on this worker"
        if handler.mode is Mode.PROCESS:
            return self._apart.lacking(bounds_of(action.limits))
        if action.env_from or (action.HasField("limits") and bounds_of(action.limits)):
            told = f"handler {action.handler!r} has no process of its own (mode)"
            return f"{told}: no env_from, no limits"
        return ""

    async def run(self, attempt: Attempt, stop: Stop) -> Outcome:
        """Call it."""
        name = attempt.assignment.python.handler
        handler = self._handlers[name]
        if handler.mode is Mode.PROCESS:
            return await self._apart.run(attempt, stop)
        on_loop = handler.mode is Mode.LOOP
        fit = self._fits[name]
        return await self._caller.call(handler.function, fit, attempt, stop, loop=on_loop)


def _fit(name: str, handler: sdk.Registered) -> Fit:
    try:
        return fit_of(handler.function)
    except TypeError as error:
        raise Misconfigured(f"handlers: the payload of {name!r}: {error}") from error


async def read(fit: Fit, content: Content | None) -> object:
    """What is given, as it is taken. Raises what `decoded` and `fit` raise, or Escaped."""
    if content is None or len(content.data) <= LARGE:
        return fenced(fit, decoded(content))
    return await beside(lambda: fenced(fit, decoded(content)))


async def _awaited(
    function: sdk.Handler, payload: object, context: sdk.Context, attempt: Attempt, stop: Stop
) -> object:
    """What a coroutine gives, or raises, in this task. None when it was stopped, or left behind."""
    if stop.cause is not None:
        return None
    me = asyncio.current_task()
    assert me is not None, "a coroutine is in a task"
    leaving: asyncio.TimerHandle | None = None

    def leave() -> None:
        assert stop.cause is not None, "it was stopped"
        stop.deafen()
        _warn(attempt)
        context.cancel.set()
        attempt.leave(stopped(stop.cause))

    def end(kill: bool) -> None:
        nonlocal leaving
        if leaving is not None:
            leaving.cancel()
        if stop.cause in _FINAL:
            leaving = me.get_loop().call_later(0.0 if kill else attempt.kill_after, leave)
        cancel(me)

    stop.listen(end)
    try:
        return await function(payload, context)
    except Exception:
        raise
    except BaseException as error:  # whatever else a library may have made
        if isinstance(error, asyncio.CancelledError) and stop.cause is not None:
            return None
        raise Escaped(repr(error)) from error
    finally:
        stop.deafen()
        if leaving is not None:
            leaving.cancel()
        if me.cancelling() or stop.over:
            await uncancelled(me, stop)


async def _stayed(
    future: asyncio.Future[object], attempt: Attempt, stop: Stop, context: sdk.Context
) -> object:
    """What a thread gives, or raises. None when it was stopped: it ended, or is left behind."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_: object = None) -> None:
        if not over.done():
            over.set_result(None)

    def end(kill: bool) -> None:
        context.cancel.set()
        if stop.cause in _FINAL:
            over.get_loop().call_later(0.0 if kill else attempt.kill_after, wake)

    future.add_done_callback(wake)
    stop.listen(end)
    try:
        await over
    finally:
        stop.deafen()
    if not future.done():
        _warn(attempt)
        future.add_done_callback(_heard)
        return None
    if future.cancelled() and stop.cause is not None:
        return None
    return future.result()


def _warn(attempt: Attempt) -> None:
    key = attempt.key
    log.warning("handler of run %s doesn't end; it is left behind", key.run, extra=key.said)


def _heard(future: asyncio.Future[object]) -> None:
    """Take the exception of a call that nobody waits for any more."""
    if not future.cancelled():
        future.exception()


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
        on_progress=attempt.progress,
    )


def _raised(error: Exception) -> Outcome:
    """With its traceback as what was written: a process of its own would have shown it there."""
    output = (Piece(stderr=True, data=trace(error), offset=0, at=utcnow()),)
    return replace(raised(error), output=output)
