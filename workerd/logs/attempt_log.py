"""All that one attempt writes, in a file of the spool, until it is in the result store.

    pieces, as they are read ─→ a buffer ─→ a thread that writes ─→ <spool>/kept/<run>.<token>.log

Invariants
- What is in memory of an attempt is bounded: past `MOST_WAITING` its pipes aren't read (`full`)
  until the disk has caught up, for `PATIENCE` at most: then the recording is given up, not the job.
- A recording is given up, or cut, and says why; it never ends an attempt.
- What fits into the buffer, as most does, never comes to the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from schedkit.objects.frames import framed
from schedkit.records import dataclass
from workerd.core.capture import Piece
from workerd.core.ids import AssignmentKey
from workerd.messages import piece as message_of

log = logging.getLogger(__name__)

BUFFER = 64 * 1024
MOST_WAITING = 4 << 20
"""Bytes that wait for the disk."""
PATIENCE = 5.0
"""Seconds."""
RESERVE = 64 << 20
"""Bytes of the spool's disk that are left to results."""
_LOOK_EVERY = 1 << 20
"""Bytes written between two looks at how much is free."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A file that is to be stored."""

    file: Path
    size: int
    sha256: bytes


class AttemptLogFolder:
    """Where recordings are, and how much they may take together."""

    def __init__(self, directory: Path, limit: int) -> None:
        """What an earlier process left here is of no use: its end was told without it."""
        self.directory = directory
        self.limit = limit
        self.used = 0
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="recording")
        shutil.rmtree(directory, ignore_errors=True)

    def file(self, key: AssignmentKey, what: str) -> Path:
        """Of this attempt."""
        return self.directory / f"{key.run}.{key.token}.{what}"

    def create(self, file: Path) -> BinaryIO:
        """Open it, new."""
        self.directory.mkdir(0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.fdopen(os.open(file, flags, 0o600), "wb", buffering=0)

    def room(self) -> str:
        """Why nothing more may be written; empty: it may."""
        if self.used >= self.limit:
            return f"the logs in the worker's spool have {self.used:,} bytes"
        if shutil.disk_usage(self.directory).free < RESERVE:
            return "the disk of the worker's spool is full"
        return ""

    def remove(self, recorded: Recorded) -> None:
        """It is stored, or won't be. In the thread, as all that counts."""
        self.used -= recorded.size
        with contextlib.suppress(OSError):
            recorded.file.unlink(missing_ok=True)


class Recording:
    """Of one attempt; belongs to the event loop, but for `_write`.

    Each attempt has one, and most write nothing: what is needed only then is made only then.
    """

    __slots__ = (
        "_buffer",
        "_digest",
        "_file",
        "_folder",
        "_key",
        "_left",
        "_looked",
        "_over",
        "_room",
        "_size",
        "_waiting",
        "omitted",
        "problem",
    )

    def __init__(self, folder: AttemptLogFolder, key: AssignmentKey, most: int) -> None:
        """`most`: bytes of output that are recorded."""
        self._folder = folder
        self._key = key
        self._left = most
        self._buffer = bytearray()
        self._waiting = 0
        self._room: asyncio.Event | None = None
        """Not set while too much waits; None: that never was."""
        self._file: BinaryIO | None = None
        self._digest: hashlib._Hash | None = None
        self._size = 0
        self._looked = 0
        self._over = False
        self.omitted = 0
        """Bytes that weren't recorded."""
        self.problem = ""
        """Why no more is."""

    @property
    def _path(self) -> Path:
        return self._folder.file(self._key, "log")

    @property
    def in_memory(self) -> int:
        """Bytes that aren't on disk yet."""
        return self._waiting + len(self._buffer)

    @property
    def full(self) -> bool:
        """Whether nothing more should be read until there is `room`."""
        return self._room is not None and not self._room.is_set()

    async def room(self) -> None:
        """Return when more may come: soon, whatever the disk does."""
        if self._room is None:
            return
        try:
            async with asyncio.timeout(PATIENCE):
                await self._room.wait()
        except TimeoutError:
            self.problem = self.problem or "the disk of the worker's spool doesn't keep up"
            self._room.set()

    def came(self, piece: Piece) -> None:
        """It wrote this."""
        if self.problem or self._left <= 0:
            self.omitted += len(piece.data)
            return
        data = piece.data[: self._left]
        self._left -= len(data)
        self.omitted += len(piece.data) - len(data)
        message = message_of(Piece(piece.stderr, data, piece.offset, piece.at))
        self._buffer += framed(message.SerializeToString())
        if len(self._buffer) >= BUFFER:
            self._flush()

    async def finish(self) -> Recorded:
        """All of it, on disk. Raises OSError where it isn't."""
        if self._buffer:
            self._flush()
        await self._settled()
        if self.problem and not self._size:
            raise OSError(self.problem)
        digest = self._digest or hashlib.sha256()
        return Recorded(self._path, self._size, digest.digest())

    @property
    def begun(self) -> bool:
        """Whether there is anything of it to be kept, or discarded."""
        return self._file is not None or bool(self._waiting)

    async def discard(self) -> None:
        """Nobody wants it."""
        self._left = 0
        self._buffer.clear()
        if self.begun:
            await self._settled()
            gone = Recorded(self._path, self._size, b"")
            await _in(self._folder.thread, lambda: self._folder.remove(gone))

    async def _settled(self) -> None:
        """What was given to the thread is written, and the file closed."""
        await _in(self._folder.thread, self._close)

    def _flush(self) -> None:
        data, self._buffer = bytes(self._buffer), bytearray()
        self._waiting += len(data)
        if self._waiting >= MOST_WAITING:
            self._room = self._room or asyncio.Event()
            self._room.clear()
        loop = asyncio.get_running_loop()

        def written(future: Future[None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody asks any more
                loop.call_soon_threadsafe(self._written, len(data), future.exception())

        self._folder.thread.submit(self._write, data).add_done_callback(written)

    def _written(self, size: int, error: BaseException | None) -> None:
        self._waiting -= size
        if error is not None and not self.problem:
            self.problem = str(getattr(error, "strerror", None) or error)
            log.warning("a log isn't recorded any further: %s", self.problem)
        if self._room is not None and self._waiting < MOST_WAITING:
            self._room.set()

    def _write(self, data: bytes) -> None:
        """In the thread."""
        if self._over or self.problem:
            return
        if self._file is None:
            self._file = self._folder.create(self._path)
        if (self._size >= self._looked) and (why := self._folder.room()):
            self._over = True
            raise OSError(why)
        if self._size >= self._looked:
            self._looked = self._size + _LOOK_EVERY
        try:
            _write_all(self._file, data)
        except OSError:
            self._file.truncate(self._size)  # no half of a message
            raise
        self._digest = self._digest or hashlib.sha256()
        self._digest.update(data)
        self._size += len(data)
        self._folder.used += len(data)

    def _close(self) -> None:
        """In the thread, behind all that was given to it."""
        if self._file is not None:
            self._file.close()


def write(folder: AttemptLogFolder, file: Path, data: bytes) -> Recorded:
    """What is in memory, as a file. Blocks. Raises OSError."""
    target = folder.create(file)
    try:
        with target:
            if why := folder.room():
                raise OSError(why)
            _write_all(target, data)
    except OSError:
        file.unlink(missing_ok=True)  # a part of it would stay for good
        raise
    folder.used += len(data)
    return Recorded(file, len(data), hashlib.sha256(data).digest())


def _write_all(target: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[target.write(view) :]


async def _in(thread: Executor, call: Callable[[], None]) -> None:
    await asyncio.get_running_loop().run_in_executor(thread, call)
