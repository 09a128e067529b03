"""Commands: a program that the configuration allows, run once by this member.

Invariants
- Only programs named in `notifications.commands` run. A job chooses one of them and its arguments.
  No shell reads the arguments.
- The program sees none of this daemon's variables, and no descriptors except its three.
- The end of the delivery kills the program and its process group.
- The program's own exit counts. A process left in the background doesn't delay the delivery.
"""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from typing import Final

from schedd.core.jobs.notifications import OutboxNotification
from schedd.notify.senders.message import body

ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}
KEPT: Final = 4096
"""Last bytes of standard error that are kept; all of it is read."""
LINGER: Final = 1.0
"""Seconds after the program's end in which its output is read: a process that left its group may
keep standard error open for days.
"""
ERROR: Final = 2


async def run(one: OutboxNotification, argv: Sequence[str], allowed: Sequence[str]) -> str:
    """Run the program; return why it failed, empty if it exited with 0."""
    if argv[0] not in allowed:
        return (
            f"the command {argv[0]} isn't allowed: add it to notifications.commands in schedd.toml"
        )
    try:
        transport, watched = await asyncio.get_running_loop().subprocess_exec(
            _Watched,
            *argv,
            stdin=PIPE,
            stdout=DEVNULL,
            stderr=PIPE,
            cwd="/",
            env=ENVIRONMENT | _facts(one),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return f"the command {argv[0]} can't be started: {error}"
    try:
        try:
            watched.give(body(one))
            await watched.exited.wait()
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(transport.get_pid(), signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER):
                await watched.silent.wait()
    finally:
        watched.let_go()
    code = transport.get_returncode()
    if code == 0:
        return ""
    how = f"exit code {code}" if code is None or code > 0 else f"signal {-code}"
    line = watched.last_line
    return f"{how}: {line}" if line else how


class _Watched(asyncio.SubprocessProtocol):
    """Watch the program's exit alone. asyncio's own `wait` also waits for its pipes, which a
    process left in the background may keep open.
    """

    def __init__(self) -> None:
        self.exited, self.silent = asyncio.Event(), asyncio.Event()
        self._transport: asyncio.SubprocessTransport | None = None
        self._kept = b""
        self._let_go = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport), "asyncio gives this one"
        self._transport = transport

    def give(self, data: bytes) -> None:
        """Write to the program's standard input, which it needn't read."""
        pipe = self._pipe(0)
        assert isinstance(pipe, asyncio.WriteTransport), "it is its standard input"
        pipe.write(data)
        pipe.write_eof()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        del fd
        self._kept = (self._kept + data)[-KEPT:]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Note that the last writer closed the pipe."""
        del exc
        if fd == ERROR:
            self.silent.set()

    def process_exited(self) -> None:
        """Note that the program has exited, even if its children still run."""
        self.exited.set()
        if self._let_go:
            self._close()

    @property
    def last_line(self) -> str:
        lines = self._kept.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def let_go(self) -> None:
        """Close the pipes now, and the transport once the program has exited."""
        self._let_go = True
        for fd in (0, ERROR):
            self._pipe(fd).close()
        if self.exited.is_set():
            self._close()

    def _pipe(self, fd: int) -> asyncio.BaseTransport:
        assert self._transport is not None, "it has begun"
        pipe = self._transport.get_pipe_transport(fd)
        assert pipe is not None, "it was asked for"
        return pipe

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _facts(one: OutboxNotification) -> dict[str, str]:
    return {
        "SCHEDD_NOTIFICATION_ID": str(one.notification_id),
        "SCHEDD_KIND": one.kind.value,
        "SCHEDD_NAMESPACE": one.namespace,
        "SCHEDD_JOB": one.job,
        "SCHEDD_RUN_ID": str(one.run_id),
        "SCHEDD_STATE": one.state,
    }
