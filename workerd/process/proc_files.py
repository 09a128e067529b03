"""Read processes from /proc, and kill those of a session or with a mark.

Invariants
- No process is killed by its PID alone: a session is identified by its leader's PID and start time,
  so a reused PID is left alone.
- The mark is a variable in the environment of each job's first process. So a process is identified
  from its first instruction on, also before it is in the journal, and in any session.
- Standard library only: the keeper imports this module and must stay small.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

MARK = "_WORKERD_KEEPER"
"""The variable that names the worker process which started a job."""
OWN = "_WORKERD_OWN"
"""The same for processes of no job: the keeper, and processes that a handler starts."""

_PROC = Path("/proc")


class ProcEntry(NamedTuple):
    pid: int
    parent: int
    session: int
    start: int
    """Clock ticks since boot."""
    zombie: bool


def read_process(pid: int) -> ProcEntry | None:
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name is in brackets and may contain any character, also brackets.
    fields = text[text.rindex(b")") + 2 :].split()
    return ProcEntry(
        pid, int(fields[1]), int(fields[3]), int(fields[19]), fields[0] in (b"Z", b"X")
    )


def everyone() -> Iterator[ProcEntry]:
    for name in os.listdir(_PROC):  # noqa: PTH208 - iterdir makes a Path of each, ten times as slow
        if name.isdigit():
            process = read_process(int(name))
            if process is not None and not process.zombie:
                yield process


def environment(pid: int) -> dict[str, str]:
    """Return the initial environment of a process; empty if it has ended or isn't readable."""
    try:
        environ = (_PROC / str(pid) / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    pairs = (each.partition("=") for each in environ.decode(errors="replace").split("\0"))
    return {name: value for name, _, value in pairs}


def descendants(root: int) -> dict[int, int]:
    """Return all descendants whose parents are running: PID → start time."""
    found: dict[int, int] = {}
    waiting = [root]
    while waiting:
        for pid in _children(waiting.pop()):
            process = read_process(pid)
            if process is not None and pid not in found:
                found[pid] = process.start
                waiting.append(pid)
    return found


def _children(pid: int) -> Iterator[int]:
    try:
        for thread in os.listdir(_PROC / str(pid) / "task"):  # noqa: PTH208 - see `everyone`
            text = (_PROC / str(pid) / "task" / thread / "children").read_bytes()
            yield from map(int, text.split())
    except (
        FileNotFoundError,
        ProcessLookupError,
    ):  # the process is ending, or the kernel has no such list
        return


def kill(pid: int) -> bool:
    """Send SIGKILL. Return False if the process has ended, or only its user may kill it."""
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def kill_session(leader: int) -> int:
    """Send SIGKILL to all running processes of the session. Return how many there were."""
    members = [process.pid for process in everyone() if process.session == leader]
    for pid in members:
        kill(pid)
    return len(members)


def sweep(
    sessions: Mapping[int, int],
    carries: Callable[[Mapping[str, str]], bool],
    picture: Mapping[int, int] | None = None,
    timeout: float = 1.5,
) -> int:
    """Kill all processes of these sessions (leader's PID → start time).

    Also kill processes whose environment satisfies `carries`, and processes in the snapshot
    `picture` (PID → start time) with their descendants. Repeat until two scans in a row found
    nothing, because a process may fork during a scan. Give up after `timeout` seconds. Return how
    many were killed.
    """
    own, clean = os.getpid(), 0
    killed: set[tuple[int, int]] = set()
    """By PID and start time: a process that is slow to end is found again."""
    deadline = time.monotonic() + timeout
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
        time.sleep(0.02)  # the keeper has no event loop, and no other work
    return len(killed)


def _shown(alive: Iterable[ProcEntry], picture: Mapping[int, int]) -> set[int]:
    shown: set[int] = set()
    for process in sorted(alive, key=lambda each: each.start):  # parents come first
        if picture.get(process.pid) == process.start or process.parent in shown:
            shown.add(process.pid)
    return shown


def _of_session(process: ProcEntry, sessions: Mapping[int, int], starts: Mapping[int, int]) -> bool:
    written = sessions.get(process.session)
    if written is None:
        return False
    # After its leader has ended, the PID isn't reused while the session has processes.
    return starts.get(process.session, written) == written
