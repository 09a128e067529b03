"""Processes as /proc shows them, and how to end all that belong to a session or carry a mark.

Invariants
- Nothing is killed by its number alone: a session is named by its leader's number and start time,
  so a number that was given to someone else is left in peace.
- The mark is a variable in the environment that each job's first process is started with, so a
  process is ours from its first instruction on, written down or not, whatever session it makes.
- Standard library alone: the keeper stands on this and must stay small.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from schedkit.records import dataclass

MARK = "_WORKERD_KEEPER"
"""The variable that names the worker process which started a job."""
OWN = "_WORKERD_OWN"
"""The variable that does so in what isn't a job: the keeper, and what a handler starts."""

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcEntry:
    """One line of `ps`, as far as it matters here."""

    pid: int
    parent: int
    session: int
    start: int
    """Clock ticks since boot."""
    zombie: bool


def look(pid: int) -> ProcEntry | None:
    """The process with this number; None when there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name stands in brackets and may hold anything, brackets too.
    fields = text[text.rindex(b")") + 2 :].split()
    return ProcEntry(
        pid, int(fields[1]), int(fields[3]), int(fields[19]), fields[0] in (b"Z", b"X")
    )


def everyone() -> Iterator[ProcEntry]:
    """All processes that are alive."""
    for name in os.listdir(_PROC):  # noqa: PTH208 - iterdir makes a Path of each, ten times as slow
        if name.isdigit():
            process = look(int(name))
            if process is not None and not process.zombie:
                yield process


def environment(pid: int) -> dict[str, str]:
    """What the process was started with; empty when it is gone, or not ours to look at."""
    try:
        environ = (_PROC / str(pid) / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    pairs = (each.partition("=") for each in environ.decode(errors="replace").split("\0"))
    return {name: value for name, _, value in pairs}


def descendants(root: int) -> dict[int, int]:
    """All that come from this process, down to where a parent has died: number → start time."""
    found: dict[int, int] = {}
    waiting = [root]
    while waiting:
        for pid in _children(waiting.pop()):
            process = look(pid)
            if process is not None and pid not in found:
                found[pid] = process.start
                waiting.append(pid)
    return found


def _children(pid: int) -> Iterator[int]:
    try:
        for thread in os.listdir(_PROC / str(pid) / "task"):  # noqa: PTH208 - see `everyone`
            text = (_PROC / str(pid) / "task" / thread / "children").read_bytes()
            yield from map(int, text.split())
    except (FileNotFoundError, ProcessLookupError):  # it ends, or the kernel has no such list
        return


def kill(pid: int) -> bool:
    """SIGKILL; False for a process that is gone, or that only its own user may kill."""
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def kill_session(leader: int) -> int:
    """SIGKILL every living member of the session; how many there were."""
    members = [process.pid for process in everyone() if process.session == leader]
    for pid in members:
        kill(pid)
    return len(members)


def sweep(
    sessions: Mapping[int, int],
    carries: Callable[[Mapping[str, str]], bool],
    picture: Mapping[int, int] | None = None,
    patience: float = 1.5,
) -> int:
    """Kill all that the sessions (leader's number → start time) name.

    And all whose environment `carries` what tells them, and all that the picture (number → start
    time) shows, with what has come from it since. Looks again until two looks in a row found
    nothing, for a process may fork while it is being looked for; gives up after `patience` seconds.
    Returns how many were killed.
    """
    own, clean = os.getpid(), 0
    killed: set[tuple[int, int]] = set()
    """By number and start: one that takes its time to die is found again."""
    deadline = time.monotonic() + patience
    while clean < 2 and time.monotonic() < deadline:
        alive = list(everyone())
        starts = {process.pid: process.start for process in alive}
        shown = _shown(alive, picture or {})
        found = [
            process.pid
            for process in alive
            if process.pid != own
            and (
                process.pid in shown
                or _of_session(process, sessions, starts)
                or carries(environment(process.pid))
            )
        ]
        for pid in found:
            kill(pid)
        killed |= {(pid, starts[pid]) for pid in found}
        clean = 0 if found else clean + 1
        time.sleep(0.02)  # the keeper has no event loop, and nothing else to do
    return len(killed)


def _shown(alive: Iterable[ProcEntry], picture: Mapping[int, int]) -> set[int]:
    """Those in the picture that still live, and their descendants."""
    shown: set[int] = set()
    for process in sorted(alive, key=lambda each: each.start):  # parents come first
        if picture.get(process.pid) == process.start or process.parent in shown:
            shown.add(process.pid)
    return shown


def _of_session(process: ProcEntry, sessions: Mapping[int, int], starts: Mapping[int, int]) -> bool:
    written = sessions.get(process.session)
    if written is None:
        return False
    # With its leader gone the number still belongs to the session, as long as a member lives.
    return starts.get(process.session, written) == written
