"""Objects as files below one folder, shared by all daemons that name it.

Invariants
- Nothing outside the folder is ever opened. Each path component is opened relative to its parent,
  and symbolic links are never followed.
- A file is written under another name in the same folder, synced, and then renamed.
"""

import contextlib
import os
import shutil
import stat
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from schedkit.objects import NoSuchObject, StoreAway, checked, checked_place

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE_OF_FOLDERS: Final = 0o770
"""Mode of created folders, reduced by the umask or a default ACL. The process that removes them may
run as another user.
"""
_MODE_OF_FILES: Final = 0o640


class Files:
    """A store in a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, key: str, source: Path) -> None:
        *folders, name = checked(key).split("/")
        fresh = f".{uuid.uuid4().hex}"
        with _away(f"object {key} can't be written"):
            self._root.mkdir(_MODE_OF_FOLDERS, parents=True, exist_ok=True)
            with self._folder(folders, make=True) as folder:
                try:
                    target = os.open(fresh, _WRITE, _MODE_OF_FILES, dir_fd=folder)
                    with os.fdopen(target, "wb") as file, source.open("rb") as content:
                        shutil.copyfileobj(content, file, 1 << 20)
                        file.flush()
                        os.fsync(file.fileno())
                    os.rename(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
                except OSError:
                    with contextlib.suppress(OSError):
                        os.unlink(fresh, dir_fd=folder)
                    raise
                os.fsync(folder)

    def read(self, key: str, start: int, length: int) -> bytes:
        *folders, name = checked(key).split("/")
        try:
            with _away(f"object {key} can't be read"), self._folder(folders) as folder:
                file = os.open(name, _READ, dir_fd=folder)
                try:
                    if not stat.S_ISREG(os.fstat(file).st_mode):
                        raise StoreAway(
                            f"the object {key} of the result store can't be read: it isn't a"
                            " regular file; check the folder of the store"
                        )
                    return _pread(file, start, length)
                finally:
                    os.close(file)
        except FileNotFoundError:
            raise NoSuchObject(key) from None

    def remove(self, place: str) -> None:
        """Remove a file, or a folder with its content, and folders that are empty then."""
        *folders, name = checked_place(place).removesuffix("/").split("/")
        try:
            with (
                _away(f"object or folder {place} can't be removed"),
                self._folder(folders) as folder,
            ):
                if place.endswith("/"):
                    _remove_tree(folder, name)
                else:
                    os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass
        for depth in range(len(folders), 1, -1):
            with (
                contextlib.suppress(OSError, StoreAway),
                self._folder(folders[: depth - 1]) as above,
            ):
                os.rmdir(folders[depth - 1], dir_fd=above)

    def check(self) -> None:
        with _away(f"the folder {self._root} of the result store can't be used"):
            self._root.mkdir(_MODE_OF_FOLDERS, parents=True, exist_ok=True)
            if not os.access(self._root, os.R_OK | os.W_OK | os.X_OK):
                raise StoreAway(
                    f"the folder {self._root} of the result store can't be read and written: permit"
                    " the daemon's user to do both"
                )

    @contextlib.contextmanager
    def _folder(self, folders: Sequence[str], *, make: bool = False) -> Iterator[int]:
        """Yield a descriptor of the folder, opened component by component."""
        here = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in folders:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, _MODE_OF_FOLDERS, dir_fd=here)
                below = os.open(name, _FOLDER, dir_fd=here)
                os.close(here)
                here = below
            yield here
        finally:
            os.close(here)


def _pread(file: int, start: int, length: int) -> bytes:
    parts: list[bytes] = []
    while length > 0 and (part := os.pread(file, length, start)):
        parts.append(part)
        start, length = start + len(part), length - len(part)
    return b"".join(parts)


def _remove_tree(above: int, name: str) -> None:
    """Remove a file, a folder or a link, never a link's target."""
    try:
        folder = os.open(name, _FOLDER, dir_fd=above)
    except NotADirectoryError:
        os.unlink(name, dir_fd=above)
        return
    try:
        for each in os.listdir(folder):  # noqa: PTH208 - of a descriptor
            with contextlib.suppress(FileNotFoundError):
                _remove_tree(folder, each)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=above)


@contextlib.contextmanager
def _away(what: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreAway(f"the result store failed: {what}: {error.strerror or error}") from error
