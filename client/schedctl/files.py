"""Atomic writes of files, with their modes from the start; texts of TOML files.

write    replace files, each atomically, by renaming a neighbor that has the mode
begin    create a new file, 0600, before its content is known
within   create a folder; remove it again if the command fails and it is empty
"""

import datetime as dt
import errno
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, Final, NamedTuple

from schedctl.failure import CommandFailure

OPEN: Final = 0o644
SECRET: Final = 0o600
ANOTHER: Final = "name another path, or make this one writable for you"
ROOM: Final = "free disk space, or name another path"
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL


class File(NamedTuple):
    path: Path
    content: bytes
    mode: int = OPEN


def write(*files: File) -> None:
    """Replace the files in this order, once all of them are synced to disk. Raises OSError: a file
    can't be written, or a folder has its name; then none is replaced. If a rename fails for another
    reason, the files before it are already replaced.
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
    """Create a file and yield it, open and unbuffered; remove it if the body fails. Raises
    CommandFailure: the file exists, or can't be created.
    """
    try:
        opened = FileIO(path, "x", opener=lambda name, flags: os.open(name, flags, SECRET))
    except FileExistsError:
        raise CommandFailure(
            f"the file {path} already exists, and isn't overwritten",
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
    """Create a folder and its parents; remove the new, empty ones if the body fails. Raises
    OSError: a folder can't be created.
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
    """Turn an OSError in the body into a CommandFailure that names the path."""
    try:
        yield
    except OSError as error:
        raise unusable(error, path) from error


def unusable(error: OSError, path: Path, remedy: str = "") -> CommandFailure:
    """Return the failure for a path of the user that can't be used."""
    where = error.filename2 or error.filename or path
    remedy = remedy or (ROOM if error.errno in (errno.ENOSPC, errno.EDQUOT) else ANOTHER)
    return CommandFailure(
        f"{where} can't be used: {error.strerror or error}", reason="NO_FILE", remedy=remedy
    )


def to_toml(config: Mapping[str, Any]) -> str:
    return "\n".join(_table(config, ())) + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    for key, value in table.items():
        if key not in inner:
            yield f"{_key(key)} = {_scalar(value)}"
    for key, value in inner.items():
        here = (*path, key)
        yield f"\n[{'.'.join(map(_key, here))}]"
        yield from _table(value, here)


def _scalar(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case str():
            return _string(value)
        case Mapping():
            return f"{{{', '.join(f'{_key(k)} = {_scalar(v)}' for k, v in value.items())}}}"
        case Sequence():
            return f"[{', '.join(map(_scalar, value))}]"
    raise TypeError(f"TOML has no {type(value).__name__}")


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else _string(text)
