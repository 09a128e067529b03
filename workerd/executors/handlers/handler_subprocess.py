"""Handlers that have a process of their own, from the worker's side.

    socketpair → a program (`handler_process`) → ORDER ↓ … BEAT, PROGRESS, END ↑ → its end

The process is started as a program is, with all that goes with it: a session, a cgroup and limits
where there are some, the keeper's eye, the end of all that it has started, its output.

Invariants
- What the handler said at its end counts, if it was said; else how its process ended does, and the
  attempt has failed. Nothing of that reaches the worker or another run.
- The process has the worker's environment, for it is the worker's code that runs there; but
  nothing in it says that it is the worker's own (`procs.OWN`): it is a job's.
"""

from __future__ import annotations

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
from workerd.core.capture import Piece
from workerd.core.limit_errors import at_limit
from workerd.core.masking import Mask
from workerd.core.outcome import (
    AttemptOutcome,
    AttemptVerdict,
    OutcomeReason,
    exited,
    judged,
    stopped,
)
from workerd.core.resource_limits import ResourceLimits
from workerd.executors.base import AttemptStart, Stop, bounds_of, rfc3339
from workerd.executors.child_process import GRACE, ChildProcess
from workerd.executors.handlers import handler_protocol
from workerd.executors.process_end import stayed
from workerd.process import proc_files
from workerd.process.process_supervisor import Sessions
from workerd.process.programs import Begun, Program

_NOT_ITS_OWN: Final = frozenset(
    {proc_files.OWN, proc_files.MARK, "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}
)
"""Variables of the worker's that say something of that very process."""


class Apart:
    """Calls handlers in processes of their own."""

    def __init__(
        self, sessions: Sessions, modules: Sequence[str], secrets: Sequence[Path] = ()
    ) -> None:
        """`modules`: those to be imported there; `secrets`: where files of variables may be."""
        self._sessions = sessions
        self._modules = modules
        self._secrets = secrets

    def lacking(self, bounds: ResourceLimits) -> str:
        """Why a call can't be held to these bounds here; empty when it can."""
        return self._sessions.lacking(bounds)

    async def run(self, attempt: AttemptStart, stop: Stop) -> AttemptOutcome:
        """Call it, and stay until nothing of its process is left."""
        action = attempt.assignment.python
        try:
            variables = variables_of(action.env_from, self._secrets)
            child, ours = self._started(attempt, variables)
        except ValueError as error:
            return AttemptOutcome(
                AttemptVerdict.FAILED, OutcomeReason.EXCEPTION, f"not started: {error}"
            )
        except OSError as error:
            told = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
            if at_limit(error):
                told = f"this worker can't start it: {told}"
                return AttemptOutcome(
                    AttemptVerdict.RETURNED, error=told, began=isinstance(error, Begun)
                )
            return AttemptOutcome(
                AttemptVerdict.FAILED, OutcomeReason.EXCEPTION, f"not started: {told}"
            )
        with ours:
            said, code, output = await self._conversed(child, ours, attempt, stop, variables)
        if stop.cause is not None:
            return stopped(stop.cause, output=output)
        if said is None:
            crashed = replace(_crashed(code), output=output)
            return judged(crashed, bounds_of(action.limits), child.excess)
        return replace(said, error=_masked(said.error, variables), output=output)

    def _started(
        self, attempt: AttemptStart, variables: Mapping[str, str]
    ) -> tuple[ChildProcess, socket.socket]:
        with contextlib.ExitStack() as undone:
            ours, theirs = socket.socketpair()
            undone.callback(ours.close)
            ours.setblocking(False)
            with theirs:
                program = self._program(attempt, variables, theirs.fileno())
                child = ChildProcess(program, attempt.key, self._sessions, attempt.tail)
            undone.pop_all()
        return child, ours

    def _program(self, attempt: AttemptStart, variables: Mapping[str, str], stdin: int) -> Program:
        told = {f"SCHEDD_{name.upper()}": value for name, value in attempt.facts().items()}
        own = {name: value for name, value in os.environ.items() if name not in _NOT_ITS_OWN}
        safe_path = ["-P"] if sys.flags.safe_path else []
        return Program(
            argv=[sys.executable, *safe_path, "-m", "workerd.executors.handlers.handler_process"],
            env={
                **own,
                **variables,
                **told,
                "PYTHONUNBUFFERED": "1",
                **({"TRACEPARENT": trace} if (trace := attempt.assignment.traceparent) else {}),
            },
            cwd=Path.cwd(),
            stdin=stdin,
            secrets=[value.encode() for value in variables.values()],
            lost_kill_after=attempt.kill_after if attempt.dies_with_lease else None,
            bounds=bounds_of(attempt.assignment.python.limits),
        )

    async def _conversed(
        self,
        child: ChildProcess,
        ours: socket.socket,
        attempt: AttemptStart,
        stop: Stop,
        variables: Mapping[str, str],
    ) -> tuple[AttemptOutcome | None, int, tuple[Piece, ...]]:
        """What it said of its end, if it did; its exit code; its output."""
        order = _order(attempt, self._modules)
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(
                _heard(ours, order, attempt, child, variables),
                name=f"process of run {attempt.key.run}",
            )
            try:
                code, output = await stayed(child, attempt, stop)
                await asyncio.wait([listening], timeout=GRACE)
            finally:
                listening.cancel()
        return (None if listening.cancelled() else listening.result()), code, output


async def _heard(
    ours: socket.socket,
    order: handler_protocol.Frame,
    attempt: AttemptStart,
    child: ChildProcess,
    variables: Mapping[str, str],
) -> AttemptOutcome | None:
    """Tell it what to do, and listen to the end. None: it never said how it ended."""
    loop, most = asyncio.get_running_loop(), attempt.most_result
    try:
        await loop.sock_sendall(ours, order.encoded())
        while True:
            kind, told, data = handler_protocol.sizes(
                await _read(loop, ours, handler_protocol.HEAD.size), most
            )
            said = handler_protocol.frame(
                kind, await _read(loop, ours, told), await _read(loop, ours, data)
            )
            attempt.beat()
            if said.kind == handler_protocol.PROGRESS:
                progress = handler_protocol.progress_in(said)
                note = _masked(progress.note, variables)[:MOST_NOTE]
                attempt.progress(replace(progress, note=note))
            elif said.kind == handler_protocol.END:
                return handler_protocol.end_in(said, most)
            await asyncio.sleep(0)  # reading what is there already lets nobody else run
    except handler_protocol.Garbled as error:
        child.kill()
        told_wrong = f"its process said what can't be meant: {error}"
        return AttemptOutcome(AttemptVerdict.FAILED, OutcomeReason.EXCEPTION, told_wrong)
    except OSError:  # it has ended, or never listened
        return None


async def _read(loop: asyncio.AbstractEventLoop, ours: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = await loop.sock_recv(ours, size - len(data))
        if not more:
            raise ConnectionResetError("it has ended")
        data += more
    return bytes(data)


def _order(attempt: AttemptStart, modules: Sequence[str]) -> handler_protocol.Frame:
    given, payload = attempt.assignment, attempt.content
    context = {
        "namespace": given.namespace,
        "job": given.job,
        "run_id": given.key.run_id,
        "attempt": given.attempt,
        "scheduled_at": rfc3339(attempt.scheduled_at),
        "deadline": rfc3339(attempt.deadline),
        "fencing_token": given.key.fencing_token,
        "traceparent": given.traceparent,
        "worker": attempt.worker,
    }
    told = {
        "path": sys.path,
        "modules": [*modules],
        "handler": given.python.handler,
        "most_result": attempt.most_result,
        "log_level": logs.level(),
        "context": context,
        "json": None if payload is None else payload.json,
    }
    return handler_protocol.Frame(
        handler_protocol.ORDER, told, b"" if payload is None else payload.data
    )


def _crashed(code: int) -> AttemptOutcome:
    """It ended before the handler had returned; however well."""
    outcome = exited(code, ())
    if outcome.verdict is AttemptVerdict.SUCCEEDED:
        outcome = AttemptOutcome(
            AttemptVerdict.FAILED, OutcomeReason.EXIT_CODE, "exit code 0", exit_code=0
        )
    return replace(outcome, error=f"its process ended before it returned: {outcome.error}")


def _masked(text: str, variables: Mapping[str, str]) -> str:
    mask = Mask(value.encode() for value in variables.values())
    return (mask.feed(text.encode(errors="replace")) + mask.end()).decode(errors="replace")
