"""The files of one attempt of a program, in its own directory.

Invariants
- The files are readable by the job's user only, and removed when the attempt has ended. Files that
  the job created are removed in a thread.
- The worker owns the directory until `hand_over`. Until then processes of the job's user can't
  access files that the worker will write or open by name.
- Files of earlier worker processes are removed at start, under the spool's lock.
"""

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
