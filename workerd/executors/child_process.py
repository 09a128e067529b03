"""One child process: its birth, its output, its end, and the end of all it has started.

    start → journal → it ends → its group is killed, it is reaped → output until closed
                                                                 → nothing of it lives

Invariants
- It is started as `sessions` says, and stands in the journal.
- Both output pipes are read whenever there is something, so a full pipe never hangs the child; it
  waits for seconds at most where the spool's disk can't keep up with what it writes.
- A grandchild that keeps a pipe open delays the end by `GRACE` seconds at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import os
import signal

from schedkit.clock import utcnow
from workerd.core.capture import Capture, Piece
from workerd.core.ids import AssignmentKey
from workerd.core.masking import Mask
from workerd.core.resource_limits import Excess
from workerd.logs.log_tail import Tail
from workerd.process.process_supervisor import Sessions
from workerd.process.programs import Begun, Program

log = logging.getLogger(__name__)

GRACE = 1.0
"""Seconds that output may stay open after its process has ended."""
_STRAGGLER = 0.1
"""Seconds after which whoever still holds a pipe is looked for in the whole session."""
_FIRST_LOOK = 0.001
_LAST_LOOK = 0.05
"""Seconds between two looks at whether what was killed is gone."""
_CHUNK = 64 * 1024


class ChildProcess:
    """A running program. Belongs to the event loop that spawned it."""

    def __init__(
        self, program: Program, key: AssignmentKey, sessions: Sessions, tail: Tail
    ) -> None:
        """Start it; `tail` is told what it writes.

        Raises:
            OSError: it can't be started; nothing runs then, nor ever ran unless it is a `Begun`.
            ValueError: an argument or a variable can't be passed on, such as one with a zero byte.
        """
        self._sessions = sessions
        self._key = key
        self._loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[int] = self._loop.create_future()
        self._streams: list[_Stream] = []
        self._tail = tail
        try:
            with contextlib.ExitStack() as ours:
                out, err = (
                    self._pipe(ours, Capture(stderr, Mask(program.secrets), tail.came), tail)
                    for stderr in (False, True)
                )
                self._process = sessions.start(program, key, out, err)
            self.pid = self._process.pid
            tail.begins(self._kept)
            self._begin(program.lost_kill_after)
        except (OSError, ValueError):
            for stream in self._streams:
                stream.close()
            raise

    def _pipe(self, ours: contextlib.ExitStack, capture: Capture, tail: Tail) -> int:
        """One more stream; the end for the program, to be closed with `ours`."""
        reading, writing = os.pipe()
        ours.callback(os.close, writing)
        try:
            self._streams.append(_Stream(self._loop, reading, capture, tail))
        except OSError:
            os.close(reading)
            raise
        return writing

    def _begin(self, lost_kill_after: float | None) -> None:
        """What can't be written down, or whose end would be told to nobody, doesn't run."""
        try:
            self._sessions.began(self.pid, self._key, lost_kill_after)
        except OSError as error:  # a full disk
            self._abandon()
            self._sessions.over(self._key)
            raise Begun(error.errno, error.strerror, error.filename) from error
        try:
            self._loop.add_reader(self._process.fileno(), self._gone)
        except OSError as error:
            self._abandon()
            self._sessions.ended(self.pid, self._key)
            raise Begun(error.errno, error.strerror) from error

    def _abandon(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()

    async def ended(self) -> int:
        """Its exit code, or minus the signal that ended it."""
        return await asyncio.shield(self._exited)

    @property
    def excess(self) -> Excess:
        """What it had wanted more of than it might have, when it has ended."""
        return self._process.excess

    def terminate(self) -> None:
        """Ask the whole group to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the whole tree, as far as it is known, now."""
        self._signal(signal.SIGKILL)
        if not self._exited.done():
            self._sessions.kill(self.pid, self._key)

    async def output(self) -> tuple[Piece, ...]:
        """What is kept of both streams, after they closed or `GRACE` is over."""
        closed = [stream.closed for stream in self._streams]
        await self._tail.room()
        _, waiting = await asyncio.wait(closed, timeout=_STRAGGLER)
        if waiting:
            self._sessions.kill(self.pid, self._key)
            await asyncio.wait(closed, timeout=GRACE)
        for stream in self._streams:
            stream.capture.end(utcnow())
        return self._kept()

    async def emptied(self, within: float) -> None:
        """After its end: return when nothing that came from it lives any more.

        Or after `within` seconds, or `GRACE` if that is longer: the log tells then.
        """
        deadline, pause = self._loop.time() + max(within, GRACE), _FIRST_LOOK
        while not self._sessions.empty(self._key):
            if self._loop.time() > deadline:
                key = self._key
                log.error(
                    "something of run %s can't be killed and lives on", key.run, extra=key.said
                )
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_LOOK)

    def _kept(self) -> tuple[Piece, ...]:
        """Of both streams, in the order in which they were read."""
        kept = (stream.capture.pieces() for stream in self._streams)
        return tuple(heapq.merge(*kept, key=lambda piece: piece.at))

    def close(self) -> None:
        """Let go of everything; whatever still runs is killed. May be called again."""
        for stream in self._streams:
            stream.close()
        if not self._exited.done():
            self.kill()
            self._gone()

    def _signal(self, number: signal.Signals) -> None:
        if self._exited.done():
            return
        # All gone, or a set-uid program that only its own user may signal.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _gone(self) -> None:
        self._loop.remove_reader(self._process.fileno())
        self._exited.set_result(self._process.wait())
        self._sessions.ended(self.pid, self._key)


class _Stream:
    """One output pipe, read by the event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, capture: Capture, tail: Tail
    ) -> None:
        self.capture = capture
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
            self.capture.feed(data, utcnow())
            if self._tail.full:
                self._loop.remove_reader(self._fd)
                self._resting = self._loop.create_task(self._rest(), name="a full recording")
        else:
            self.close()

    async def _rest(self) -> None:
        """What is read faster than the disk takes it waits in the pipe, for a moment."""
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
