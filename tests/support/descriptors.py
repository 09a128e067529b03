"""The descriptors of the test's own process: how many are open, and what happens without more."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

_MORE = 32
"""Descriptors that stay allowed beyond those that are open; they are taken while it is scarce."""


def open_files() -> dict[int, str]:
    """Every open descriptor → what it is. Two that are equal: nothing was leaked between them."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one of this listing itself
            found[int(entry.name)] = str(entry.readlink())
    return found


@contextlib.contextmanager
def only(left: int) -> Iterator[None]:
    """This process can open so many files, and not one more."""
    _, hard = before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_files()) + 1 + _MORE, hard))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):  # EMFILE ends it
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        for _ in range(left):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in taken:
            os.close(fd)
