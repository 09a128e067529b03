"""A worker that dies leaves nothing running: this process sees to it.

    workerd ──pipe──→ keeper      the pipe closes when workerd dies, however it dies
                        └→ empties the cgroups that the journal names; sweeps the sessions it
                           lists, what carries its mark, and what the last picture shows

Run as `python -m workerd.keeper JOURNAL WORKER [picture]`, with the pipe as standard input. With
`picture`, or from the first byte on that comes through the pipe, it keeps a picture of all that
comes from WORKER, a process number: with no cgroups, or started by a handler, a process that left
its session and cleared its environment can't be told from a stranger once the worker is dead.

Invariants
- It outlives its worker: a session of its own, deaf to the signals that end a worker.
- It kills nothing until the pipe closes, and ends when all is swept.
- What is in the picture is known by number and start time together.
- Standard library alone: it must start in milliseconds and never fail for want of anything.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from workerd import cgroups, journal, procs

REFRESH = 0.05
"""Seconds between two pictures. What escapes and loses its worker within, gets away."""


class Keeper:
    """The worker's hold on its keeper process."""

    def __init__(self, path: Path, *, picture: bool = False) -> None:
        """`path` is the journal; `picture`: whether cgroups don't hold everything.

        Raises:
            OSError: no process can be started now.
        """
        safe_path = ["-P"] if sys.flags.safe_path else []
        reading, self._pipe = os.pipe()  # close-on-exec: no job inherits the writing end
        told = [str(path), str(os.getpid()), *["picture"] * picture]
        try:
            self._process = subprocess.Popen(
                [sys.executable, *safe_path, "-m", "workerd.keeper", *told],
                stdin=reading,
                start_new_session=True,
            )
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(reading)

    @property
    def pid(self) -> int:
        """Of the keeper process."""
        return self._process.pid

    def take_pictures(self) -> None:
        """There are no cgroups to rely on after all."""
        with contextlib.suppress(BrokenPipeError):  # it is gone; another will be told at its start
            os.write(self._pipe, b"p")

    def alive(self) -> bool:
        """Whether it still keeps watch."""
        return self._process.poll() is None

    def release(self, patience: float = 3.0) -> None:
        """Close the pipe in good order, and wait until the keeper has ended."""
        os.close(self._pipe)
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def sweep_leftovers(directory: Path) -> int:
    """Kill what earlier worker processes of this directory left, and forget them.

    Called with the directory's lock held, so none of them lives. Returns how many were killed.
    """
    killed = 0
    for path in sorted(directory.glob(f"*{journal.SUFFIX}")):
        killed += _sweep(path, {})
        path.unlink(missing_ok=True)
    return killed


def _sweep(path: Path, picture: Mapping[int, int]) -> int:
    left = journal.read(path)
    if left is None:
        return 0
    killed = cgroups.clear(left.tree, left.mark) if left.tree is not None else 0
    return killed + procs.sweep(left.sessions, left.mark, picture)


def main(arguments: Iterable[str]) -> int:
    """Wait for the pipe to close, looking at the worker meanwhile, then sweep."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    path, worker, *how = arguments
    looking = bool(how)
    picture: Mapping[int, int] = {}
    while (heard := _heard(REFRESH if looking else None)) != b"":
        looking = looking or heard is not None
        picture = procs.descendants(int(worker))
    _sweep(Path(path), picture)
    return 0


def _heard(within: float | None) -> bytes | None:
    """What came through the pipe; empty: it is closed; None: nothing came in time."""
    readable, _, _ = select.select([0], [], [], within)
    return os.read(0, 1) if readable else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
