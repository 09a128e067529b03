"""The files that one attempt of a program is given, in a directory of its own.

Invariants
- They are readable by the job's user alone, and gone when the attempt has ended.
- What an earlier worker process left is removed at start, under the spool's lock.
"""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

from workerd.core.ids import Key


class Scratch:
    """`with Scratch(root, key, user) as scratch: scratch.write("payload", data)`."""

    def __init__(self, root: Path, key: Key, user: pwd.struct_passwd | None) -> None:
        self.path = root / f"{key.run}-{key.token}"
        self._user = user
        self._written: list[Path] = []

    def __enter__(self) -> Self:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._give(self.path)
        except OSError:
            self.path.rmdir()
            raise
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
        except OSError:  # the job has put something there
            shutil.rmtree(self.path, ignore_errors=True)

    def write(self, name: str, data: bytes) -> Path:
        """Put a file there; its path."""
        path = self.path / name
        self._written.append(path)
        path.touch(mode=0o600)
        path.write_bytes(data)
        self._give(path)
        return path

    def _give(self, path: Path) -> None:
        if self._user is not None:
            os.chown(path, self._user.pw_uid, self._user.pw_gid)


def clear(root: Path) -> None:
    """Remove what earlier processes left."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(mode=0o711, parents=True, exist_ok=True)
