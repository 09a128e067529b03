"""The whole output of one attempt, in a file of the spool, until it is uploaded.

    pieces, as they are read ─→ a buffer ─→ a writing thread ─→ <spool>/kept/<run>.<token>.log

Invariants
- Memory per attempt is bounded: above `MOST_WAITING` its pipes aren't read (`full`) until the disk
  has caught up, for at most `DISK_TIMEOUT`. Then the recording is given up; the job continues.
- A recording that is given up or cut has a reason. It never ends an attempt.
- Output that fits into the buffer, as most does, isn't written to disk.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field
from pathlib import Path
from typing import BinaryIO, TypeVar

from schedkit.objects import framed
from schedkit.records import dataclass
from workerd.core.capture import Piece
from workerd.core.ids import AssignmentKey
from workerd.messages import piece as message_of

log = logging.getLogger(__name__)

T = TypeVar("T")

BUFFER = 64 * 1024
MOST_WAITING = 4 << 20
"""Bytes waiting for the disk."""
DISK_TIMEOUT = 5.0
"""Seconds that an attempt waits for the disk."""
RESERVE = 64 << 20
"""Free bytes of the spool's disk that are reserved for results."""
_LOOK_EVERY = 1 << 20
"""Bytes written between two checks of the free space."""


@dataclass(frozen=True, slots=True)
class Recorded:
    file: Path
    size: int
    sha256: bytes


class AttemptLogFolder:
    def __init__(self, directory: Path, limit: int) -> None:
        """Remove the files of earlier processes: their results were sent without them."""
        self.directory = directory
        self.limit = limit
        self.used = 0
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="recording")
        shutil.rmtree(directory, ignore_errors=True)

    def file(self, key: AssignmentKey, what: str) -> Path:
        return self.directory / f"{key.run}.{key.token}.{what}"

    def create(self, file: Path) -> BinaryIO:
        self.directory.mkdir(0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.fdopen(os.open(file, flags, 0o600), "wb", buffering=0)

    def room(self) -> str:
        """Return why nothing more may be written; empty if it may."""
        if self.used >= self.limit:
            return (
                f"the logs in the worker's spool have {self.used:,} bytes, at most {self.limit:,}"
                " are allowed"
            )
        if shutil.disk_usage(self.directory).free < RESERVE:
            return "the disk of the worker's spool is full"
        return ""

    async def call(self, function: Callable[[], T]) -> T:
        """Call a function in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, function)

    def remove(self, recorded: Recorded) -> None:
        """Remove a file that is uploaded or given up. Call it in the thread."""
        self.used -= recorded.size
        with contextlib.suppress(OSError):
            recorded.file.unlink(missing_ok=True)


@dataclass(slots=True, eq=False)
class Recording:
    """The recording of one attempt. Belongs to the event loop, except `_write`.

    Each attempt has one, and most write nothing: files and events are created on demand.
    """

    _folder: AttemptLogFolder
    _key: AssignmentKey
    _left: int
    """Bytes of output that may still be recorded."""
    _buffer: bytearray = field(default_factory=bytearray)
    _waiting: int = 0
    _room: asyncio.Event | None = None
    """Not set while too many bytes wait; None if that never happened."""
    _file: BinaryIO | None = None
    _digest: "hashlib._Hash | None" = None
    _size: int = 0
    _looked: int = 0
    _over: bool = False
    omitted: int = 0
    """Bytes that aren't recorded."""
    problem: str = ""
    """Why no more output is recorded."""

    @property
    def _path(self) -> Path:
        return self._folder.file(self._key, "log")

    @property
    def in_memory(self) -> int:
        return self._waiting + len(self._buffer)

    @property
    def full(self) -> bool:
        """Whether reading must stop until there is `room`."""
        return self._room is not None and not self._room.is_set()

    async def room(self) -> None:
        """Return when more may be read, after `DISK_TIMEOUT` at the latest."""
        if self._room is None:
            return
        try:
            async with asyncio.timeout(DISK_TIMEOUT):
                await self._room.wait()
        except TimeoutError:
            self.problem = self.problem or "the disk of the worker's spool is too slow"
            self._room.set()

    def record_piece(self, piece: Piece) -> None:
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
        """Write the rest; return the file. Raises OSError."""
        if self._buffer:
            self._flush()
        await self._close_file()
        if self.problem and not self._size:
            raise OSError(self.problem)
        digest = self._digest or hashlib.sha256()
        return Recorded(self._path, self._size, digest.digest())

    @property
    def has_output(self) -> bool:
        return self._file is not None or bool(self._waiting)

    async def discard(self) -> None:
        self._left = 0
        self._buffer.clear()
        if self.has_output:
            await self._close_file()
            gone = Recorded(self._path, self._size, b"")
            await self._folder.call(lambda: self._folder.remove(gone))

    async def _close_file(self) -> None:
        """Return when the thread has written all data and closed the file."""
        await self._folder.call(self._close)

    def _flush(self) -> None:
        data, self._buffer = bytes(self._buffer), bytearray()
        self._waiting += len(data)
        if self._waiting >= MOST_WAITING:
            self._room = self._room or asyncio.Event()
            self._room.clear()
        loop = asyncio.get_running_loop()

        def written(future: Future[None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has ended
                loop.call_soon_threadsafe(self._written, len(data), future.exception())

        self._folder.thread.submit(self._write, data).add_done_callback(written)

    def _written(self, size: int, error: BaseException | None) -> None:
        self._waiting -= size
        if error is not None and not self.problem:
            self.problem = str(getattr(error, "strerror", None) or error)
            log.warning("recording of a log stopped: %s", self.problem)
        if self._room is not None and self._waiting < MOST_WAITING:
            self._room.set()

    def _write(self, data: bytes) -> None:
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
            self._file.truncate(self._size)  # no partial message
            raise
        self._digest = self._digest or hashlib.sha256()
        self._digest.update(data)
        self._size += len(data)
        self._folder.used += len(data)

    def _close(self) -> None:
        """Close the file, in the thread, after all writes."""
        if self._file is not None:
            self._file.close()


def write(folder: AttemptLogFolder, file: Path, data: bytes) -> Recorded:
    """Write data from memory to a file. Blocks. Raises OSError."""
    target = folder.create(file)
    try:
        with target:
            if why := folder.room():
                raise OSError(why)
            _write_all(target, data)
    except OSError:
        file.unlink(missing_ok=True)  # a partial file would never be removed
        raise
    folder.used += len(data)
    return Recorded(file, len(data), hashlib.sha256(data).digest())


def _write_all(target: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[target.write(view) :]
