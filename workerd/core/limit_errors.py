"""Errors that are caused by a resource limit of this process or its host.

Invariants
- A run that can't be started because of a limit is returned: the job hasn't failed.
- A process that can't be ended because of a limit is ended later: the caller retries.
"""

import errno
import os
from typing import Final

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
    """Raise OSError when no file can be opened now.

    For functions that report "not found" when they have no descriptor for the lookup, and for
    libraries that fail badly without one.
    """
    os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
