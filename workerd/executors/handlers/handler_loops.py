"""Run coroutines of handlers on separate event loops, in threads beside the worker's loop.

    worker's loop ──submit──→ first loop: all coroutines ──result──→ worker's loop
         └──probe──→ no answer within `block_after`: the loop is blocked
                       → name the handler that blocks it (log, heartbeat, metrics)
                       → new runs, and runs that haven't begun, use another loop

    a call:  waiting, in the inbox of one loop ──taken──→ begun, on that loop ──→ ended
                  └──withdrawn──→ ended (canceled), or waiting in the inbox of another loop

Calls that are submitted in one turn of the worker's loop are begun by one wake-up of the other
loop, each as a task of that loop, whose first step runs at once. Those that end in one turn there
are resolved by one wake-up.

Invariants
- No coroutine of a handler runs on the worker's loop: heartbeats, the lease, timeouts, results and
  all other runs don't depend on a handler's loop.
- A call is in one inbox, or it has begun, or it has ended. The thread that removes it from the
  inbox, in one operation of a dictionary, owns it. The loop that removes it begins it in the same
  step. So a call begins on at most one loop, and a cancel always reaches it there.
- No other code runs between the creation of a task and its first step, so no handler can cancel
  the task meanwhile. A call that has begun always ends, whatever its coroutine raises.
- A handler can't stop or close its loop: other runs use it, too.
- All coroutines share the first loop while it answers, so objects that belong to a loop can be
  shared. After a block the first loop is used again.
- A coroutine that has begun can't move: it waits until its loop is free again. Its heartbeat
  timeout is suspended meanwhile; its timeout isn't.
- At most `MOST_LOOPS` loops exist. When all are blocked, the worker asks for no new work.

Limit: a C function that keeps the GIL stops every thread of the process, the worker's too.
"""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import errno
import logging
import sys
import sysconfig
import threading
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn, TypeVar, cast

from schedkit.clock import boottime, utcnow
from schedkit.records import dataclass
from schedproto.v1 import worker_service_pb2 as pb
from workerd.executors.handlers.attempt_call import HandlerCall, current
from workerd.metrics import WorkerMetrics
from workerd.process.process_guard import restore
from workerd.task_set import cancel

log = logging.getLogger(__name__)

T = TypeVar("T")

BLOCK_AFTER: Final = 1.0
"""Seconds without an answer after which a loop counts as blocked."""
MOST_LOOPS: Final = 8
LOOK_EVERY: Final = 0.25
"""Seconds between two probes of a loop that runs something."""
STOOD_STILL: Final = 1.0
"""Seconds by which a check may be late. If later, this process was suspended: restart probes."""
MOST_PLACE: Final = 200
"""Characters of the place where a handler blocks."""
AFTER_ERROR: Final = 0.01
"""Seconds until a loop that an error ended is restarted."""
_LIBRARIES: Final = (
    "<frozen",
    *{sysconfig.get_path(each) for each in ("stdlib", "platstdlib", "purelib", "platlib")},
    str(Path(__file__).parents[2]),
)
"""Directories that usually contain no user's handler."""
_HANDLE_RUN: Final = asyncio.Handle._run.__code__  # noqa: SLF001 - the frame of every callback


@dataclass(frozen=True, slots=True)
class LoopBlock:
    run: HandlerCall | None
    """None: a callback without a run, such as one of a library."""
    since: datetime
    seconds: float
    place: str
    """File, line and function."""
    waiting: int
    """Number of coroutines that wait for the loop."""

    @property
    def handler(self) -> str:
        return "unknown" if self.run is None else self.run.handler

    @property
    def log_fields(self) -> dict[str, object]:
        return {"handler": self.handler} if self.run is None else self.run.log_fields


class _SharedLoop(asyncio.SelectorEventLoop):
    ending = False
    """Whether the worker is ending the loop."""
    _context: contextvars.Context | None = None
    """The context of the task that is being created."""
    _step: Callable[..., object]
    """Its first step."""

    def begin(self, work: Coroutine[Any, Any, None], call: HandlerCall) -> None:
        """Create a task, and run its first step. Not by the loop's task factory: handlers may set
        it.
        """
        self._context = context = contextvars.copy_context()
        run, token = call.key
        name = f"run {run} {token}"
        call.task = asyncio.Task(work, loop=self, name=name, context=context)
        step = self._step
        del self._step  # it refers to the call, whose batch would be kept until the next one
        context.run(step)

    def call_soon(  # type: ignore[override]  # its arguments are generic
        self,
        callback: Callable[..., object],
        *given: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle | None:
        """Schedule a callback. Keep the first step of a task of `begin`."""
        if context is not None and context is self._context:
            self._context, self._step = None, callback
            return None
        return super().call_soon(callback, *given, context=context)

    def stop(self) -> None:
        if self.ending:
            super().stop()
            return
        run = current.get()
        log.warning(
            "handler tried to stop its event loop; ignored because other runs share the loop",
            extra=run.log_fields if run is not None else None,
        )

    def close(self) -> None:
        """Close for the worker; refuse for a handler, as a running loop does."""
        if self.ending:
            super().close()
            return
        raise RuntimeError("the handler can't close the event loop: other runs use the same loop")

    async def shutdown_default_executor(self, *_given: Any) -> None:
        """Do nothing: other runs use the executor."""

    async def shutdown_asyncgens(self) -> None:
        """Do nothing: other runs use their generators."""

    def end(self) -> None:
        self.ending = True
        self.stop()


_BEGIN: Final = _SharedLoop.begin.__code__


class HandlerLoop:
    def __init__(self, number: int) -> None:
        self.calls: dict[HandlerCall, bool] = {}
        """Calls that were submitted here and haven't ended. Used on the worker's loop only."""
        self.probed_at: float | None = None
        """When the unanswered probe was sent; None without one."""
        self.probed = utcnow()
        self.block: LoopBlock | None = None
        self._worker = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        """For callbacks on the worker's loop: they must not run in the context of a handler."""
        self._aio = _SharedLoop()
        self._aio.set_exception_handler(_report)
        self._inbox: dict[HandlerCall, bool] = {}
        """Each operation on it is atomic: its keys have no hash of their own."""
        self._outbox: deque[tuple[HandlerCall, Any, BaseException | None]] = deque()
        self._emptied: asyncio.Future[None] | None = None
        self._waking = self._reporting = False
        """Whether the other thread was woken and hasn't checked yet."""
        name = f"handler loop {number}"
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._aio)
        while not self._aio.ending:
            try:
                self._aio.run_forever()
            except BaseException:  # a SystemExit in a task that a handler has created
                log.exception("a task of a handler raised SystemExit: the event loop continues")
                time.sleep(AFTER_ERROR)

    def call(self, function: Callable[..., object], *given: object) -> None:
        with contextlib.suppress(RuntimeError):  # it is closed: the worker ends
            self._aio.call_soon_threadsafe(function, *given)

    def run(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._aio)

    def submit(self, calls: Sequence[HandlerCall]) -> None:
        for call in calls:
            call.home = self
        waiting = dict.fromkeys(calls, True)
        self.calls.update(waiting)
        self._inbox.update(waiting)
        if not self._waking:  # one wake-up for all calls of this turn of the worker's loop
            self._waking = True
            self._worker.call_soon(self.call, self._start_waiting)

    def _check_emptied(self) -> None:
        if self._emptied is not None and not self.calls and not self._emptied.done():
            self._emptied.set_result(None)

    @property
    def waiting(self) -> bool:
        return bool(self._inbox)

    def cancel(self, call: HandlerCall) -> None:
        if self._withdraw(call):
            call.resolve(None, None)
        else:
            self.call(_cancel_task, call)

    def _withdraw(self, call: HandlerCall) -> bool:
        if not self._inbox.pop(call, False):
            return False
        self.calls.pop(call, None)
        self._check_emptied()
        return True

    def withdraw_all(self) -> Sequence[HandlerCall]:
        return [call for call in [*self._inbox] if self._withdraw(call)]

    def probe(self, now: float) -> None:
        if self.probed_at is None:
            self.probed_at, self.probed = now, utcnow()
            self.call(self._answer_probe, now)

    def stack(self) -> Sequence[FrameType]:
        """Return the frames of the loop's thread, the innermost first."""
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001
        return [each for each, _ in traceback.walk_stack(frame)] if frame is not None else []

    async def close(self, within: float) -> None:
        """Cancel all tasks; end the loop when they have ended, or after so many seconds."""

        def cancel_all() -> None:
            for task in asyncio.all_tasks(self._aio):
                cancel(task)

        for call in self.withdraw_all():
            call.resolve(None, asyncio.CancelledError("the worker is shutting down"))
        self.call(cancel_all)
        if self.calls:
            self._emptied = self._worker.create_future()
            await asyncio.wait([self._emptied], timeout=within)
        self.call(self._aio.end)

    def resolve_ended(self) -> None:
        self._reporting = False
        calls, outbox = self.calls, self._outbox
        try:
            while outbox:
                call, result, error = outbox.popleft()
                calls.pop(call, None)
                call.resolve(result, error)
        finally:  # a call whose report fails doesn't keep the others
            if outbox:
                self._worker.call_soon(self.resolve_ended, context=self._context)
            self._check_emptied()

    def _start_waiting(self) -> None:
        self._waking = False
        begin, inbox = self._aio.begin, self._inbox
        for call in [*inbox]:
            if inbox.pop(call, False):
                begin(self._run(call), call)

    async def _run(self, call: HandlerCall) -> None:
        result = error = None
        try:
            result = await call.work()
        except BaseException as raised:  # noqa: BLE001 - the caller is given it
            error = raised
        call.task = None  # whose context refers to the call: a reference cycle
        self._outbox.append((call, result, error))
        if not self._reporting:
            self._reporting = True
            with contextlib.suppress(RuntimeError):  # the loop has ended before its coroutine
                self._aio.call_soon(self._wake_worker)

    def _wake_worker(self) -> None:
        with contextlib.suppress(RuntimeError):  # the worker has ended
            self._worker.call_soon_threadsafe(self.resolve_ended, context=self._context)

    def _answer_probe(self, probe: float) -> None:
        with contextlib.suppress(RuntimeError):
            self._worker.call_soon_threadsafe(self._answered, probe, context=self._context)

    def _answered(self, probe: float) -> None:
        if self.probed_at == probe:
            self.probed_at = None


class HandlerLoops:
    """The handler loops of one worker. Belongs to the worker's loop."""

    def __init__(self, metrics: WorkerMetrics, block_after: float = BLOCK_AFTER) -> None:
        self._metrics = metrics
        self._block_after = block_after
        self._loops: list[HandlerLoop] = []

    def submit(self, calls: Sequence[HandlerCall]) -> None:
        """Run these calls.

        Raises:
            OSError: there is no loop, and the host has no resources for one.
        """
        self._free().submit(calls)

    async def await_there(self, work: Callable[[], Awaitable[object]]) -> None:
        """Await `work` on a loop, with its exceptions of any kind."""

        async def awaited() -> BaseException | None:
            try:
                await work()
            except BaseException as error:  # noqa: BLE001 - raised by the caller
                return error
            return None

        if (error := await asyncio.wrap_future(self._free().run(awaited()))) is not None:
            raise error

    @property
    def blocks(self) -> Sequence[LoopBlock]:
        return [loop.block for loop in self._loops if loop.block is not None]

    def fill(self, beat: pb.Heartbeat) -> None:
        """Add the handlers that block loops to a heartbeat."""
        for block in self.blocks:
            if block.run is None:
                continue
            run = block.run
            wire_block = beat.blocking.add(
                key=run.batch.assigned.key(run.place),
                handler=run.handler,
                place=block.place,
                waiting=block.waiting,
            )
            wire_block.blocked_for.FromNanoseconds(int(block.seconds * 1e9))

    @property
    def refusal_reason(self) -> str:
        """Why the worker requests no new work; empty if a loop is free."""
        if len(self.blocks) < MOST_LOOPS:
            return ""
        names = sorted({each.run.handler for each in self.blocks if each.run is not None})
        return f"handlers block all {MOST_LOOPS} event loops of this worker: {', '.join(names)}"

    async def watch(self) -> NoReturn:
        looked = boottime()
        while True:
            await asyncio.sleep(LOOK_EVERY)
            restore()
            before, looked = looked, boottime()
            if looked > before + LOOK_EVERY + STOOD_STILL:
                for loop in self._loops:
                    if loop.probed_at is not None:
                        loop.probed_at = None
                        loop.probe(looked)
            for loop in [*self._loops]:
                self._check_loop(loop, looked)

    async def close(self, within: float = 2.0) -> None:
        """Cancel all coroutines and end all loops; abandon blocked ones."""
        async with asyncio.TaskGroup() as group:
            for loop in self._loops:
                group.create_task(loop.close(0.0 if loop.block else within))

    def _free(self) -> HandlerLoop:
        for loop in self._loops:
            if loop.block is None:
                return loop
        if len(self._loops) < MOST_LOOPS:
            try:
                self._loops.append(HandlerLoop(len(self._loops) + 1))
            except (OSError, RuntimeError) as error:  # no descriptor, no thread
                if not self._loops and isinstance(error, RuntimeError):
                    raise OSError(errno.EAGAIN, str(error)) from error
                if not self._loops:
                    raise
                log.warning("can't start another event loop for handlers: %s", error)
        return self._loops[-1]

    def _check_loop(self, loop: HandlerLoop, now: float) -> None:
        if loop.probed_at is None:
            if loop.block is not None:
                self._unblocked(loop, loop.block)
            if loop.calls:
                loop.probe(now)
            return
        seconds = now - loop.probed_at
        if seconds < self._block_after:
            return
        loop.resolve_ended()  # it can't wake the worker
        before = loop.block
        frames, waiting = loop.stack(), max(len(loop.calls) - 1, 0)
        block = LoopBlock(_run_of(frames), loop.probed, seconds, _place(frames), waiting)
        loop.block = block
        if before is None or before.run is not block.run:
            self._blocked(loop, block)
        if block.run is not None:
            block.run.blocked = f"blocked its event loop for {seconds:.1f} s at {block.place}"
        self._metrics.blocked_for.labels(block.handler).set(seconds)
        for call in loop.calls:
            if call is not block.run:
                call.beat()  # it can't send one itself
        if loop.waiting and (free := self._free()).block is None:
            free.submit(loop.withdraw_all())

    def _blocked(self, loop: HandlerLoop, block: LoopBlock) -> None:
        self._metrics.blocks.labels(block.handler).inc()
        inner = reversed([*_inner(loop.stack())])
        summary = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in inner)
        log.warning(
            "handler blocks its event loop; other runs use another loop",
            extra={
                **block.log_fields,
                "blocked_for": f"{block.seconds:.1f}s",
                "at": block.place,
                "coroutines_waiting": block.waiting,
                "stack": "".join(summary.format()),
            },
        )

    def _unblocked(self, loop: HandlerLoop, block: LoopBlock) -> None:
        loop.block = None
        seconds = (utcnow() - block.since) / timedelta(seconds=1)
        log.warning(
            "handler no longer blocks its event loop",
            extra={**block.log_fields, "blocked_for": f"{seconds:.1f}s", "at": block.place},
        )
        self._metrics.blocked_for.labels(block.handler).set(0.0)


def _run_of(frames: Sequence[FrameType]) -> HandlerCall | None:
    """Return the run in whose context the outermost callback of the loop runs."""
    context = None
    for frame in reversed(frames):
        if frame.f_code is _BEGIN:
            return cast("HandlerCall", frame.f_locals["call"])
        if frame.f_code is _HANDLE_RUN and context is None:
            context = getattr(frame.f_locals.get("self"), "_context", None)
    return None if context is None else context.get(current)


def _inner(frames: Sequence[FrameType]) -> Iterator[FrameType]:
    """Return the frames inside of the loop's callback, or of a first step, the innermost first."""
    for frame in frames:
        if frame.f_code in (_HANDLE_RUN, _BEGIN):
            return
        yield frame


def _place(frames: Sequence[FrameType]) -> str:
    """Return file, line and function of the innermost frame outside of libraries."""
    inner = [*_inner(frames)]
    own = [each for each in inner if not each.f_code.co_filename.startswith(_LIBRARIES)]
    for frame in own or inner:
        code = frame.f_code
        return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"[-MOST_PLACE:]
    return "unknown"


def _cancel_task(call: HandlerCall) -> None:
    if call.task is not None:
        cancel(call.task)


def _report(loop: asyncio.AbstractEventLoop, what: dict[str, Any]) -> None:
    """Log errors on a loop of handlers, such as exceptions that no task awaited."""
    del loop
    error = what.get("exception")
    log.warning(
        "error on an event loop of handlers: %s", what.get("message", ""), exc_info=error or None
    )
