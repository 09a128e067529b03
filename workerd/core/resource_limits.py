"""The resource limits of an attempt of a program, and the limits that it exceeded."""

from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """The maximum of each resource; 0: no limit."""

    memory: int = 0
    """Bytes, of all processes of the attempt together."""
    processes: int = 0
    """Processes and threads of the attempt together."""
    files: int = 0
    """Open files in each process."""

    def __bool__(self) -> bool:
        return bool(self.memory or self.processes or self.files)


@dataclass(frozen=True, slots=True)
class LimitExceeded:
    memory: bool = False
    """A process of the attempt was killed."""
    processes: bool = False


WITHIN = LimitExceeded()
"""No limit was exceeded."""


def out_of_memory(bounds: ResourceLimits) -> str:
    """Return the error of a program that was killed because of its memory limit."""
    return f"killed: out of memory (limit {_size(bounds.memory)})"


def _size(size: int) -> str:
    """Format bytes with the greatest unit of which they are a whole number."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} bytes"
