"""Files as a command leaves them: each whole or not at all, never readable by more than was meant.

write    all are replaced, each at once, by neighbours that had their modes from the first moment
begin    one is made, for its owner alone, where there is none: before what is to stand in it
within   a folder is made for them; it goes again if nothing comes into it
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Final, NamedTuple

from schedctl.failure import CommandFailure

OPEN: Final = 0o644
SECRET: Final = 0o600
ANOTHER: Final = "name another place, or make this one writable for you"
ROOM: Final = "make room there, or name another place"
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL


class File(NamedTuple):
    """What is to stand at a path, and who may read it."""

    path: Path
    content: bytes
    mode: int = OPEN


def write(*files: File) -> None:
    """Put them in the place of what is there, in this order, once all are on the disk.

    Raises:
        OSError: one couldn't be written, or a folder is in its place; then none is replaced. Where
            the system doesn't let one be replaced for another reason, those before it were.
    """
    for file in files:
        if file.path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file.path))
    with ExitStack() as stack:
        neighbours = []
        for path, content, mode in files:
            neighbour = path.with_name(f".{path.name}.{os.getpid()}")
            neighbour.unlink(missing_ok=True)
            stack.callback(neighbour.unlink, missing_ok=True)
            with os.fdopen(os.open(neighbour, _NEW, mode), "wb") as opened:
                opened.write(content)
                opened.flush()
                os.fsync(opened.fileno())
            neighbours.append(neighbour)
        for neighbour, file in zip(neighbours, files, strict=True):
            neighbour.replace(file.path)


@contextmanager
def begin(path: Path) -> Iterator[FileIO]:
    """A new file of one's own, open and without a buffer; removed if what it is for fails.

    Raises:
        Failure: there is one already, or none can be made.
    """
    try:
        opened = FileIO(path, "x", opener=lambda name, flags: os.open(name, flags, SECRET))
    except FileExistsError:
        raise CommandFailure(
            f"{path} is there already, and stays as it is",
            reason="FILE_EXISTS",
            remedy="name another file, or remove this one first",
        ) from None
    except OSError as error:
        raise unusable(error, path) from error
    try:
        with opened:
            yield opened
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@contextmanager
def within(folder: Path) -> Iterator[None]:
    """A folder of one's own, with those above; what was made of them and stays empty is removed if
    what it is for fails.

    Raises:
        OSError: it can't be made.
    """
    made = [*itertools.takewhile(lambda each: not each.exists(), (folder, *folder.parents))]
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        yield
    except BaseException:
        with suppress(OSError):
            for each in made:
                each.rmdir()
        raise


@contextmanager
def using(path: Path) -> Iterator[None]:
    """What fails in here for the file or folder at `path`, or below, is told as the user's."""
    try:
        yield
    except OSError as error:
        raise unusable(error, path) from error


def unusable(error: OSError, path: Path, remedy: str = "") -> CommandFailure:
    """A path that somebody gave, and that isn't as they think."""
    where = error.filename2 or error.filename or path
    remedy = remedy or (ROOM if error.errno in (errno.ENOSPC, errno.EDQUOT) else ANOTHER)
    return CommandFailure(f"{where}: {error.strerror or error}", reason="NO_FILE", remedy=remedy)
