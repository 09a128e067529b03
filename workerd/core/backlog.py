"""What waits for the result store; where that is too much, no new work is asked for.

    an end that is too large for a row ─→ in memory ─→ on disk ─→ stored, or given up
                                          └───── both counted ─────┘

Invariants
- Past a limit only what is in hand already comes on top: nothing is thrown away for it here.
- Whatever was counted is counted out when it is gone, however that came.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Backlog:
    """Bytes in memory and on disk."""

    def __init__(self, *, memory: int, disk: int) -> None:
        """The limits."""
        self._most_memory = memory
        self._most_disk = disk
        self.memory = 0
        self.disk = 0

    @property
    def refuses(self) -> str:
        """Why no new work may be asked for, in words; empty: what it gives would find room."""
        for held, most, where in (
            (self.memory, self._most_memory, "memory, for its disk to take them"),
            (self.disk, self._most_disk, "the worker's spool, for the result store"),
        ):
            if held >= most:
                told = f"{held:,} bytes of logs and results wait in {where}"
                return f"{told}; from {most:,} on no new work is asked for"
        return ""

    @contextmanager
    def in_memory(self, size: int) -> Iterator[None]:
        """So many bytes wait, until the end of this context."""
        self.memory += size
        try:
            yield
        finally:
            self.memory -= size

    @contextmanager
    def on_disk(self, size: int) -> Iterator[None]:
        """So many bytes wait, until the end of this context."""
        self.disk += size
        try:
            yield
        finally:
            self.disk -= size
