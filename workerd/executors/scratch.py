"""The files that one attempt of a program is given, in a directory of its own.

Invariants
- They are readable by the job's user alone, and gone when the attempt has ended. Whatever the job
  itself has put there is removed beside the event loop.
- The directory is the worker's until `hand_over`: a job's user, who may have processes already,
  finds nothing in it that the worker is still to write or to open by name.
- What an earlier worker process left is removed at start, under the spool's lock.
"""

from __future__ import annotations

import logging
import os
import pwd
from pathlib import Path
from types import TracebackType
from typing import Self

from workerd.core.ids import AssignmentKey
from workerd.core.limit_errors import at_limit
from workerd.executors.tree_removal import Remover, remove_tree

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            for path in self._written:
                path.unlink(missing_ok=True)
            self.path.rmdir()  # none of which takes a descriptor
        except OSError:  # the job has put something there, of any size
            _remover.remove(self.path)

    def write(self, name: str, data: bytes) -> Path:
        """Put a file there; its path."""
        path = self.path / name
        fd = os.open(path, _NEW, mode=0o600)
        self._written.append(path)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            self._give(file.fileno())
        return path

    def hand_over(self) -> None:
        """All is written, and open what has to be: it is the job's user's now."""
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
    """Remove what earlier processes left, but for the directory: a full disk may take none anew.
    What can't be removed is set aside, beside the directory. Blocks.
    """
    try:
        _make_root(root)
    except OSError as error:
        if not at_limit(error):
            raise
        return  # there was none; whoever needs it makes it
    for path in root.iterdir():
        try:
            remove_tree(path)
        except OSError as error:
            _set_aside(path, error)


def _set_aside(path: Path, why: OSError) -> None:
    """Where no later start looks at it. If it can't even be moved, it stays where it is."""
    aside = path.parent.with_name(f"{path.parent.name}-set-aside") / path.name
    try:
        _make_root(aside.parent)
        path.rename(aside)
    except OSError:
        aside = path
    log.warning(
        "files of an earlier run can't be removed: %s; remove them yourself",
        why,
        extra={"path": str(aside)},
    )
