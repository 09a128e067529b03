"""What a worker process has running, written down so that another process can end it.

    boot <id of this boot>            a number of an earlier boot means nothing
    mark <id of the worker process>
    tree <folder>                     where the cgroups of its attempts are, if they have any
    ! <session> <start time> <kill_after> <run> <token> <slot or ->
                                      what follows dies with the worker's lease, by the keeper
    + <session> <start time>          a job's session began
    - <session>                       and is over, with nothing left of it

Invariants
- One file per worker process, appended to by it alone; whoever sweeps reads.
- A line is one write. One that a full disk took in part, or that its writer's death cut off, counts
  as not written: it has no end of its own, and what is written next ends it with a `?`. For a part
  of a line may look like a whole one, and name another session.
- It outlives the process, not the machine: no fsync, since a crash of the host ends the jobs too.
- Where a full disk doesn't take it at the start, it says so (`problem`) and is made later. Nothing
  begins before it is there. A tree that was made meanwhile holds no program; if its worker dies,
  the tree is a forgotten one (`cgroups`).
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import field
from pathlib import Path
from typing import Final

from schedkit.records import dataclass, replace
from workerd.core.lease_kill_list import Mortal

SUFFIX = ".journal"
_REWRITE = 256 * 1024
"""Bytes after which ended sessions are dropped from the file."""
_MORTAL: Final = re.compile(r"! ([0-9]+) ([0-9]+) ([0-9.e+-]+) (\S+) ([0-9]+) ([a-z0-9-]+)")
_BEGAN: Final = re.compile(r"\+ ([0-9]+) ([0-9]+)")
_ENDED: Final = re.compile(r"- ([0-9]+)")


@dataclass(frozen=True, slots=True)
class Left:
    """What a journal still lists."""

    mark: str
    sessions: dict[int, int] = field(default_factory=dict)
    """Leader's number → its start time."""
    tree: Path | None = None
    mortals: dict[int, Mortal] = field(default_factory=dict)
    """By session, those of them that die with the lease."""


class Journal:
    """The writing side. Takes microseconds; called on the event loop."""

    def __init__(self, directory: Path, mark: str, tree: Path | None = None) -> None:
        """`tree` is written down before it is made, so none is ever lost, if the disk takes it."""
        self.mark = mark
        self._tree = tree
        self.path = directory / f"{mark}{SUFFIX}"
        self._open: dict[int, int] = {}
        self._mortals: dict[int, Mortal] = {}
        self._size = 0
        self._fd = -1
        self._torn = False
        """Whether the last line was taken in part."""
        self.problem = ""
        """Why it isn't there yet, in words."""
        self.make()

    def make(self) -> None:
        """Write its beginning, unless it is there; `problem` tells."""
        if self._fd >= 0:
            return
        try:
            self._rewrite()
        except OSError as error:
            self.problem = error.strerror or str(error)
        else:
            self.problem = ""

    def began(self, session: int, start: int, mortal: Mortal | None = None) -> None:
        """A job's first process runs, as leader of its session.

        Raises:
            OSError: it isn't written down.
        """
        if self._fd < 0:
            raise OSError(errno.ENOSPC, self.problem, str(self.path))
        if mortal is not None:  # first: alone it means nothing, and an older reader passes it over
            self._append(f"{_line(mortal)}\n")
        self._append(f"+ {session} {start}\n")
        self._open[session] = start
        if mortal is not None:
            self._mortals[session] = mortal

    def ended(self, session: int) -> None:
        """Nothing of that session is left."""
        del self._open[session]
        self._mortals.pop(session, None)
        self._append(f"- {session}\n")
        if self._size > _REWRITE:
            self._rewrite()

    def close(self) -> None:
        """The worker ends and has nothing running."""
        if self._fd >= 0:
            os.close(self._fd)
        self.path.unlink(missing_ok=True)

    def _append(self, text: str) -> None:
        line = ("?\n" * self._torn + text).encode()
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
        try:
            size = self._fill(fd)
            fresh.replace(self.path)
        except OSError:
            os.close(fd)
            fresh.unlink(missing_ok=True)
            raise
        self._size, self._torn = size, False
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd

    def _fill(self, fd: int) -> int:
        lines = [f"boot {boot_id()}", f"mark {self.mark}"]
        lines += [f"tree {self._tree}"] if self._tree is not None else []
        lines += [_line(mortal) for mortal in self._mortals.values()]
        lines += [f"+ {session} {start}" for session, start in self._open.items()]
        content = os.fsencode("\n".join(lines) + "\n")
        size = os.write(fd, content)
        if size < len(content):
            raise OSError(errno.ENOSPC, "it was written in part", str(self.path))
        return size


def read(path: Path) -> Left | None:
    """What a journal still lists; None when it is of another boot, or no longer there."""
    try:
        *lines, _ = os.fsdecode(path.read_bytes()).split("\n")  # what follows the last end is none
    except FileNotFoundError:
        return None
    if len(lines) < 2 or lines[0] != f"boot {boot_id()}":
        return None
    left = Left(mark=lines[1].removeprefix("mark "))
    mortals: dict[int, Mortal] = {}
    for line in lines[2:]:
        if began := _BEGAN.fullmatch(line):
            left.sessions[int(began[1])] = int(began[2])
        elif ended := _ENDED.fullmatch(line):
            left.sessions.pop(int(ended[1]), None)
        elif line.startswith("tree "):
            left = replace(left, tree=Path(line.removeprefix("tree ")))
        elif mortal := _MORTAL.fullmatch(line):
            mortals[int(mortal[1])] = _mortal(mortal)
    starts = left.sessions
    ours = {session: each for session, each in mortals.items() if starts.get(session) == each.start}
    return replace(left, mortals=ours)


def _line(mortal: Mortal) -> str:
    told = (mortal.session, mortal.start, mortal.kill_after, mortal.run, mortal.token)
    return " ".join(("!", *map(str, told), mortal.slot or "-"))


def _mortal(line: re.Match[str]) -> Mortal:
    session, start, kill_after, run, token, slot = line.groups()
    return Mortal(
        int(session), int(start), float(kill_after), run, int(token), "" if slot == "-" else slot
    )


def boot_id() -> str:
    """A number of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
