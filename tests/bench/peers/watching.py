"""When a drain has come to its end: all have run, and the contestant's own store says so.

The file's size is watched first: that costs no contestant anything. The store is asked only once
there are as many lines as jobs. So no contestant is slowed by being counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.peers.starts import counted

POLL: Final = 0.005
"""Seconds between two looks."""


@dataclass(frozen=True, slots=True)
class Watched:
    """`ended`: the instant at which the store knew of all, None if it never did; `completed`: how
    many it knew of at last; `trouble` in words.
    """

    ended: float | None
    completed: int
    trouble: str = ""


def watch(
    file: Path,
    jobs: int,
    completed: Callable[[], int],
    works: Callable[[], bool],
    deadline: float,
) -> Watched:
    """Wait for it, for `deadline` seconds at most, and only as long as the contestant `works`."""
    until = time.monotonic() + deadline
    while time.monotonic() < until:
        still = works()
        if counted(file) >= jobs and (done := completed()) >= jobs:
            return Watched(time.time(), done)
        if not still:
            return Watched(None, completed(), "its worker ended before all jobs were complete")
        time.sleep(POLL)
    return Watched(None, completed(), f"not at its end within {deadline:g} s")
