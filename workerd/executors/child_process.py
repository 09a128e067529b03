"""Run a child process: its start, its output, its end, and the end of its descendants.

    start → journal → it ends → its group is killed, it is reaped → output until closed
                                                                 → no process of it is left

Invariants
- The child is started by the process supervisor, and listed in the journal.
- Both output pipes are read whenever there is data, so a full pipe never hangs the child. If the
  spool's disk is too slow, the child waits for a few seconds at most.
- A grandchild that keeps a pipe open delays the end by `GRACE` seconds at most.
"""

import asyncio
import contextlib
import logging
import os
import signal

from schedkit import failpoints
from schedkit.clock import utcnow
from workerd.core.capture import Piece
from workerd.core.ids import AssignmentKey
from workerd.core.resource_limits import LimitExceeded
from workerd.executors.base import AttemptStart, Stop
from workerd.logs.log_tail import Tail
from workerd.process.process_supervisor import ProcessSupervisor
from workerd.process.programs import Begun, Program

log = logging.getLogger(__name__)

GRACE = 1.0
"""Seconds that an output pipe may stay open after the process has ended."""
_STRAGGLER = 0.1
"""Seconds after which processes that still hold a pipe are searched for in the whole session."""
_FIRST_LOOK = 0.001
_LAST_LOOK = 0.05
"""Seconds between two checks whether killed processes have ended."""
_CHUNK = 64 * 1024


class ChildProcess:
    """A running program. Belongs to the event loop that started it."""

    def __init__(
        self, program: Program, key: AssignmentKey, supervisor: ProcessSupervisor, tail: Tail
    ) -> None:
        """Start a program. `tail` receives its output.

        Raises:
            OSError: it can't be started; nothing is running. It never ran unless it is a `Begun`.
            ValueError: an argument or a variable can't be passed on, such as one with a zero byte.
        """
        self._supervisor = supervisor
        self._key = key
        self._loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[int] = self._loop.create_future()
        self._streams: list[_Stream] = []
        self._tail = tail
        try:
            with contextlib.ExitStack() as ours:
                tail.capture(program.secrets)
                out, err = (self._pipe(ours, stderr) for stderr in (False, True))
                self._process = supervisor.start(program, key, out, err)
            self.pid = self._process.pid
            self._begin(program.lost_kill_after)
        except (OSError, ValueError):
            for stream in self._streams:
                stream.close()
            raise

    def _pipe(self, ours: contextlib.ExitStack, stderr: bool) -> int:
        """Add a stream. Return the program's end of the pipe, which `ours` closes."""
        reading, writing = os.pipe()
        ours.callback(os.close, writing)
        try:
            self._streams.append(_Stream(self._loop, reading, stderr, self._tail))
        except OSError:
            os.close(reading)
            raise
        return writing

    def _begin(self, lost_kill_after: float | None) -> None:
        """Add the child to the journal and watch for its end. Kill it if one of them fails."""
        try:
            self._supervisor.add_attempt(self.pid, self._key, lost_kill_after)
        except OSError as error:  # a full disk
            self._abandon()
            self._supervisor.end_all_processes(self._key)
            raise Begun(error.errno, error.strerror, error.filename) from error
        try:
            self._loop.add_reader(self._process.fileno(), self._reap)
        except OSError as error:
            self._abandon()
            self._supervisor.end_attempt(self.pid, self._key)
            raise Begun(error.errno, error.strerror) from error

    def _abandon(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()

    async def wait_for_exit(self) -> int:
        return await asyncio.shield(self._exited)

    @property
    def excess(self) -> LimitExceeded:
        return self._process.excess

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        if not self._exited.done():
            self._supervisor.kill(self.pid, self._key)

    async def output(self) -> tuple[Piece, ...]:
        """Return the kept output of both streams, after they closed or `GRACE` expired."""
        closed = [stream.closed for stream in self._streams]
        await self._tail.room()
        _, waiting = await asyncio.wait(closed, timeout=_STRAGGLER)
        if waiting:
            self._supervisor.kill(self.pid, self._key)
            await asyncio.wait(closed, timeout=GRACE)
        return self._tail.end()

    async def emptied(self, within: float) -> None:
        """Return when all descendants of the ended program have ended. Give up and log after
        `within` seconds, or after `GRACE` if that is longer.
        """
        deadline, pause = self._loop.time() + max(within, GRACE), _FIRST_LOOK
        while not self._supervisor.empty(self._key):
            if self._loop.time() > deadline:
                key = self._key
                log.error("processes of run %s can't be killed", key.run, extra=key.log_fields)
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_LOOK)

    def close(self) -> None:
        """Close everything; kill the program if it is running. May be called again."""
        for stream in self._streams:
            stream.close()
        if not self._exited.done():
            self.kill()
            self._reap()

    def _signal(self, number: signal.Signals) -> None:
        if self._exited.done():
            return
        # The group has ended, or is a set-uid program that only its own user may signal.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _reap(self) -> None:
        self._loop.remove_reader(self._process.fileno())
        self._exited.set_result(self._process.wait())
        self._supervisor.end_attempt(self.pid, self._key)


class _Stream:
    """An output pipe, read by the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, stderr: bool, tail: Tail) -> None:
        self._stderr = stderr
        self._tail = tail
        self._resting: asyncio.Task[None] | None = None
        self.closed = loop.create_future()
        self._loop = loop
        self._fd = fd
        os.set_blocking(fd, False)
        loop.add_reader(fd, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return
        if data:
            self._tail.feed(self._stderr, data, utcnow())
            if self._tail.full:
                self._loop.remove_reader(self._fd)
                self._resting = self._loop.create_task(self._rest(), name="a full recording")
        else:
            self.close()

    async def _rest(self) -> None:
        """Stop reading until the recording has caught up; the output waits in the pipe."""
        await self._tail.room()
        self._resting = None
        if not self.closed.done():
            self._loop.add_reader(self._fd, self._read)

    def close(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
        if not self.closed.done():
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self.closed.set_result(None)


# Wait for the end of a program and its descendants.
#
# Invariants
# - A stop sends SIGTERM to the process group, and SIGKILL after `kill_after`; a kill skips SIGTERM.
# - The child is closed in any case, also after a cancel.

AFTER_START = failpoints.awaited("worker.after_start", None)


async def stayed(
    child: ChildProcess, attempt: AttemptStart, stop: Stop
) -> tuple[int, tuple[Piece, ...]]:
    """Return the exit code, or minus the signal, and the kept output."""
    loop = asyncio.get_running_loop()
    killing: asyncio.TimerHandle | None = None

    def end(kill: bool) -> None:
        nonlocal killing
        if killing is not None:
            killing.cancel()
        if kill or attempt.kill_after <= 0:
            child.kill()
            return
        child.terminate()
        killing = loop.call_later(attempt.kill_after, child.kill)

    stop.listen(end)
    try:
        await AFTER_START()
        code = await child.wait_for_exit()
        stop.deafen()
        output = await child.output()
        await child.emptied(attempt.kill_after)
    finally:
        stop.deafen()
        if killing is not None:
            killing.cancel()
        child.close()
    return code, output
