"""Run handlers registered with `schedclient.handler`: coroutines on separate event loops
(`handler_loops`), functions in threads, others in subprocesses (`handler_subprocess`).

Invariant: an exception of a handler is the attempt's outcome; it never reaches the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context, copy_context
from functools import partial

from schedclient import handlers as sdk
from schedclient.handlers import Mode
from schedkit.errors import Misconfigured
from schedproto.v1 import worker_service_pb2 as pb
from workerd.core.outcome import AttemptOutcome
from workerd.executors.base import ActionExecutor, AttemptStart, StartedBatch, Stop, bounds_of
from workerd.executors.handlers.attempt_call import CalledFunction, HandlerCall
from workerd.executors.handlers.handler_loops import HandlerLoops
from workerd.executors.handlers.handler_subprocess import SubprocessHandlers
from workerd.executors.handlers.invocation import class_of, words_of
from workerd.executors.handlers.payload_types import Fit, fit_of
from workerd.executors.handlers.threads import Threads
from workerd.process.process_guard import importing


class HandlerCaller:
    """Calls functions on the loops of handlers and in threads."""

    def __init__(self, loops: HandlerLoops) -> None:
        self.loops = loops
        self._threads = Threads("handler")
        self._ended: deque[tuple[HandlerCall, AttemptOutcome]] = deque()
        """Calls that have ended in threads."""
        self._reporting = False
        """Whether the worker's loop was woken and hasn't looked at them yet."""

    def begin(
        self, target: CalledFunction, batch: StartedBatch, places: Sequence[int], *, loop: bool
    ) -> None:
        """Call a function, unless the end was requested already. `loop`: it returns an awaitable;
        otherwise it runs in threads.
        """
        calls = [HandlerCall(target, batch, place) for place in places]
        if isinstance(places, range) and not batch.attempts:
            batch.calls[places.start : places.stop] = calls
        else:
            calls = [call for call in calls if call.listen()]
        if loop:
            try:
                self.loops.submit(calls)
            except OSError as error:
                for call in calls:
                    call.not_started(error)
            return
        report = partial(self._report, target.loop, copy_context())
        for call in calls:
            try:
                self._threads.start(partial(_run, call, report))
            except OSError as error:
                call.not_started(error)

    def _report(
        self,
        loop: asyncio.AbstractEventLoop,
        context: Context,
        call: HandlerCall,
        outcome: AttemptOutcome,
    ) -> None:
        """Report an outcome, from any thread. `context`: one without a run."""
        self._ended.append((call, outcome))
        if not self._reporting:
            self._reporting = True
            with contextlib.suppress(RuntimeError):  # the worker has ended
                loop.call_soon_threadsafe(self._resolve_ended, context=context)

    def _resolve_ended(self) -> None:
        self._reporting = False
        try:
            while self._ended:
                call, outcome = self._ended.popleft()
                call.resolve(outcome, None)
        finally:  # a call whose report fails doesn't keep the others
            if self._ended:
                asyncio.get_running_loop().call_soon(self._resolve_ended)


def _run(call: HandlerCall, report: Callable[[HandlerCall, AttemptOutcome], object]) -> None:
    report(call, Context().run(call.called))


def import_all(modules: Sequence[str]) -> None:
    """Import modules, which register their handlers. Raises Misconfigured: a module can't be
    imported.
    """
    for name in modules:
        try:
            with importing():
                importlib.import_module(name)
        except (Exception, SystemExit) as error:  # a user's module may raise anything
            raise Misconfigured(
                f"handlers: the module {name!r} can't be imported: {class_of(error)}:"
                f" {words_of(error)}; correct the module, or `handlers` in workerd.toml"
            ) from error


def check(modules: Sequence[str]) -> None:
    """Import modules as at the start of a worker, and check the handlers. Raises Misconfigured: the
    start would fail.
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


class PythonExecutor(ActionExecutor):
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

    def objection(self, assignment: pb.Assignment) -> str:
        action = assignment.python
        handler = self._handlers.get(action.handler)
        if handler is None:
            return f"the worker has no handler {action.handler!r}"
        if handler.mode is Mode.PROCESS:
            return self._subprocesses.supervisor.lacking(bounds_of(action.limits))
        if action.env_from or (action.HasField("limits") and bounds_of(action.limits)):
            return (
                f"env_from and limits need a process of their own: register the handler"
                f' {action.handler!r} with mode="process"'
            )
        return ""

    def runs_many(self, common: pb.Assignment) -> bool:
        return self._handlers[common.python.handler].mode is not Mode.PROCESS

    def begin(self, batch: StartedBatch, places: Sequence[int]) -> None:
        name = batch.assigned.common.python.handler
        handler = self._handlers[name]
        target = CalledFunction(name, handler.function, self._fits[name])
        self._caller.begin(target, batch, places, loop=handler.mode is Mode.LOOP)

    async def run(self, attempt: AttemptStart, stop: Stop) -> AttemptOutcome:
        return await self._subprocesses.run(attempt, stop)


def _fit(name: str, handler: sdk.RegisteredHandler) -> Fit:
    try:
        return fit_of(handler.function)
    except TypeError as error:
        raise Misconfigured(
            f"handlers: the payload type of handler {name!r} can't be used: {error}; correct"
            " the annotation of its payload"
        ) from error
