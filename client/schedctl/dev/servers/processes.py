"""Processes that outlive their starter, known by pid and birth.

A pid alone names nobody: the system hands it out again. So a process is its pid together with the
moment of its birth (boot id and start time out of `/proc`), and it is signalled only while both
still agree. A zombie is dead: on machines whose init does not reap, that is all that stays of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

POLL = 0.02
"""Seconds between two looks at something that does not tell us when it changes."""


@dataclass(frozen=True, slots=True)
class DevProcess:
    """One process: `pid`, and `born` (opaque; equal only for the same life of that pid)."""

    pid: int
    born: str

    def alive(self) -> bool:
        """Tell whether this very process still runs (paused ones do, zombies don't)."""
        state, born = _stat(self.pid)
        return state not in ("", "Z", "X") and born == self.born

    def paused(self) -> bool:
        """Tell whether it stands under SIGSTOP."""
        state, born = _stat(self.pid)
        return state == "T" and born == self.born

    def send(self, number: signal.Signals) -> bool:
        """Send a signal if it still lives. False when it has gone."""
        if not self.alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def end(processes: Collection[DevProcess], *steps: tuple[signal.Signals, float]) -> None:
    """End them together: each step is a signal and the seconds it is given; SIGKILL comes last.

    A paused process is continued, for it would not see any other signal.
    """
    for number, patience in steps:
        for process in processes:
            process.send(number)
            process.send(signal.SIGCONT)
        if _wait_all_gone(processes, patience):
            return
    for process in processes:
        process.send(signal.SIGKILL)
    # Past this the kernel itself holds them (a dead disk); nothing more can be done from here.
    _wait_all_gone(processes, 10.0)


def spawn(
    argv: Sequence[str], *, log: Path, cwd: Path, env: Mapping[str, str] | None = None
) -> DevProcess:
    """Start `argv` in a session of its own, its output appended to `log`. Returns at once."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=env,
            start_new_session=True,
        )
    process = DevProcess(child.pid, _stat(child.pid)[1])
    # While we live we are its parent: without a reaper its death would leave a zombie.
    threading.Thread(target=child.wait, name=f"reap {child.pid}", daemon=True).start()
    return process


def find(pid: int) -> DevProcess | None:
    """The process that has this pid now, or None."""
    state, born = _stat(pid)
    return None if state in ("", "Z", "X") else DevProcess(pid, born)


def living_in(folder: Path) -> Iterator[DevProcess]:
    """Every process whose working directory is exactly `folder`, as far as we may look."""
    wanted = os.path.realpath(folder)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            inside = os.fspath((entry / "cwd").readlink()) == wanted
        except OSError:  # it has ended, or it is somebody else's
            continue
        if inside and (process := find(int(entry.name))) is not None:
            yield process


def wait_for(condition: Callable[[], bool], timeout: float) -> bool:
    """Look every few milliseconds until `condition` holds or `timeout` seconds have passed."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL)
    return True


def _wait_all_gone(processes: Collection[DevProcess], timeout: float) -> bool:
    return wait_for(lambda: not any(process.alive() for process in processes), timeout)


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log, indented; empty when there is none."""
    try:
        with log.open("rb") as source:
            source.seek(0, os.SEEK_END)
            source.seek(max(0, source.tell() - 16384))
            text = source.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])


def _stat(pid: int) -> tuple[str, str]:
    """State letter and birth of a pid; two empty strings when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return "", ""
    # The second field is the program's name in parentheses and may hold anything, spaces too.
    fields = text.rpartition(")")[2].split()
    return fields[0], f"{_boot_id()}:{fields[19]}"


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
