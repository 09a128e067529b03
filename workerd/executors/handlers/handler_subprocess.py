"""Handlers in subprocesses: the worker's side.

    socketpair → a program (`handler_process`) → ORDER ↓ … BEAT, PROGRESS, END ↑ → its end

The process is started like a program: with a session, a cgroup and limits if available, the
keeper's supervision, the end of all its descendants, and its output.

Invariants
- The outcome that the handler reported counts. Without one the attempt has failed, with the exit
  code of the process. The worker and other runs aren't affected.
- The process has the worker's environment, because worker code runs there. The mark of the worker's
  own processes (`proc_files.OWN`) is removed: the process belongs to a job.
"""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from schedclient.handlers import MOST_NOTE
from schedkit.daemon import logs
from schedkit.egress.secrets import variables as variables_of
from workerd.core.capture import Mask, Piece
from workerd.core.outcome import (
    AttemptOutcome,
    AttemptVerdict,
    OutcomeReason,
    exited,
    failed,
    given_back,
    judged,
)
from workerd.core.resource_limits import at_limit
from workerd.executors.base import AttemptStart, Stop, bounds_of, outcome_of_stop
from workerd.executors.child_process import GRACE, ChildProcess, stayed
from workerd.executors.handlers import handler_protocol
from workerd.process import proc_files
from workerd.process.process_supervisor import ProcessSupervisor
from workerd.process.programs import Begun, Program

_NOT_ITS_OWN: Final = frozenset(
    {proc_files.OWN, proc_files.MARK, "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}
)
"""Variables that describe the worker process itself."""


class SubprocessHandlers:
    def __init__(
        self, supervisor: ProcessSupervisor, modules: Sequence[str], secrets: Sequence[Path] = ()
    ) -> None:
        """`modules`: imported in the subprocess. `secrets`: directories of files of variables."""
        self.supervisor = supervisor
        self._modules = modules
        self._secrets = secrets

    async def run(self, attempt: AttemptStart, stop: Stop) -> AttemptOutcome:
        action = attempt.common.python
        try:
            variables = variables_of(action.env_from, self._secrets)
            child, ours = self._started(attempt, variables)
        except ValueError as error:
            return failed(f"not started: {error}", OutcomeReason.EXCEPTION)
        except OSError as error:
            text = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
            if at_limit(error):
                return given_back(text, began=isinstance(error, Begun))
            return failed(f"not started: {text}", OutcomeReason.EXCEPTION)
        with ours:
            reported, code, output = await self._conversed(child, ours, attempt, stop, variables)
        if stop.cause is not None:
            return outcome_of_stop(attempt.batch, stop.cause, output=output)
        if reported is None:
            crashed = replace(_crashed(code), output=output)
            return judged(crashed, bounds_of(action.limits), child.excess)
        return replace(reported, error=_masked(reported.error, variables), output=output)

    def _started(
        self, attempt: AttemptStart, variables: Mapping[str, str]
    ) -> tuple[ChildProcess, socket.socket]:
        with contextlib.ExitStack() as undone:
            ours, theirs = socket.socketpair()
            undone.callback(ours.close)
            ours.setblocking(False)
            with theirs:
                program = self._program(attempt, variables, theirs.fileno())
                child = ChildProcess(program, attempt.key, self.supervisor, attempt.find_tail())
            undone.pop_all()
        return child, ours

    def _program(self, attempt: AttemptStart, variables: Mapping[str, str], stdin: int) -> Program:
        facts = {f"SCHEDD_{name.upper()}": value for name, value in attempt.facts().items()}
        own = {name: value for name, value in os.environ.items() if name not in _NOT_ITS_OWN}
        safe_path = ["-P"] if sys.flags.safe_path else []
        return Program(
            argv=[sys.executable, *safe_path, "-m", "workerd.executors.handlers.handler_process"],
            env={
                **own,
                **variables,
                **facts,
                "PYTHONUNBUFFERED": "1",
                **({"TRACEPARENT": trace} if (trace := attempt.traceparent) else {}),
            },
            cwd=Path.cwd(),
            stdin=stdin,
            secrets=[value.encode() for value in variables.values()],
            lost_kill_after=attempt.kill_after if attempt.batch.dies_with_lease else None,
            bounds=bounds_of(attempt.common.python.limits),
        )

    async def _conversed(
        self,
        child: ChildProcess,
        ours: socket.socket,
        attempt: AttemptStart,
        stop: Stop,
        variables: Mapping[str, str],
    ) -> tuple[AttemptOutcome | None, int, tuple[Piece, ...]]:
        order = _order(attempt, self._modules)
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(
                _received(ours, order, attempt, child, variables),
                name=f"process of run {attempt.key.run}",
            )
            try:
                code, output = await stayed(child, attempt, stop)
                await asyncio.wait([listening], timeout=GRACE)
            finally:
                listening.cancel()
        return (None if listening.cancelled() else listening.result()), code, output


async def _received(
    ours: socket.socket,
    order: handler_protocol.Frame,
    attempt: AttemptStart,
    child: ChildProcess,
    variables: Mapping[str, str],
) -> AttemptOutcome | None:
    """Send the order; receive frames until the end. None: no outcome was reported."""
    loop, most = asyncio.get_running_loop(), attempt.most_result
    try:
        await loop.sock_sendall(ours, order.encoded())
        while True:
            kind, fields, data = handler_protocol.sizes(
                await _read(loop, ours, handler_protocol.HEAD.size), most
            )
            frame = handler_protocol.frame(
                kind, await _read(loop, ours, fields), await _read(loop, ours, data)
            )
            attempt.beat()
            if frame.kind == handler_protocol.PROGRESS:
                progress = handler_protocol.progress_in(frame)
                note = _masked(progress.note, variables)[:MOST_NOTE]
                attempt.report_progress(replace(progress, note=note))
            elif frame.kind == handler_protocol.END:
                return handler_protocol.end_in(frame, most)
            await asyncio.sleep(0)  # reading available data doesn't yield to other tasks
    except handler_protocol.MalformedFrame as error:
        child.kill()
        text = f"the handler's process sent an invalid message to the worker: {error}"
        return failed(text, OutcomeReason.EXCEPTION)
    except OSError:  # the process has ended, or never read the order
        return None


async def _read(loop: asyncio.AbstractEventLoop, ours: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = await loop.sock_recv(ours, size - len(data))
        if not more:
            raise ConnectionResetError(
                "the process of the Python handler ended before it sent its outcome; `schedctl"
                " run logs` shows its output"
            )
        data += more
    return bytes(data)


def _order(attempt: AttemptStart, modules: Sequence[str]) -> handler_protocol.Frame:
    payload, traceparent = attempt.batch.content_of(attempt.place), attempt.traceparent
    context: dict[str, object] = {**attempt.facts(), "traceparent": traceparent}
    context |= {"attempt": attempt.common.attempt, "fencing_token": attempt.key.token}
    del context["idempotency_key"]
    fields = {
        "path": sys.path,
        "modules": [*modules],
        "handler": attempt.common.python.handler,
        "most_result": attempt.most_result,
        "log_level": logs.level(),
        "context": context,
        "json": None if payload is None else payload.json,
    }
    return handler_protocol.Frame(
        handler_protocol.ORDER, fields, b"" if payload is None else payload.data
    )


def _crashed(code: int) -> AttemptOutcome:
    """Return the outcome of a process that ended before its handler returned."""
    outcome = exited(code, ())
    if outcome.verdict is AttemptVerdict.SUCCEEDED:
        outcome = failed("exit code 0", OutcomeReason.EXIT_CODE, exit_code=0)
    return replace(
        outcome, error=f"the handler's process ended before the handler returned: {outcome.error}"
    )


def _masked(text: str, variables: Mapping[str, str]) -> str:
    mask = Mask(value.encode() for value in variables.values())
    return (mask.feed(text.encode(errors="replace")) + mask.end()).decode(errors="replace")
