"""The journal of a worker's running processes, so that another process can end them.

    boot <id of this boot>            PIDs of an earlier boot are ignored
    mark <id of the worker process>
    tree <directory>                  the cgroups of its attempts, if they have any
    ! <session> <start time> <kill_after> <run> <token> <slot or ->
                                      the next session ends with the worker's lease, by the keeper
    + <session> <start time>          a job's session began
    - <session>                       the session ended, without leftovers

Invariants
- One file per worker process, which only this process writes. The keeper and the next worker read.
- A line is one write. A partial line, because of a full disk or the end of its writer, is ignored:
  it has no line end, and the next write ends it with a `?`. Otherwise a partial line might look
  like a complete one for another session.
- The file outlives the process, not the machine. There is no fsync, because a crash of the host
  ends the jobs, too.
- If a full disk prevents it at the start, `problem` is set and it is created later. No program
  starts before that. A tree that was created meanwhile has no program; if its worker ends, it is a
  forgotten tree (`cgroups`).
"""

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from workerd.core.lease_trust import KillEntry

SUFFIX = ".journal"
_REWRITE = 256 * 1024
"""Bytes after which ended sessions are dropped from the file."""
_MORTAL: Final = re.compile(r"! ([0-9]+) ([0-9]+) ([0-9.e+-]+) (\S+) ([0-9]+) ([a-z0-9-]+)")
_BEGAN: Final = re.compile(r"\+ ([0-9]+) ([0-9]+)")
_ENDED: Final = re.compile(r"- ([0-9]+)")


class LeftoverProcesses(NamedTuple):
    """The entries of a journal that haven't ended."""

    mark: str
    sessions: Mapping[int, int] = MappingProxyType({})
    """Leader's PID → its start time."""
    tree: Path | None = None
    mortals: Mapping[int, KillEntry] = MappingProxyType({})
    """By session: the programs that end with the lease."""


class Journal:
    """The writer of a journal. Takes microseconds; called on the event loop."""

    def __init__(self, directory: Path, mark: str, tree: Path | None = None) -> None:
        """`tree` is written before it is created, so no tree is lost, unless the disk is full."""
        self.mark = mark
        self._tree = tree
        self.path = directory / f"{mark}{SUFFIX}"
        self._open: dict[int, int] = {}
        self._mortals: dict[int, KillEntry] = {}
        self._size = 0
        self._fd = -1
        self._torn = False
        """Whether the last line is partial."""
        self.problem = ""
        """Why the file doesn't exist yet; empty if it does."""
        self.make()

    def make(self) -> None:
        """Create the file, unless it exists. Sets `problem`."""
        if self._fd >= 0:
            return
        try:
            self._rewrite()
        except OSError as error:
            self.problem = error.strerror or str(error)
        else:
            self.problem = ""

    def add_session(self, session: int, start: int, mortal: KillEntry | None = None) -> None:
        """Record a job's first process, the leader of its session. Raises OSError: it can't be
        written.
        """
        if self._fd < 0:
            raise OSError(errno.ENOSPC, self.problem, str(self.path))
        if mortal is not None:  # first: alone it has no effect, and older readers ignore it
            self._append(f"{_line(mortal)}\n")
        self._append(f"+ {session} {start}\n")
        self._open[session] = start
        if mortal is not None:
            self._mortals[session] = mortal

    def end_session(self, session: int) -> None:
        del self._open[session]
        self._mortals.pop(session, None)
        self._append(f"- {session}\n")
        if self._size > _REWRITE:
            self._rewrite()

    def close(self) -> None:
        """Remove the journal: the worker is ending and has no running programs."""
        if self._fd >= 0:
            os.close(self._fd)
        self.path.unlink(missing_ok=True)

    def _append(self, text: str) -> None:
        line = ("?\n" * self._torn + text).encode()
        written = os.write(self._fd, line)
        self._size += written
        self._torn = written < len(line)
        if self._torn:
            raise OSError(
                errno.ENOSPC,
                "a line of the process journal was only partially written: check whether the"
                " disk is full",
                str(self.path),
            )

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
            raise OSError(
                errno.ENOSPC,
                "the process journal was only partially written: check whether the disk is full",
                str(self.path),
            )
        return size


def read_journal(path: Path) -> LeftoverProcesses | None:
    """Read a journal; None if it is of another boot, or doesn't exist."""
    try:
        *lines, _ = os.fsdecode(path.read_bytes()).split(
            "\n"
        )  # a part after the last line end is ignored
    except FileNotFoundError:
        return None
    if len(lines) < 2 or lines[0] != f"boot {boot_id()}":
        return None
    sessions: dict[int, int] = {}
    mortals: dict[int, KillEntry] = {}
    tree = None
    for line in lines[2:]:
        if began := _BEGAN.fullmatch(line):
            sessions[int(began[1])] = int(began[2])
        elif ended := _ENDED.fullmatch(line):
            sessions.pop(int(ended[1]), None)
        elif line.startswith("tree "):
            tree = Path(line.removeprefix("tree "))
        elif mortal := _MORTAL.fullmatch(line):
            mortals[int(mortal[1])] = _mortal(mortal)
    ours = {key: each for key, each in mortals.items() if sessions.get(key) == each.start}
    return LeftoverProcesses(lines[1].removeprefix("mark "), sessions, tree, ours)


def _line(mortal: KillEntry) -> str:
    fields = (mortal.session, mortal.start, mortal.kill_after, mortal.run, mortal.token)
    return " ".join(("!", *map(str, fields), mortal.slot or "-"))


def _mortal(line: re.Match[str]) -> KillEntry:
    session, start, kill_after, run, token, slot = line.groups()
    return KillEntry(
        int(session), int(start), float(kill_after), run, int(token), "" if slot == "-" else slot
    )


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
