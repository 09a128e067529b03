"""Cgroups (version 2) of attempts: the kernel tracks which processes belong to an attempt.

    <the worker's own cgroup>/workerd-<mark>/slot-<n>

A program is created in the cgroup of its attempt (`cgroup_launcher`). So are its descendants, even
if they create sessions or clear their environment. Later attempts reuse the cgroup.

Invariants
- Neither the worker nor its keeper is in the tree: every process in it may be killed.
- A cgroup that could be removed had no running process: the kernel rejects it otherwise.
- Only directories named after a worker's mark are emptied.
- A running worker holds a lock on its tree. A worker that removes another tree locks it first; one
  that creates a tree checks that it still exists after locking it.
- Standard library only: the keeper imports this module.
"""

import contextlib
import errno
import fcntl
import os
import signal
import time
from pathlib import Path

NAME = "workerd-{}"
FORGOTTEN = 300.0
"""Seconds after which an empty, unlocked tree is removed by another worker."""
_LOOK = 0.01
_NONE_BELOW = 2
"""Link count of a directory without subdirectories."""


def place(mountinfo: str, cgroup: str, controller: str = "") -> Path | None:
    """Return the directory of a process's version 2 cgroup; None if it has none, or isn't mounted.
    `mountinfo` and `cgroup`: the contents of these files in /proc. On hybrid hosts version 2 is the
    entry with number 0 and no controllers. `controller`: return the version 1 cgroup with it.
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
    """Return the directory of this process's cgroup: version 2, or version 1 with a controller."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text()
        return place(mounts, Path("/proc/self/cgroup").read_text(), controller)
    except OSError:  # no /proc, or no access
        return None


def delegated(folder: Path) -> bool:
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            return os.getxattr(folder, name) == b"1"
    return False


def writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK)


def tree_of(mark: str) -> Path | None:
    """Return the directory for the cgroups of this worker's attempts; None without version 2. It is
    below the worker's cgroup, or beside it if the worker is in a leaf of a delegated one.
    """
    here = own()
    if here is None:
        return None
    home = here.parent if not delegated(here) and delegated(here.parent) else here
    return home / NAME.format(mark)


def make(tree: Path) -> int:
    """Create a worker's tree and lock it. Return the descriptor that holds the lock. Raises
    OSError: it can't be created.
    """
    while True:
        tree.mkdir()
        try:
            fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # another worker removed it as forgotten
            continue
        fcntl.flock(fd, fcntl.LOCK_EX)
        if tree.is_dir():  # no other worker uses this name
            return fd
        os.close(fd)


def remove_forgotten(parent: Path, age: float = FORGOTTEN) -> int:
    """Remove empty trees in `parent` of ended workers without keeper, journal or spool. Return how
    many were removed. Trees that can't be read or removed are left.
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
    except OSError:  # also BlockingIOError: its worker is running
        return False
    finally:
        os.close(fd)


def holds_only(folder: str, pid: int) -> bool:
    """Return whether this process is the only one in a cgroup, and the cgroup has no children."""
    try:
        fd = os.open(f"{folder}/cgroup.procs", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # another program removed it
        return False
    try:
        alone = os.read(fd, 64) == b"%d\n" % pid
    finally:
        os.close(fd)
    return alone and os.stat(folder).st_nlink == _NONE_BELOW  # noqa: PTH116 - each run


def clear(path: Path, mark: str, timeout: float = 1.5) -> int:
    """Kill all processes in the tree of an ended worker, and remove it. Give up after `timeout`
    seconds. Return how many processes were killed.
    """
    if path.name != NAME.format(mark) or not path.is_dir():
        return 0
    killed = len(_members(path))
    deadline = time.monotonic() + timeout
    kill(path)
    while not remove_tree(path) and time.monotonic() < deadline:
        time.sleep(_LOOK)  # neither the keeper nor a starting worker has an event loop
        kill(path)
    return killed


def end(tree: Path, mark: str, slot: str) -> bool:
    """Kill all processes in one cgroup of a worker's tree. Return whether it is empty."""
    path = tree / slot
    if tree.name != NAME.format(mark) or path.parent != tree:
        return True
    kill(path)
    try:
        return "populated 0" in (path / "cgroup.events").read_text()
    except OSError:
        return not path.is_dir()


def holds(path: Path, pid: int) -> bool:
    """Return whether a process, running or a zombie, belongs to this tree."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    # The tree's name is unique, so where it is mounted doesn't matter.
    return any(line.startswith("0::") and f"/{path.name}/" in line for line in lines)


def kill(path: Path) -> None:
    """Send SIGKILL to all processes in a cgroup, atomically."""
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
    """Return the PIDs in the cgroup and all below it."""
    pids: list[int] = []
    for folder, _, _ in os.walk(path):
        try:
            pids += map(int, (Path(folder) / "cgroup.procs").read_text().split())
        except OSError:  # removed meanwhile, or a threaded cgroup
            continue
    return pids


def remove_tree(path: Path) -> bool:
    """Remove a cgroup and those below it, bottom up: a job may have created some."""
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
        except OSError:  # a process in it is running, or it was removed already
            continue
    return not path.exists()


def _plain(text: str) -> str:
    """Decode the octal escapes of blanks and similar characters."""
    for code, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        text = text.replace(f"\\{code}", character)
    return text
