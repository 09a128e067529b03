"""The resource limits of an attempt of a program, and the limits that it exceeded."""

import errno
import os
from typing import Final, NamedTuple


class ResourceLimits(NamedTuple):
    """The maximum of each resource; 0: no limit."""

    memory: int = 0
    """Bytes, of all processes of the attempt together."""
    processes: int = 0
    """Processes and threads of the attempt together."""
    files: int = 0
    """Open files in each process."""

    def __bool__(self) -> bool:
        return bool(self.memory or self.processes or self.files)


class LimitExceeded(NamedTuple):
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


# Errors that are caused by a resource limit of this process or its host.
#
# Invariants
# - A run that can't be started because of a limit is returned: the job hasn't failed.
# - A process that can't be ended because of a limit is ended later: the caller retries.

_LIMITS: Final = frozenset(
    {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT}
)


def at_limit(error: OSError) -> bool:
    """Return whether a retry, or another worker, may succeed."""
    return error.errno in _LIMITS


def limit_in(text: str) -> str:
    """Return the limit named in a library's message that carries no `errno`; empty if none."""
    return next((limit for limit in map(os.strerror, _LIMITS) if limit in text), "")


def need_descriptor() -> None:
    """Raise OSError when no file can be opened now. For functions that report "not found" when they
    have no descriptor for the lookup, and for libraries that fail badly without one.
    """
    os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
