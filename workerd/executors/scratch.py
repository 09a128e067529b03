"""The files of one attempt of a program, in its own directory.

Invariants
- The files are readable by the job's user only, and removed when the attempt has ended. Files that
  the job created are removed in a thread.
- The worker owns the directory until `hand_over`. Until then processes of the job's user can't
  access files that the worker will write or open by name.
- Files of earlier worker processes are removed at start, under the spool's lock.
"""

import contextlib
import itertools
import logging
import os
import pwd
import queue
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from workerd.core.ids import AssignmentKey
from workerd.core.resource_limits import at_limit

# Remove directory trees of jobs in a thread, however deep and large they are.
#
#     tree ─→ its files are deleted, its directories move up to the top ─→ … ─→ empty ─→ removed
#
# Invariants
# - No recursion, two descriptors, short names only: the depth of a tree and the length of its paths
#   don't matter. Symbolic links are never followed.
# - Files that can't be removed are left; the caller gets the error.

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Remover:
    def __init__(self) -> None:
        self._trees: queue.SimpleQueue[Path] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def remove(self, tree: Path) -> None:
        self._trees.put(tree)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="tree removal", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the host is out of threads: the next call retries
                self._thread = None

    def _serve(self) -> None:
        while True:
            tree = self._trees.get()
            try:
                remove_tree(tree)
            except OSError as error:
                log.warning("files of a run can't be removed: %s", error, extra={"path": str(tree)})


def remove_tree(tree: Path) -> None:
    """Remove a tree, or a file. Raises OSError: something of it is left."""
    try:
        top = _opened(str(tree), None)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        tree.unlink(missing_ok=True)
        return
    try:
        names = (f".{number}" for number in itertools.count())
        problem: OSError | None = None
        kept: set[str] = set()
        while found := [name for name in _names(top) if name not in kept]:
            for name in found:
                try:
                    _remove(name, top, names)
                except OSError as error:
                    problem = problem or error
                    kept.add(name)
        if problem is not None:
            raise problem
    finally:
        os.close(top)
    tree.rmdir()


def _remove(name: str, top: int, names: Iterator[str]) -> None:
    """Delete a file of the top, or a directory after moving its subdirectories to the top."""
    try:
        folder = _opened(name, top)
    except (NotADirectoryError, FileNotFoundError):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=top)
        return
    except OSError:
        if stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
            raise
        os.unlink(name, dir_fd=top)  # a symbolic link (ELOOP), a socket
        return
    try:
        for child in _names(folder):
            try:
                os.unlink(child, dir_fd=folder)
            except IsADirectoryError:
                _move_up(child, folder, top, names)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)


def _move_up(child: str, folder: int, top: int, names: Iterator[str]) -> None:
    """Move a directory to the top. Raises OSError: not a directory, or it can't be moved."""
    os.close(
        _opened(child, folder)
    )  # sets its rights: a directory can be moved by an owner who may write into it
    while True:
        name = next(names)
        try:
            os.stat(name, dir_fd=top, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(child, name, src_dir_fd=folder, dst_dir_fd=top)
            return


def _opened(name: str, within: int | None) -> int:
    """Open a directory; if it is our own, with the rights for its removal."""
    if os.geteuid() != 0:  # root needs no rights, and must not change a link's target
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(os.stat(name, dir_fd=within, follow_symlinks=False).st_mode):
                os.chmod(name, 0o700, dir_fd=within)
    return os.open(name, _OPEN, dir_fd=within)


def _names(folder: int) -> list[str]:
    return os.listdir(folder)


log = logging.getLogger(__name__)

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


_remover = Remover()


class Scratch:
    """`with Scratch(root, key, user) as scratch: scratch.write("payload", data)`."""

    def __init__(self, root: Path, key: AssignmentKey, user: pwd.struct_passwd | None) -> None:
        self.path = root / f"{key.run}-{key.token}"
        self._user = user
        self._written: list[Path] = []

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(mode=0o700)
        except FileNotFoundError:
            _make_root(self.path.parent)
            self.path.mkdir(mode=0o700)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for path in self._written:
                path.unlink(missing_ok=True)
            self.path.rmdir()  # none of these calls needs a descriptor
        except OSError:  # the job created files, of any size
            _remover.remove(self.path)

    def write(self, name: str, data: bytes) -> Path:
        path = self.path / name
        fd = os.open(path, _NEW, mode=0o600)
        self._written.append(path)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            self._give(file.fileno())
        return path

    def hand_over(self) -> None:
        """Give the directory to the job's user, after all files were written and opened."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._give(fd)
        finally:
            os.close(fd)

    def _give(self, fd: int) -> None:
        if self._user is not None:
            os.fchown(fd, self._user.pw_uid, self._user.pw_gid)


def _make_root(root: Path) -> None:
    root.mkdir(mode=0o711, parents=True, exist_ok=True)


def clear(root: Path) -> None:
    """Remove the files of earlier processes. Keep the directory: a full disk may reject a new one.
    Files that can't be removed are moved beside the directory. Blocks.
    """
    try:
        _make_root(root)
    except OSError as error:
        if not at_limit(error):
            raise
        return  # there was none; the first attempt creates it
    for path in root.iterdir():
        try:
            remove_tree(path)
        except OSError as error:
            _set_aside(path, error)


def _set_aside(path: Path, why: OSError) -> None:
    """Move files where later starts ignore them. If that fails, leave them in place."""
    aside = path.parent.with_name(f"{path.parent.name}-set-aside") / path.name
    try:
        _make_root(aside.parent)
        path.rename(aside)
    except OSError:
        aside = path
    log.warning(
        "files of an earlier run can't be removed: %s; remove them by hand",
        why,
        extra={"path": str(aside)},
    )
