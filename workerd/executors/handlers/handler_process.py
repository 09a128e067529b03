"""The subprocess of one call of a handler: `@handler(mode="process")`.

    worker ──socket (stdin), ORDER──→ import, call ──BEAT, PROGRESS … END──→ worker, and this ends

Run as `python -m workerd.executors.handlers.handler_process`, with a socket as standard input. It
is started like a program (`cgroup_spawn`): its own session, a cgroup if available, no thread or
descriptor of the worker. Its output is the attempt's output; tracebacks are written there, too.

Invariants
- The handler uses the socket only through `ctx`. Its standard input is /dev/null.
- On SIGTERM `ctx.cancel` is set, then a coroutine is canceled and a function gets `SystemExit`,
  once, so cleanup is possible.
- The end is sent once, by this process. A forked copy that returns sends nothing.
"""

import asyncio
import contextlib
import importlib
import os
import signal
import socket
import sys
import threading
from datetime import datetime
from typing import Any, NoReturn

from schedclient import handlers as sdk
from schedkit.daemon import logs
from workerd.core.outcome import AttemptOutcome, Content
from workerd.executors.handlers import handler_protocol
from workerd.executors.handlers.invocation import decoded, raised, returned, trace, unfit
from workerd.executors.handlers.payload_types import PayloadMismatch, fit_of

_ENDED_BY_TERM = 128 + signal.SIGTERM


class ReportSender:
    def __init__(self, worker: socket.socket) -> None:
        self._worker = worker
        self._progress: sdk.Progress | None = None
        self._due = threading.Event()
        self._over = threading.Event()
        self._sending = threading.Lock()
        threading.Thread(target=self._serve, name="reports", daemon=True).start()

    def beat(self) -> None:
        self._due.set()

    def progress(self, progress: sdk.Progress) -> None:
        self._progress = progress
        self._due.set()

    def end(self, outcome: AttemptOutcome) -> None:
        self._over.set()
        self._report()
        self._send(handler_protocol.end_frame(outcome))

    def _serve(self) -> None:
        while self._due.wait() and not self._over.wait(0.0):
            self._due.clear()
            self._report()
            self._over.wait(handler_protocol.EVERY)

    def _report(self) -> None:
        progress, self._progress = self._progress, None
        if progress is not None:
            self._send(handler_protocol.progress_frame(progress))
        else:
            self._send(handler_protocol.Frame(handler_protocol.BEAT))

    def _send(self, frame: handler_protocol.Frame) -> None:
        with self._sending:
            try:
                self._worker.sendall(frame.encoded())
            except OSError:  # the worker has ended, and this process will
                self._over.set()


def main() -> NoReturn:
    me = os.getpid()
    worker = _control()
    order = _received(worker)
    sys.path[:] = order.fields["path"]
    logs.configure(order.fields["log_level"], "text", "workerd")
    reports = ReportSender(worker)
    outcome = _carried_out(order, reports)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # the handler closed it
            stream.flush()
    if os.getpid() == me:
        reports.end(outcome)
    os._exit(0)


def _control() -> socket.socket:
    """Return the socket to the worker; replace standard input by /dev/null."""
    worker = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return worker


def _received(worker: socket.socket) -> handler_protocol.Frame:
    with worker.makefile("rb") as file:

        def read(size: int) -> bytes:
            data = file.read(size)
            if len(data) < size:
                os._exit(1)  # the worker has ended, or canceled the call
            return data

        kind, fields, data = handler_protocol.sizes(read(handler_protocol.HEAD.size))
        return handler_protocol.frame(kind, read(fields), read(data))


def _carried_out(order: handler_protocol.Frame, reports: ReportSender) -> AttemptOutcome:
    cancel = threading.Event()

    def asked(_number: int, _frame: object) -> None:
        again = cancel.is_set()
        cancel.set()
        if not again:
            raise SystemExit(_ENDED_BY_TERM)

    signal.signal(signal.SIGTERM, asked)
    try:
        return _called(order, reports, cancel)
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
        if not (isinstance(error, SystemExit) and cancel.is_set()):
            _show(error)
        return raised(error)


def _show(error: BaseException) -> None:
    """Write the traceback to stderr, even if the handler has replaced or closed `sys.stderr`."""
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    with contextlib.suppress(OSError):
        data = trace(error)
        while data:
            data = data[os.write(2, data) :]


def _called(
    order: handler_protocol.Frame, reports: ReportSender, cancel: threading.Event
) -> AttemptOutcome:
    fields, json = order.fields, order.fields["json"]
    for module in fields["modules"]:
        importlib.import_module(module)
    function = sdk.registered[fields["handler"]].function
    fit = fit_of(function)
    try:
        value = fit(None if json is None else decoded(Content(order.data, json=json)))
    except PayloadMismatch as error:
        return unfit(error)
    except (ValueError, RecursionError) as error:
        return unfit(
            ValueError(f"the payload of the run isn't valid JSON: {error}; correct the payload")
        )
    given = fields["context"]
    given |= {key: datetime.fromisoformat(given[key]) for key in ("scheduled_at", "deadline")}
    context = sdk.Context(
        **given, cancel=cancel, on_heartbeat=reports.beat, on_progress=reports.progress
    )
    if sdk.is_async(function):
        answer = asyncio.run(_awaited(function, value, context))
    else:
        answer = function(value, context)
    return returned(answer, fields["most_result"])


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


if __name__ == "__main__":
    main()
