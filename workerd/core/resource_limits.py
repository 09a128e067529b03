"""What an attempt of a program may have at most, and what of it one has wanted more of."""

from __future__ import annotations

from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """Each at most; 0: as it comes."""

    memory: int = 0
    """Bytes, of all that the attempt has together."""
    processes: int = 0
    """And threads, of all that the attempt has together."""
    files: int = 0
    """Open at once, in each of its processes."""

    def __bool__(self) -> bool:
        return bool(self.memory or self.processes or self.files)


@dataclass(frozen=True, slots=True)
class Excess:
    """What an attempt wanted more of."""

    memory: bool = False
    """And something of it was killed."""
    processes: bool = False


WITHIN = Excess()
"""Of nothing."""


def out_of_memory(bounds: ResourceLimits) -> str:
    """What is said of a program that was killed for want of it."""
    return f"killed: out of memory (limit {_size(bounds.memory)})"


def _size(size: int) -> str:
    """With the greatest unit of which it is a whole number."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} bytes"
