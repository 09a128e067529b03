"""Run the coroutines of handlers on event loops of their own, in threads beside the worker's loop.

    worker's loop ──submit──→ first loop: all coroutines ──result──→ worker's loop
         └──probe──→ no answer within `block_after`: the loop is blocked
                       → name the handler that blocks it (log, heartbeat, metrics)
                       → new runs, and runs that haven't begun, use another loop

Invariants
- No coroutine of a handler runs on the worker's loop: heartbeats, the lease, timeouts, results and
  every other kind of run don't depend on what a handler does to its loop.
- All coroutines share the first loop as long as it answers, so that objects which belong to a loop
  can be shared. After a block the first loop is used again.
- A coroutine that has begun can't move: it waits until its loop is free again. Its silence isn't
  counted meanwhile; its timeout is.
- At most `MOST_LOOPS` loops exist. When all are blocked, the worker asks for no new work.

Limit: a C function that keeps the GIL stops every thread of the process, the worker's too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import sysconfig
import threading
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any, Final, Generic, NoReturn, TypeVar

from schedkit.clock import boottime, utcnow
from schedkit.records import dataclass
from schedproto.v1 import worker_service_pb2 as pb
from workerd.executors.running import Running, current
from workerd.metrics import Metrics
from workerd.nursery import cancel
from workerd.process_guard import restore
from workerd.run_output import current_output

log = logging.getLogger(__name__)

T = TypeVar("T")

BLOCK_AFTER: Final = 1.0
"""Seconds without an answer after which a loop counts as blocked."""
MOST_LOOPS: Final = 8
LOOK_EVERY: Final = 0.25
"""Seconds between two probes of a loop that runs something."""
STOOD_STILL: Final = 1.0
"""Seconds by which a look may be late. If it is later, this process was stopped: probes restart."""
MOST_PLACE: Final = 200
"""Characters of the place at which a handler blocks."""
_LIBRARIES: Final = (
    "<frozen",
    *{sysconfig.get_path(each) for each in ("stdlib", "platstdlib", "purelib", "platlib")},
    str(Path(__file__).parents[1]),
)
"""Where files are that no user's handler is in, as a rule."""
_HANDLE_RUN: Final = asyncio.Handle._run.__code__  # noqa: SLF001 - the frame of every callback


@dataclass(frozen=True, slots=True)
class Block:
    """A handler that blocks its event loop."""

    run: Running | None
    """None: a callback without a run, such as one of a library."""
    since: datetime
    seconds: float
    place: str
    """File, line and function."""
    waiting: int
    """Coroutines that wait for the loop."""

    @property
    def handler(self) -> str:
        """Its name."""
        return "unknown" if self.run is None else self.run.handler


class Call(Generic[T]):
    """One coroutine that was submitted. Belongs to the worker's loop, but for `claim`."""

    __slots__ = ("_unclaimed", "done", "home", "run", "task", "work")

    def __init__(self, run: Running | None, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.run = run
        self.work = work
        self.done: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        """Its result; None: it was canceled before it began."""
        self.task: asyncio.Task[None] | None = None
        self.home: _Loop | None = None
        self._unclaimed: list[None] = []

    def claim(self) -> bool:
        """Whether the caller alone may decide about it from now on. Callable from any thread."""
        try:
            self._unclaimed.pop()
        except IndexError:
            return False
        return True

    def move(self, home: _Loop) -> None:
        """Have it begin there; the caller has claimed it."""
        self.home = home
        self._unclaimed.append(None)

    def cancel(self) -> None:
        """Cancel it: at once if it hasn't begun, else as a task is canceled."""
        if self.done.done():
            return
        if self.claim():
            self.settle(None)
        elif self.home is not None and self.task is not None:
            self.home.call(cancel, self.task)

    def settle(self, result: T | None) -> None:
        """It has ended."""
        if self.home is not None:
            self.home.calls.pop(self, None)
        if not self.done.done():
            self.done.set_result(result)


class _Loop:
    """One event loop in its thread."""

    def __init__(self, number: int) -> None:
        self.calls: dict[Call[Any], None] = {}
        """Submitted here and not ended; of the worker's loop."""
        self.probed_at: float | None = None
        """When the probe was sent that isn't answered yet."""
        self.probed = utcnow()
        self.block: Block | None = None
        self._worker = asyncio.get_running_loop()
        self._aio = asyncio.SelectorEventLoop()
        self._aio.set_exception_handler(_report)
        self._inbox: deque[Call[Any]] = deque()
        self._outbox: deque[tuple[Call[Any], Any]] = deque()
        self._closing = False
        self._taking = self._telling = False
        """Whether the other thread was woken and hasn't looked yet."""
        name = f"handler loop {number}"
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._aio)
        while not self._closing:
            try:
                self._aio.run_forever()  # it returns when a handler stops the loop
            except BaseException:  # a SystemExit in a task that a handler has created
                log.exception("a task of a handler tried to end the worker")

    def call(self, function: Callable[..., object], *given: object) -> None:
        """Call it on the loop, soon."""
        with contextlib.suppress(RuntimeError):  # it is closed: the worker ends
            self._aio.call_soon_threadsafe(function, *given)

    def submit(self, call: Call[Any]) -> None:
        """Begin it here."""
        call.move(self)
        self.calls[call] = None
        self._inbox.append(call)
        if not self._taking:  # one wake for all that this turn of the worker's loop submits
            self._taking = True
            self._worker.call_soon(self.call, self._take)

    def unbegun(self) -> list[Call[Any]]:
        """Those that haven't begun, taken back."""
        taken = [call for call in self.calls if call.claim()]
        for call in taken:
            del self.calls[call]
        return taken

    def probe(self, now: float) -> None:
        """Ask for an answer, unless one is awaited already."""
        if self.probed_at is None:
            self.probed_at, self.probed = now, utcnow()
            self.call(self._answer, now)

    def probe_again(self, now: float) -> None:
        """Forget how long an answer has been awaited."""
        if self.probed_at is not None:
            self.probed_at = None
            self.probe(now)

    def stack(self) -> Sequence[FrameType]:
        """The frames that its thread is in, the innermost first."""
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001
        return [each for each, _ in traceback.walk_stack(frame)] if frame is not None else []

    async def close(self, within: float) -> None:
        """Cancel what runs here, and end the loop when it has ended, or after so many seconds."""

        def cancel_all() -> None:
            for task in asyncio.all_tasks(self._aio):
                cancel(task)

        self.call(cancel_all)
        if ends := [call.done for call in self.calls]:
            await asyncio.wait(ends, timeout=within)
        self._closing = True
        self.call(self._aio.stop)

    def _take(self) -> None:
        self._taking = False
        while self._inbox:
            call = self._inbox.popleft()
            name = f"run {call.run.key.run} {call.run.key.token}" if call.run else None
            call.task = self._aio.create_task(self._run(call), name=name)

    async def _run(self, call: Call[Any]) -> None:
        if call.home is not self or not call.claim():
            return  # another loop has it, or it was canceled
        current.set(call.run)
        if call.run is not None:
            current_output.set(call.run.output)
        result = await call.work()
        self._outbox.append((call, result))
        if not self._telling:
            self._telling = True
            self._aio.call_soon(self._wake_worker)

    def _wake_worker(self) -> None:
        with contextlib.suppress(RuntimeError):  # the worker has ended
            self._worker.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self._telling = False
        while self._outbox:
            call, result = self._outbox.popleft()
            call.settle(result)

    def _answer(self, probe: float) -> None:
        with contextlib.suppress(RuntimeError):
            self._worker.call_soon_threadsafe(self._answered, probe)

    def _answered(self, probe: float) -> None:
        if self.probed_at == probe:
            self.probed_at = None


class HandlerLoops:
    """All of one worker. Belongs to the worker's loop."""

    def __init__(self, metrics: Metrics, block_after: float = BLOCK_AFTER) -> None:
        self._metrics = metrics
        self._block_after = block_after
        self._loops: list[_Loop] = []

    def submit(self, run: Running | None, work: Callable[[], Coroutine[Any, Any, T]]) -> Call[T]:
        """Run the coroutine that `work` makes. It must not raise."""
        call = Call(run, work)
        self._free().submit(call)
        return call

    @property
    def blocks(self) -> Sequence[Block]:
        """Loops that are blocked now."""
        return [loop.block for loop in self._loops if loop.block is not None]

    def fill(self, beat: pb.Heartbeat) -> None:
        """Write the handlers that block loops into a heartbeat."""
        for block in self.blocks:
            if block.run is None:
                continue
            run = block.run
            wire_block = beat.blocking.add(
                key=run.assignment, handler=run.handler, place=block.place, waiting=block.waiting
            )
            wire_block.blocked_for.FromNanoseconds(int(block.seconds * 1e9))

    @property
    def refuses(self) -> str:
        """Why no new work may be asked for, in words; empty: a loop is free."""
        if len(self.blocks) < MOST_LOOPS:
            return ""
        names = sorted({each.run.handler for each in self.blocks if each.run is not None})
        return f"handlers block all {MOST_LOOPS} event loops of this worker: {', '.join(names)}"

    async def watch(self) -> NoReturn:
        """Probe the loops until canceled."""
        looked = boottime()
        while True:
            await asyncio.sleep(LOOK_EVERY)
            restore()
            before, looked = looked, boottime()
            if looked > before + LOOK_EVERY + STOOD_STILL:
                for loop in self._loops:
                    loop.probe_again(looked)
            for loop in [*self._loops]:
                self._look(loop, looked)

    async def close(self, within: float = 2.0) -> None:
        """Cancel what still runs, and end all loops; a blocked one is left behind."""
        async with asyncio.TaskGroup() as group:
            for loop in self._loops:
                group.create_task(loop.close(0.0 if loop.block else within))

    def _free(self) -> _Loop:
        for loop in self._loops:
            if loop.block is None:
                return loop
        if len(self._loops) < MOST_LOOPS:
            try:
                self._loops.append(_Loop(len(self._loops) + 1))
            except (OSError, RuntimeError) as error:  # no descriptor, no thread
                if not self._loops:
                    raise
                log.warning("can't start another event loop for handlers: %s", error)
        return self._loops[-1]

    def _look(self, loop: _Loop, now: float) -> None:
        if loop.probed_at is None:
            if loop.block is not None:
                self._unblocked(loop, loop.block)
            if loop.calls:
                loop.probe(now)
            return
        seconds = now - loop.probed_at
        if seconds < self._block_after:
            return
        before = loop.block
        loop.block = block = _block(loop, seconds)
        if before is None or before.run is not block.run:
            self._blocked(loop, block)
        if block.run is not None:
            block.run.blocked = f"blocked its event loop for {seconds:.1f} s at {block.place}"
        self._metrics.blocked_for.labels(block.handler).set(seconds)
        for call in loop.calls:
            if call.run is not None and call.run is not block.run:
                call.run.beat()  # it can't send one itself

    def _blocked(self, loop: _Loop, block: Block) -> None:
        self._metrics.blocks.labels(block.handler).inc()
        about = block.run.said if block.run is not None else {"handler": block.handler}
        stack = "".join(traceback.format_list(_summary(loop.stack())))
        log.warning(
            "handler blocks its event loop; other runs use another loop",
            extra={
                **about,
                "blocked_for": f"{block.seconds:.1f}s",
                "at": block.place,
                "coroutines_waiting": block.waiting,
                "stack": stack,
            },
        )
        for call in loop.unbegun():
            self._free().submit(call)

    def _unblocked(self, loop: _Loop, block: Block) -> None:
        loop.block = None
        seconds = (utcnow() - block.since) / timedelta(seconds=1)
        about = block.run.said if block.run is not None else {"handler": block.handler}
        log.warning(
            "event loop of handlers is free again",
            extra={**about, "blocked_for": f"{seconds:.1f}s", "at": block.place},
        )
        self._metrics.blocked_for.labels(block.handler).set(0.0)


def _block(loop: _Loop, seconds: float) -> Block:
    frames = loop.stack()
    run = _run_of(frames)
    return Block(run, loop.probed, seconds, _place(frames), max(len(loop.calls) - 1, 0))


def _run_of(frames: Sequence[FrameType]) -> Running | None:
    """The run in whose context the outermost callback of the loop runs."""
    for frame in reversed(frames):
        if frame.f_code is _HANDLE_RUN:
            context = getattr(frame.f_locals.get("self"), "_context", None)
            return None if context is None else context.get(current)
    return None


def _inner(frames: Sequence[FrameType]) -> Iterator[FrameType]:
    """Those inside of the loop's callback, the innermost first."""
    for frame in frames:
        if frame.f_code is _HANDLE_RUN:
            return
        yield frame


def _summary(frames: Sequence[FrameType]) -> traceback.StackSummary:
    inner = reversed([*_inner(frames)])
    return traceback.StackSummary.extract((frame, frame.f_lineno) for frame in inner)


def _place(frames: Sequence[FrameType]) -> str:
    """Where it is, in the innermost function that no library has: file, line, function."""
    inner = [*_inner(frames)]
    own = [each for each in inner if not each.f_code.co_filename.startswith(_LIBRARIES)]
    for frame in own or inner:
        code = frame.f_code
        return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"[-MOST_PLACE:]
    return "unknown"


def _report(loop: asyncio.AbstractEventLoop, what: dict[str, Any]) -> None:
    """What handlers leave undone on their loop, such as an exception that no one awaited."""
    del loop
    error = what.get("exception")
    log.warning(
        "on the event loop of handlers: %s", what.get("message", ""), exc_info=error or None
    )
