"""Run handlers registered with `schedclient.handler`: coroutines on separate event loops
(`handler_loops`), functions in threads, others in subprocesses (`handler_subprocess`).

Invariants
- An exception of a handler is the attempt's outcome; it never reaches the worker.
- A coroutine is stopped by canceling its task, a thread by `ctx.cancel`. A handler that ignores
  that can't be ended: after a timeout or a cancel it is abandoned past `kill_after`.
- A run that would be returned, to run elsewhere, is waited for: no other worker may run it while it
  is running here.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, cast

from schedclient import handlers as sdk
from schedclient.handlers import Mode
from schedkit.errors import Misconfigured
from schedproto.v1 import worker_service_pb2 as pb
from workerd.core.outcome import AttemptOutcome, AttemptVerdict, Cause
from workerd.executors.base import AttemptStart, Stop, bounds_of, outcome_of_stop
from workerd.executors.handlers.attempt_call import HandlerCall
from workerd.executors.handlers.handler_loops import HandlerLoops, LoopCall
from workerd.executors.handlers.handler_subprocess import SubprocessHandlers
from workerd.executors.handlers.invocation import class_of, raised, words_of
from workerd.executors.handlers.payload_types import Fit, fit_of
from workerd.executors.handlers.threads import Threads
from workerd.process.process_guard import importing

T = TypeVar("T")

log = logging.getLogger(__name__)

_FINAL = (Cause.TIMEOUT, Cause.SILENCE, Cause.CANCEL)
"""After these no other worker runs the attempt, so an abandoned handler is harmless."""


class HandlerCaller:
    """Calls functions on the loops of handlers and in threads, and returns their outcomes."""

    def __init__(self, loops: HandlerLoops) -> None:
        self._loops = loops
        self._threads = Threads("handler")

    async def call(
        self, work: HandlerCall, attempt: AttemptStart, stop: Stop, *, loop: bool
    ) -> AttemptOutcome:
        """Call a function. `loop`: it returns an awaitable; otherwise it runs in a thread."""
        if stop.cause is not None:
            return outcome_of_stop(attempt.batch, stop.cause)
        call = None
        try:
            if loop:
                call = self._loops.submit(work.run, work.awaited)
                ended, ask = call.done, call.cancel
            else:
                ended, ask = self._threads.submit(work.called), work.context.cancel.set
        except OSError as error:
            return _not_started(error)
        try:
            outcome = await _wait_for_outcome(ended, ask, attempt, stop)
        finally:
            work.context.cancel.set()
            output = work.run.finish()
        if stop.cause is not None:
            return outcome_of_stop(attempt.batch, stop.cause, work.run.blocked, output)
        if call is not None and call.error is not None:
            outcome = raised(call.error)
        assert outcome is not None, "it is canceled by a stop alone"
        return replace(outcome, output=output) if output else outcome

    def begin(self, calls: Sequence[LoopHandlerCall]) -> None:
        """Call functions that return awaitables."""
        ready = [call for call in calls if call.listen()]
        try:
            self._loops.submit_all(ready)
        except OSError as error:
            for call in ready:
                call.finish(_not_started(error))

    async def await_there(self, work: Callable[[], Awaitable[T]]) -> T:
        """Await `work` on the loops of handlers."""

        async def awaited() -> T:
            return await work()

        call = self._loops.submit(None, awaited)
        try:
            answer = await call.done
        finally:
            call.cancel()
        if call.error is not None:
            raise call.error
        return cast("T", answer)


def _not_started(error: OSError) -> AttemptOutcome:
    text = f"not started on this worker: {error.strerror}"
    return AttemptOutcome(AttemptVerdict.RETURNED, error=text, began=False)


class LoopHandlerCall(LoopCall[AttemptOutcome]):
    """A call of a handler on its loop, without a task on the worker's loop."""

    __slots__ = ("_attempt", "_call", "_on_end", "_stop")

    def __init__(
        self,
        call: HandlerCall,
        attempt: AttemptStart,
        stop: Stop,
        on_end: Callable[[AttemptStart, AttemptOutcome], object],
    ) -> None:
        self.run = call.run
        self.work = call.awaited
        self.home = self.task = None
        self._call = call
        self._attempt = attempt
        self._stop = stop
        self._on_end: Callable[[AttemptStart, AttemptOutcome], object] | None = on_end
        """None: it has ended, or was abandoned."""

    def listen(self) -> bool:
        """Accept stops from now on. Return False if there was one already, which ends it."""
        cause = self._stop.cause
        if cause is not None:
            self.finish(outcome_of_stop(self._attempt.batch, cause))
            return False
        self._stop.listen(self._end)
        return True

    def resolve(self, result: AttemptOutcome | None, error: BaseException | None) -> None:
        """Report the outcome."""
        if self._on_end is None:
            return
        call, cause = self._call, self._stop.cause
        output = call.run.finish()
        if cause is not None:
            batch = self._attempt.batch
            result = outcome_of_stop(batch, cause, call.run.blocked, output)
        else:
            if error is not None:
                result = raised(error)
            if result is None:  # the worker is ending, and reports no outcome
                result = AttemptOutcome(AttemptVerdict.RETURNED, began=False)
            if output:
                result = replace(result, output=output)
        self.finish(result)

    def finish(self, outcome: AttemptOutcome) -> None:
        """Report this outcome, unless one was reported."""
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            self._call.context.cancel.set()
            self._stop.deafen()
            on_end(self._attempt, outcome)

    def _end(self, kill: bool) -> None:
        self.cancel()
        if self._stop.cause in _FINAL and self._on_end is not None:
            wait = 0.0 if kill else self._attempt.kill_after
            asyncio.get_running_loop().call_later(wait, self._leave)

    def _leave(self) -> None:
        if self._on_end is not None:
            _log_abandoned(self._attempt)
            self.resolve(None, None)


def import_all(modules: Sequence[str]) -> None:
    """Import modules, which register their handlers.

    Raises:
        Misconfigured: a module can't be imported.
    """
    for name in modules:
        try:
            with importing():
                importlib.import_module(name)
        except (Exception, SystemExit) as error:  # a user's module may raise anything
            raise Misconfigured(
                f"handlers: can't import module {name!r}: {class_of(error)}: {words_of(error)}"
            ) from error


def check(modules: Sequence[str]) -> None:
    """Import modules as at the start of a worker, and check the handlers.

    Raises:
        Misconfigured: the start would fail.
    """
    import_all(modules)
    for name, each in sdk.registered.items():
        _fit(name, each)


def is_there(module: str) -> bool:
    """Return whether a module exists, without importing it or its packages: handlers can't be
    registered while a worker is running.
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


class PythonExecutor:
    """The executor of `python`."""

    def __init__(
        self,
        handlers: Mapping[str, sdk.RegisteredHandler],
        subprocesses: SubprocessHandlers,
        caller: HandlerCaller,
    ) -> None:
        """Raises Misconfigured: the annotation of a payload isn't a valid type."""
        self._handlers = handlers
        self._subprocesses = subprocesses
        self._caller = caller
        self._fits = {name: _fit(name, each) for name, each in handlers.items()}
        self.on_end: Callable[[AttemptStart, AttemptOutcome], object] = lambda _attempt, _end: None
        """Called once for each attempt of `begin`."""

    @classmethod
    def of_modules(
        cls, modules: Sequence[str], subprocesses: SubprocessHandlers, caller: HandlerCaller
    ) -> PythonExecutor:
        """Return an executor of all handlers that these modules register.

        Raises:
            Misconfigured: a module can't be imported.
        """
        import_all(modules)
        return cls(sdk.registered, subprocesses, caller)

    @property
    def names(self) -> Sequence[str]:
        """Names of the handlers."""
        return sorted(self._handlers)

    def objection(self, assignment: pb.Assignment) -> str:
        """Return why the handler can't run here: unknown, or limits that can't be enforced."""
        action = assignment.python
        handler = self._handlers.get(action.handler)
        if handler is None:
            return f"handler {action.handler!r} not found on this worker"
        if handler.mode is Mode.PROCESS:
            return self._subprocesses.lacking(bounds_of(action.limits))
        if action.env_from or (action.HasField("limits") and bounds_of(action.limits)):
            return f'handler {action.handler!r}: env_from and limits need mode="process"'
        return ""

    def runs_many(self, common: pb.Assignment) -> bool:
        """Return whether the handler runs on a loop."""
        return self._handlers[common.python.handler].mode is Mode.LOOP

    def begin(self, attempts: Sequence[tuple[AttemptStart, Stop]]) -> None:
        """Call a handler that runs on a loop."""
        first, _ = attempts[0]
        name = first.common.python.handler
        function = self._handlers[name].function
        given = [(self._fits[name], first.content)]
        calls = []
        for attempt, stop in attempts:
            call = HandlerCall(attempt, name, function, given)
            calls.append(LoopHandlerCall(call, attempt, stop, self.on_end))
        self._caller.begin(calls)

    async def run(self, attempt: AttemptStart, stop: Stop) -> AttemptOutcome:
        """Call the handler."""
        name = attempt.common.python.handler
        handler = self._handlers[name]
        if handler.mode is Mode.PROCESS:
            return await self._subprocesses.run(attempt, stop)
        given = [(self._fits[name], attempt.content)]
        work = HandlerCall(attempt, name, handler.function, given)
        return await self._caller.call(work, attempt, stop, loop=handler.mode is Mode.LOOP)


def _fit(name: str, handler: sdk.RegisteredHandler) -> Fit:
    try:
        return fit_of(handler.function)
    except TypeError as error:
        raise Misconfigured(
            f"handlers: the payload type of handler {name!r} can't be used: {error}"
        ) from error


def _log_abandoned(attempt: AttemptStart) -> None:
    key = attempt.key
    log.warning(
        "handler of run %s is still running after its end was requested; abandoned",
        key.run,
        extra=key.log_fields,
    )


async def _wait_for_outcome(
    future: asyncio.Future[AttemptOutcome | None],
    ask: Callable[[], object],
    attempt: AttemptStart,
    stop: Stop,
) -> AttemptOutcome | None:
    """Wait for the outcome. None: the handler never began, or was abandoned.

    `ask` requests its end.
    """

    def leave() -> None:
        if not future.done():
            _log_abandoned(attempt)
            future.set_result(None)

    def end(kill: bool) -> None:
        ask()
        if stop.cause in _FINAL:
            future.get_loop().call_later(0.0 if kill else attempt.kill_after, leave)

    stop.listen(end)
    try:
        return await future
    except asyncio.CancelledError:
        ask()
        raise
    finally:
        stop.deafen()
