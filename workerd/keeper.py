"""A worker that dies leaves nothing running: this process sees to it.

    workerd ──pipe──→ keeper      the pipe closes when workerd dies, however it dies
                        └→ sweeps what the journal lists and what carries its mark

Run as `python -m workerd.keeper JOURNAL`, with the pipe as standard input.

Invariants
- It outlives its worker: a session of its own, deaf to the signals that end a worker.
- It does nothing until the pipe closes, and ends when all is swept.
- Standard library alone: it must start in milliseconds and never fail for want of anything.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from workerd import journal, procs


class Keeper:
    """The worker's hold on its keeper process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        safe_path = ["-P"] if sys.flags.safe_path else []
        reading, self._pipe = os.pipe()  # close-on-exec: no job inherits the writing end
        self._process = subprocess.Popen(
            [sys.executable, *safe_path, "-m", "workerd.keeper", str(path)],
            stdin=reading,
            start_new_session=True,
        )
        os.close(reading)

    @property
    def pid(self) -> int:
        """Of the keeper process."""
        return self._process.pid

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
        left = journal.read(path)
        if left is not None:
            killed += procs.sweep(left.sessions, left.mark)
        path.unlink(missing_ok=True)
    return killed


def main(arguments: Iterable[str]) -> int:
    """Wait for the pipe to close, then sweep."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    (path,) = map(Path, arguments)
    while os.read(0, 4096):
        pass
    left = journal.read(path)
    if left is not None:
        procs.sweep(left.sessions, left.mark)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
