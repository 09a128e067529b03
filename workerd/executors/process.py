"""One child process: its birth, its output, its end, and the end of all it has started.

    spawn → journal → pidfd readable → kill what is left of its group → reap → output until closed

Invariants
- It leads a session and a process group of its own, carries the worker's mark in its environment
  from its first instruction, and stands in the journal.
- Both output pipes are read whenever there is something, so a full pipe never hangs the child.
- Its group is killed before the child is reaped: until then its number can't be given to others.
- A grandchild that keeps a pipe open delays the end by `GRACE` seconds at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from schedkit.clock import utcnow
from workerd import procs
from workerd.core.capture import Capture, Piece
from workerd.core.ids import Key
from workerd.sessions import Sessions

GRACE = 1.0
"""Seconds that output may stay open after its process has ended."""
_STRAGGLER = 0.1
"""Seconds after which whoever still holds a pipe is looked for in the whole session."""
_CHUNK = 64 * 1024


@dataclass(frozen=True, slots=True)
class Program:
    """What to start, and in which surroundings."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    stdin: BinaryIO | int
    user: pwd.struct_passwd | None = None
    umask: int | None = None


class Begun(OSError):
    """What failed after the program had begun; it was killed."""


class Child:
    """A running program. Belongs to the event loop that spawned it."""

    def __init__(self, program: Program, key: Key, sessions: Sessions) -> None:
        """Start it.

        Raises:
            OSError: it can't be started; nothing runs then, nor ever ran unless it is a `Begun`.
            ValueError: an argument or a variable can't be passed on, such as one with a zero byte.
        """
        self._sessions = sessions
        self._loop = asyncio.get_running_loop()
        pipes = [os.pipe(), os.pipe()]
        try:
            self._process = _popen(program, sessions.mark, pipes[0][1], pipes[1][1])
        except (OSError, ValueError):
            for reading, _ in pipes:
                os.close(reading)
            raise
        finally:
            for _, writing in pipes:
                os.close(writing)
        self.pid = self._process.pid
        try:
            sessions.began(self.pid, key)
        except OSError as error:  # a full disk: what can't be written down doesn't run
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            for reading, _ in pipes:
                os.close(reading)
            raise Begun(error.errno, error.strerror, error.filename) from error
        self._exited = self._loop.create_future()
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._gone)
        self._streams = [
            _Stream(self._loop, reading, Capture(stderr=bool(index)))
            for index, (reading, _) in enumerate(pipes)
        ]

    async def ended(self) -> int:
        """Its exit code, or minus the signal that ended it."""
        code: int = await asyncio.shield(self._exited)
        return code

    def terminate(self) -> None:
        """Ask the whole group to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the whole group and session, now."""
        self._signal(signal.SIGKILL)
        if not self._exited.done():
            procs.kill_session(self.pid)

    async def output(self) -> tuple[Piece, ...]:
        """What is kept of both streams, after they closed or `GRACE` is over."""
        closed = [stream.closed for stream in self._streams]
        _, waiting = await asyncio.wait(closed, timeout=_STRAGGLER)
        if waiting:
            procs.kill_session(self.pid)
            await asyncio.wait(closed, timeout=GRACE)
        return tuple(piece for stream in self._streams for piece in stream.capture.pieces())

    def close(self) -> None:
        """Let go of everything; whatever still runs is killed. May be called again."""
        for stream in self._streams:
            stream.close()
        if not self._exited.done():
            self.kill()
            self._process.wait()
            self._settle(self._process.returncode)

    def _signal(self, number: signal.Signals) -> None:
        if self._exited.done():
            return
        # All gone, or a set-uid program that only its own user may signal.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _gone(self) -> None:
        self._signal(signal.SIGKILL)
        self._settle(self._process.wait())

    def _settle(self, code: int) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._exited.set_result(code)
        self._sessions.ended(self.pid)


def _popen(program: Program, mark: str, out: int, err: int) -> subprocess.Popen[bytes]:
    user = program.user
    return subprocess.Popen(
        program.argv,
        env={**program.env, procs.MARK: mark},
        cwd=program.cwd,
        stdin=program.stdin,
        stdout=out,
        stderr=err,
        start_new_session=True,
        umask=-1 if program.umask is None else program.umask,
        user=None if user is None else user.pw_uid,
        group=None if user is None else user.pw_gid,
        extra_groups=None if user is None else (),
    )


class _Stream:
    """One output pipe, read by the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, capture: Capture) -> None:
        self.capture = capture
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
            self.capture.feed(data, utcnow())
        else:
            self.close()

    def close(self) -> None:
        if not self.closed.done():
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self.closed.set_result(None)
