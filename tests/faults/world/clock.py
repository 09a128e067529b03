"""Cluster clock that a test moves: the database's own, and no other.

    clock = ClusterClock(work, begin)            its PostgreSQL is started under it
    clock.leap_to(instant)                       later only; from there it runs on at the true rate
    clock.legs                                   which instant of the host is which of the cluster

Cluster time is what PostgreSQL's clock says (docs/glossary.md): members map theirs onto it, workers
follow members. A test that sets that one clock sets the cluster's, and the product knows nothing of
it: no option, no line of code. Leases, trust and timeouts go by clocks that aren't moved.

- It goes forward only, and at the true rate between two leaps: what falls due there is met on time.
- A leap is whole: each reader sees the earlier clock or the later one, and all the same.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from faults.world.needs import faketime


class ClusterClock:
    """Clock in seconds of the epoch, as `clock_timestamp()` of its PostgreSQL gives them."""

    def __init__(self, begin: float) -> None:
        self.legs: list[tuple[float, float]] = []
        """From which second of the host's clock on it was ahead by how many; ascending."""
        self._file: Path | None = None
        self._begin = begin

    def keep_in(self, work: Path) -> None:
        """Let it run, from its beginning; its file lies in this folder."""
        self._file = work / "cluster.clock"
        self.leap_to(self._begin)

    def now(self) -> float:
        """Return its time now."""
        return time.time() + self.legs[-1][1]

    def at(self, host: float) -> float:
        """Return its time at this second of the host's clock."""
        begins = [begin for begin, _ in self.legs]
        return host + self.legs[max(0, bisect_right(begins, host) - 1)][1]

    def leap_to(self, instant: float) -> None:
        """Be there now; no later than that, if it is past it."""
        assert self._file is not None, "keep_in comes first"
        ahead = instant - time.time()
        if self.legs:
            ahead = max(ahead, self.legs[-1][1])
        fresh = self._file.with_suffix(".fresh")
        fresh.write_text(f"{ahead:+.6f}\n")
        fresh.replace(self._file)
        self.legs.append((time.time(), ahead))

    def before(self) -> Sequence[str]:
        """Return the words to put before a command that runs under this clock, in the same process.

        The monotonic clocks stay true. Each look reads the file: no process lags behind another.
        """
        return (
            "env",
            f"LD_PRELOAD={faketime()}",
            f"FAKETIME_TIMESTAMP_FILE={os.fspath(self._file or '')}",
            "FAKETIME_NO_CACHE=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            "FAKETIME_FORCE_MONOTONIC_FIX=0",
        )
