"""Tests that are judged by the second have no other test of a cluster beside them, though processes
share the suite.

    beside ──▶ gate, shared ──▶ room, shared ──▶ gate is open again
    alone  ──▶ gate ──────────▶ room, once those inside have left; who comes waits at the gate

Both are locks of files, which end with the process that holds them.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Turnstile:
    """A turnstile for all processes with the same directory, which exists."""

    def __init__(self, directory: Path) -> None:
        self._gate, self._room = directory / "gate", directory / "room"

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Around what may run beside others."""
        with self._room.open("w") as room:
            with _locked(self._gate, fcntl.LOCK_SH):
                fcntl.flock(room, fcntl.LOCK_SH)
            try:
                yield
            finally:
                fcntl.flock(room, fcntl.LOCK_UN)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Around what may not."""
        with _locked(self._gate, fcntl.LOCK_EX), _locked(self._room, fcntl.LOCK_EX):
            yield


@contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, how)
        try:
            yield
        finally:  # a child that was forked has the file, too
            fcntl.flock(file, fcntl.LOCK_UN)
