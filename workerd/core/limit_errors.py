"""Failures that tell of a limit, this process's or its host's, and of nothing else.

Invariants
- What can't be started for one is given back: no job has failed by it.
- What is to be ended is ended all the same: whoever couldn't do it now tries again.
"""

from __future__ import annotations

import errno
import os
from typing import Final

_LIMITS: Final = frozenset(
    {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT}
)


def at_limit(error: OSError) -> bool:
    """Whether it may go well another time, or elsewhere."""
    return error.errno in _LIMITS


def limit_in(text: str) -> str:
    """The limit that a library tells of in words alone, passing no `errno` on; empty if none."""
    return next((told for told in map(os.strerror, _LIMITS) if told in text), "")


def need_descriptor() -> None:
    """Raise OSError when no file can be opened now.

    For what says "there is none" of an entry that it has had no descriptor to look up with, and
    for libraries that fare badly without one.
    """
    os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
