"""What a worker process has running, written down so that another process can end it.

    boot <id of this boot>            a number of an earlier boot means nothing
    mark <id of the worker process>
    tree <folder>                     where the cgroups of its attempts are, if they have any
    + <session> <start time>          a job's session began
    - <session>                       and is over, with nothing left of it

Invariants
- One file per worker process, appended to by it alone; whoever sweeps reads.
- A line is one write, so a reader sees whole lines but for the last one, and for one that a full
  disk took in part: that one counts as not written, and the next begins on a line of its own.
- It outlives the process, not the machine: no fsync, since a crash of the host ends the jobs too.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

SUFFIX = ".journal"
_REWRITE = 256 * 1024
"""Bytes after which ended sessions are dropped from the file."""


@dataclass(frozen=True, slots=True)
class Left:
    """What a journal still lists."""

    mark: str
    sessions: dict[int, int] = field(default_factory=dict)
    """Leader's number → its start time."""
    tree: Path | None = None


class Journal:
    """The writing side. Takes microseconds; called on the event loop."""

    def __init__(self, directory: Path, mark: str, tree: Path | None = None) -> None:
        """`tree` is written down before it is made, so none is ever lost."""
        self.mark = mark
        self._tree = tree
        self.path = directory / f"{mark}{SUFFIX}"
        self._open: dict[int, int] = {}
        self._size = 0
        self._fd = -1
        self._torn = False
        """Whether the last line was taken in part."""
        self._rewrite()

    def began(self, session: int, start: int) -> None:
        """A job's first process runs, as leader of its session."""
        self._append(f"+ {session} {start}\n")
        self._open[session] = start

    def ended(self, session: int) -> None:
        """Nothing of that session is left."""
        del self._open[session]
        self._append(f"- {session}\n")
        if self._size > _REWRITE:
            self._rewrite()

    def close(self) -> None:
        """The worker ends and has nothing running."""
        os.close(self._fd)
        self.path.unlink(missing_ok=True)

    def _append(self, text: str) -> None:
        line = ("\n" * self._torn + text).encode()
        written = os.write(self._fd, line)
        self._size += written
        self._torn = written < len(line)
        if self._torn:
            raise OSError(errno.ENOSPC, "a line was written in part", str(self.path))

    def _rewrite(self) -> None:
        fresh = self.path.with_suffix(".new")
        fd = os.open(
            fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        lines = [f"boot {boot_id()}", f"mark {self.mark}"]
        lines += [f"tree {self._tree}"] if self._tree is not None else []
        lines += [f"+ {session} {start}" for session, start in self._open.items()]
        content = ("\n".join(lines) + "\n").encode()
        size = os.write(fd, content)
        if size < len(content):
            os.close(fd)
            raise OSError(errno.ENOSPC, "it was written in part", str(fresh))
        fresh.replace(self.path)
        self._size, self._torn = size, False
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd


def read(path: Path) -> Left | None:
    """What a journal still lists; None when it is of another boot, or no longer there."""
    try:
        lines = path.read_text("ascii").splitlines()
    except FileNotFoundError:
        return None
    if len(lines) < 2 or lines[0] != f"boot {boot_id()}":
        return None
    left = Left(mark=lines[1].removeprefix("mark "))
    for line in lines[2:]:
        match line.split(" "):
            case ["tree", *folder]:
                left = replace(left, tree=Path(" ".join(folder)))
            case ["+", session, start]:
                left.sessions[int(session)] = int(start)
            case ["-", session]:
                left.sessions.pop(int(session), None)
            case _:  # the last line, cut off by the writer's death: its process has the mark
                pass
    return left


def boot_id() -> str:
    """A number of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
