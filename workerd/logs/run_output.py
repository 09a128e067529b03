"""Write the output of handlers in this process to the logs of their runs.

    print, logging, ctx.log ─→ RunStream ─ in the context of a run → RunOutput → worker's loop → log
                                         └ elsewhere → the worker's own stream

Invariants
- `write` may be called from any thread. The bytes that wait for the worker's loop are bounded: a
  thread that writes more waits, at most `WAIT_AT_MOST` seconds.
- After `finish` the output of an abandoned handler is discarded.
"""

import asyncio
import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import field
from datetime import datetime
from typing import Any, Final

from schedkit.clock import utcnow
from schedkit.records import dataclass
from workerd.core.capture import Piece
from workerd.logs.log_tail import Tail

MOST_WAITING: Final = 1 << 20
"""Bytes waiting for the worker's loop."""
WAIT_AT_MOST: Final = 5.0
"""Seconds that a write waits for room."""

_lock: Final = threading.RLock()
"""Held briefly to add or take waiting output of any run. Reentrant: a signal may write, too."""
creating: Final = threading.RLock()
"""Held briefly to create the output of any run, or to end a run without any."""


@dataclass(slots=True, eq=False)
class RunOutput:
    """The output of one attempt. Belongs to the worker's loop, except `write`."""

    _find_tail: Callable[[], Tail]
    """Returns the receiver of the output, on the worker's loop."""
    _loop: asyncio.AbstractEventLoop
    _waiting: list[tuple[bool, bytes, datetime]] = field(default_factory=list)
    _size: int = 0
    _due: bool = False
    _room: threading.Event | None = None
    _tail: Tail | None = None
    """Set at the first output."""
    _resting: asyncio.Task[None] | None = None
    _finished: bool = False

    def write(self, stderr: bool, data: bytes) -> None:
        if not data or self._finished:
            return
        with _lock:
            self._waiting.append((stderr, data, utcnow()))
            self._size += len(data)
            due, self._due = not self._due, True
            room = None
            if self._size > MOST_WAITING:
                room = self._room = self._room or threading.Event()
                room.clear()
        if due:
            with contextlib.suppress(RuntimeError):  # a closed loop: the worker has ended
                self._loop.call_soon_threadsafe(self._feed_recording)
        if room is not None and threading.current_thread() is not threading.main_thread():
            room.wait(WAIT_AT_MOST)

    def finish(self) -> tuple[Piece, ...]:
        self._finished = True
        if not self._due and self._tail is None:
            return ()  # nothing was written
        if self._resting is not None:
            self._resting.cancel()
        self._feed()
        return () if self._tail is None else self._tail.end()

    def _feed_recording(self) -> None:
        if self._finished:
            return
        if self._find_tail().full:
            self._resting = self._loop.create_task(self._rest(), name="a full recording")
        else:
            self._feed()

    async def _rest(self) -> None:
        await self._find_tail().room()
        self._resting = None
        self._feed()

    def _feed(self) -> None:
        with _lock:
            waiting, self._waiting = self._waiting, []
            self._size, self._due = 0, False
            if self._room is not None:
                self._room.set()
        if waiting and self._tail is None:
            self._tail = self._find_tail()
            self._tail.capture()
        for each in waiting:
            assert self._tail is not None
            self._tail.feed(*each)


current_output: Final[ContextVar[Any]] = ContextVar("schedd_output", default=None)
"""The run in whose context the caller is, with `write(stderr, data)`; None outside of runs."""


class RunStream(io.TextIOBase):
    """A replacement of `sys.stdout` or `sys.stderr` that handlers can't close."""

    def __init__(self, fd: int, *, stderr: bool) -> None:
        super().__init__()
        self._fd = fd
        self._stderr = stderr
        self.own = own_stream(fd)
        self.buffer = _Bytes(self)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        return "backslashreplace"

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self.write_bytes(text.encode(errors="backslashreplace"))
        return len(text)

    def write_bytes(self, data: bytes) -> None:
        output = current_output.get()
        if output is not None:
            output.write(self._stderr, data)
            return
        self.own.write(data.decode(errors="backslashreplace"))
        self.own.flush()

    def fileno(self) -> int:
        return self._fd

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def reconfigure(self, **_how: object) -> None:
        """Do nothing: the encoding is UTF-8."""

    def detach(self) -> Any:
        raise io.UnsupportedOperation("detach")

    def close(self) -> None:
        """Do nothing: the worker uses the stream, too."""


class _Bytes(io.RawIOBase):
    def __init__(self, stream: RunStream) -> None:
        super().__init__()
        self._stream = stream

    def write(self, data: Any) -> int:
        taken = bytes(data)
        self._stream.write_bytes(taken)
        return len(taken)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def close(self) -> None:
        """Do nothing."""


def own_stream(fd: int) -> io.TextIOWrapper:
    """Return a new stream to the same file, unknown to handlers."""
    binary = os.fdopen(os.dup(fd), "wb", buffering=0)
    return io.TextIOWrapper(binary, encoding="utf-8", errors="backslashreplace", write_through=True)


def install() -> Iterable[RunStream]:
    """Redirect `print` and `logging` of handlers to the logs of their runs."""
    streams = RunStream(1, stderr=False), RunStream(2, stderr=True)
    sys.stdout, sys.stderr = streams
    return streams
