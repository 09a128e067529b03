"""The process of one call of a handler: `@handler(mode="process")`.

    worker ──socket (stdin), ORDER──→ import, call ──BEAT, PROGRESS … END──→ worker, and this ends

Run as `python -m workerd.executors.handlers.handler_process`, with a socket as standard input. It
is started as programs are (`births`, `cradle`): a session of its own, a cgroup where there are
some, no thread or descriptor of the worker's. Output is the attempt's output; a traceback goes
there, too.

Invariants
- The handler has no way to the socket but `ctx`, and finds /dev/null as standard input.
- Asked to end (SIGTERM), a coroutine is cancelled and a function ends by `SystemExit`, once: what
  has to be put in order can be. `ctx.cancel` is set first.
- The end is said once, by this process: what it forked and lets return ends without a word.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn

from schedclient import handlers as sdk
from schedkit.daemon import logs
from workerd.core.outcome import AttemptOutcome, Content
from workerd.executors.handlers import handler_protocol
from workerd.executors.handlers.invocation import decoded, raised, returned, trace, unfit
from workerd.executors.handlers.payload_types import Misfit, fit_of

_ENDED_BY_TERM = 128 + signal.SIGTERM


class Mouth:
    """Tells the worker what comes up, in a thread of its own: never at the handler's cost."""

    def __init__(self, worker: socket.socket) -> None:
        self._worker = worker
        self._progress: sdk.Progress | None = None
        self._due = threading.Event()
        self._over = threading.Event()
        self._sending = threading.Lock()
        threading.Thread(target=self._speak, name="mouth", daemon=True).start()

    def beat(self) -> None:
        """It goes on."""
        self._due.set()

    def progress(self, progress: sdk.Progress) -> None:
        """It is so far."""
        self._progress = progress
        self._due.set()

    def end(self, outcome: AttemptOutcome) -> None:
        """It has ended so. What was said of its progress last goes before."""
        self._over.set()
        self._tell()
        self._send(handler_protocol.told_end(outcome))

    def _speak(self) -> None:
        while self._due.wait() and not self._over.wait(0.0):
            self._due.clear()
            self._tell()
            self._over.wait(handler_protocol.EVERY)

    def _tell(self) -> None:
        progress, self._progress = self._progress, None
        if progress is not None:
            self._send(handler_protocol.told_progress(progress))
        else:
            self._send(handler_protocol.Frame(handler_protocol.BEAT))

    def _send(self, frame: handler_protocol.Frame) -> None:
        with self._sending:
            try:
                self._worker.sendall(frame.encoded())
            except OSError:  # the worker is gone, and this process will be
                self._over.set()


def main() -> NoReturn:
    """Do what the order says, and end."""
    me = os.getpid()
    worker = _control()
    order = _received(worker)
    sys.path[:] = order.told["path"]
    logs.configure(order.told["log_level"], "text", "workerd")
    mouth = Mouth(worker)
    outcome = _carried_out(order, mouth)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # the handler closed it
            stream.flush()
    if os.getpid() == me:
        mouth.end(outcome)
    os._exit(0)


def _control() -> socket.socket:
    """The way to the worker, away from standard input."""
    worker = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return worker


def _received(worker: socket.socket) -> handler_protocol.Frame:
    kind, told, data = handler_protocol.sizes(_read(worker, handler_protocol.HEAD.size))
    return handler_protocol.frame(kind, _read(worker, told), _read(worker, data))


def _read(worker: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = worker.recv(size - len(data))
        if not more:
            os._exit(1)  # the worker has gone, or thought better of it
        data += more
    return bytes(data)


def _carried_out(order: handler_protocol.Frame, mouth: Mouth) -> AttemptOutcome:
    cancel = threading.Event()

    def asked(_number: int, _frame: object) -> None:
        again = cancel.is_set()
        cancel.set()
        if not again:
            raise SystemExit(_ENDED_BY_TERM)

    signal.signal(signal.SIGTERM, asked)
    try:
        return _called(order.told, _payload(order), mouth, cancel)
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
        if not (isinstance(error, SystemExit) and cancel.is_set()):
            _show(error)
        return raised(error)


def _show(error: BaseException) -> None:
    """Its traceback is output, though the handler has replaced or closed `sys.stderr`."""
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    with contextlib.suppress(OSError):
        data = trace(error)
        while data:
            data = data[os.write(2, data) :]


def _called(
    told: Mapping[str, Any], payload: Content | None, mouth: Mouth, cancel: threading.Event
) -> AttemptOutcome:
    for module in told["modules"]:
        importlib.import_module(module)
    function = sdk.registered[told["handler"]].function
    fit = fit_of(function)
    try:
        value = fit(decoded(payload))
    except Misfit as error:
        return unfit(error)
    except (ValueError, RecursionError) as error:
        return unfit(ValueError(f"the payload isn't JSON: {error}"))
    context = _context(told["context"], cancel, mouth.beat, mouth.progress)
    if sdk.is_async(function):
        answer = asyncio.run(_awaited(function, value, context))
    else:
        answer = function(value, context)
    return returned(answer, told["most_result"])


async def _awaited(function: sdk.Handler, payload: object, context: sdk.Context) -> object:
    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    assert me is not None

    def asked() -> None:
        if not context.cancel.is_set():
            context.cancel.set()
            me.cancel()

    loop.add_signal_handler(signal.SIGTERM, asked)
    try:
        answer: Any = function(payload, context)
        return await answer
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def _payload(order: handler_protocol.Frame) -> Content | None:
    given: bool | None = order.told["json"]
    return None if given is None else Content(order.data, json=given)


def _context(
    told: Mapping[str, Any],
    cancel: threading.Event,
    beat: Callable[[], None],
    progress: Callable[[sdk.Progress], None],
) -> sdk.Context:
    instants = {key: datetime.fromisoformat(told[key]) for key in ("scheduled_at", "deadline")}
    return sdk.Context(
        **{**told, **instants}, cancel=cancel, on_heartbeat=beat, on_progress=progress
    )


if __name__ == "__main__":
    main()
