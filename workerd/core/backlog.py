"""The bytes that wait for the result store. Above a limit the worker requests no new work.

    a result too large for a row ─→ in memory ─→ on disk ─→ stored, or given up
                                    └───── both counted ─────┘

Invariants
- Above a limit, results of runs in hand are still added: nothing is discarded here.
- Counted bytes are subtracted when they leave, whatever the cause.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class Backlog:
    """Count of bytes in memory and on disk."""

    def __init__(self, *, memory: int, disk: int) -> None:
        """Set the limits, in bytes."""
        self._most_memory = memory
        self._most_disk = disk
        self.memory = 0
        self.disk = 0

    @property
    def refusal_reason(self) -> str:
        """Why the worker requests no new work; empty if there is room for its results."""
        for held, most, where in (
            (self.memory, self._most_memory, "in memory for the disk of the spool"),
            (self.disk, self._most_disk, "in the spool for the result store"),
        ):
            if held >= most:
                waiting = f"{held:,} bytes of logs and results wait {where}"
                return f"{waiting}: above the limit of {most:,} bytes"
        return ""

    @contextmanager
    def in_memory(self, size: int) -> Iterator[None]:
        """Count these bytes until the end of this context."""
        self.memory += size
        try:
            yield
        finally:
            self.memory -= size

    @contextmanager
    def on_disk(self, size: int) -> Iterator[None]:
        """Count these bytes until the end of this context."""
        self.disk += size
        try:
            yield
        finally:
            self.disk -= size
