"""A cgroup (version 2) for each attempt: the kernel itself knows what belongs to it.

    <the worker's own cgroup>/workerd-<mark>/slot-<n>

A program is born in the cgroup of its attempt (`launcher`) and so are its descendants, whatever
session they make and however they clear their environment. Attempts may have one after another.

Invariants
- Neither the worker nor its keeper stand in its tree; whatever does may be killed.
- A cgroup that could be removed had no living process in it: the kernel refuses otherwise.
- Only folders named after a worker's mark are ever emptied.
- A worker holds a lock on its tree as long as it lives. Who removes a tree that isn't his own has
  that lock; who makes one looks whether it is still there when he has got it.
- Standard library alone: the keeper stands on this.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import time
from pathlib import Path

NAME = "workerd-{}"
FORGOTTEN = 300.0
"""Seconds after which a tree that nobody holds, and that is empty, is removed by another worker."""
_LOOK = 0.01
_NONE_BELOW = 2
"""Links of a folder that has no folder in it."""


def place(mountinfo: str, cgroup: str, controller: str = "") -> Path | None:
    """The folder of a process's own version 2 cgroup; None when it has none, or it isn't mounted.

    `mountinfo` and `cgroup` are the texts of these files of the process in /proc. Where version 1
    is mounted beside it (hybrid), version 2 is the entry with number 0 and no controllers; with
    `controller` the one of version 1 that has it.
    """
    entries = (line.split(":", 2) for line in cgroup.splitlines())
    own = next((path for _, names, path in entries if controller in names.split(",")), None)
    if own is None:
        return None
    for line in mountinfo.splitlines():
        fields, _, described = line.partition(" - ")
        kind, _, options = described.split(" ", 2)
        if kind != ("cgroup" if controller else "cgroup2"):
            continue
        if controller and controller not in options.split(","):
            continue
        root, mount = fields.split()[3:5]
        below = os.path.relpath(own, root)
        if below != ".." and not below.startswith("../"):
            return Path(_plain(mount)) / below
    return None


def own(controller: str = "") -> Path | None:
    """The folder of this process's own cgroup: of version 2, or the one with a controller of 1."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text()
        return place(mounts, Path("/proc/self/cgroup").read_text(), controller)
    except OSError:  # no /proc, or one that tells nothing
        return None


def delegated(folder: Path) -> bool:
    """Whether a cgroup is marked as delegated: by systemd, or by who set its attribute."""
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            return os.getxattr(folder, name) == b"1"
    return False


def writable(folder: Path) -> bool:
    """Whether this process may make cgroups there."""
    return os.access(folder, os.W_OK)


def tree_of(mark: str) -> Path | None:
    """Where this process would keep the cgroups of its attempts; None without version 2.

    In its own; or beside it, where it was started in a leaf of the one that is delegated to it.
    """
    here = own()
    if here is None:
        return None
    home = here.parent if not delegated(here) and delegated(here.parent) else here
    return home / NAME.format(mark)


def make(tree: Path) -> int:
    """Make a worker's tree and lock it; the descriptor that holds the lock until it is closed.

    Raises:
        OSError: it can't be made.
    """
    while True:
        tree.mkdir()
        try:
            fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # another worker took it for a forgotten one
            continue
        fcntl.flock(fd, fcntl.LOCK_EX)
        if tree.is_dir():  # nobody else makes one of this name
            return fd
        os.close(fd)


def remove_forgotten(parent: Path, age: float = FORGOTTEN) -> int:
    """Remove empty trees in `parent` whose workers are dead and have no keeper, journal or spool.

    Returns how many were removed. What can't be looked at, or removed, is left.
    """
    return sum(_removed_forgotten(path, age) for path in parent.glob(NAME.format("*")))


def _removed_forgotten(tree: Path, age: float) -> bool:
    try:
        fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        old = time.time() - os.fstat(fd).st_ctime > age
        return old and "populated 0" in (tree / "cgroup.events").read_text() and remove_tree(tree)
    except OSError:  # BlockingIOError among them: its worker lives
        return False
    finally:
        os.close(fd)


class Cgroup:
    """The cgroup of one attempt."""

    def __init__(self, path: Path) -> None:
        """Make it.

        Raises:
            OSError: it can't be made.
        """
        self.path = path
        self._folder = str(path)
        self._procs = f"{path}/cgroup.procs"
        path.mkdir()

    def kill(self) -> None:
        """SIGKILL everything in it, at once."""
        _kill(self.path)

    def holds_only(self, pid: int) -> bool:
        """Whether this process is the only one that lives in it, and in all below it."""
        try:
            fd = os.open(self._procs, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # someone has removed it
            return False
        try:
            alone = os.read(fd, 64) == b"%d\n" % pid
        finally:
            os.close(fd)
        return alone and os.stat(self._folder).st_nlink == _NONE_BELOW  # noqa: PTH116 - each run

    def remove(self) -> bool:
        """Away with it; False when something in it still lives."""
        return remove_tree(self.path)


def clear(path: Path, mark: str, patience: float = 1.5) -> int:
    """End all that stands in the tree of a worker that is dead, and remove it.

    Gives up after `patience` seconds. Returns how many processes were killed.
    """
    if path.name != NAME.format(mark) or not path.is_dir():
        return 0
    killed = len(_members(path))
    deadline = time.monotonic() + patience
    _kill(path)
    while not remove_tree(path) and time.monotonic() < deadline:
        time.sleep(_LOOK)  # the keeper has no event loop, nor has a worker at its start
        _kill(path)
    return killed


def end(tree: Path, mark: str, slot: str) -> bool:
    """SIGKILL all that stands in one cgroup of a worker's tree; whether nothing lives there."""
    path = tree / slot
    if tree.name != NAME.format(mark) or path.parent != tree:
        return True
    _kill(path)
    try:
        return "populated 0" in (path / "cgroup.events").read_text()
    except OSError:
        return not path.is_dir()


def holds(path: Path, pid: int) -> bool:
    """Whether a process, alive or dead and not yet reaped, belongs in this tree."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    # The tree's name is unique, so where it is mounted doesn't matter.
    return any(line.startswith("0::") and f"/{path.name}/" in line for line in lines)


def _kill(path: Path) -> None:
    try:
        fd = os.open(path / "cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"1")
        finally:
            os.close(fd)
    except OSError as error:
        if not path.is_dir():
            return
        if error.errno not in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EOPNOTSUPP):
            raise
        for pid in _members(path):  # before Linux 5.14
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass


def _members(path: Path) -> list[int]:
    """Of the cgroup and all below it."""
    pids: list[int] = []
    for folder, _, _ in os.walk(path):
        try:
            pids += map(int, (Path(folder) / "cgroup.procs").read_text().split())
        except OSError:  # removed meanwhile, or of a kind that lists none
            continue
    return pids


def remove_tree(path: Path) -> bool:
    """Bottom up: a job may have made cgroups of its own in its own."""
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
            raise
    else:
        return True
    below = [Path(folder) for folder, _, _ in os.walk(path, topdown=False)]
    for folder in below:
        try:
            folder.rmdir()
        except OSError:  # something in it lives, or it is gone already
            continue
    return not path.exists()


def _plain(text: str) -> str:
    """Blanks and the like are written in octal there."""
    for code, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        text = text.replace(f"\\{code}", character)
    return text
