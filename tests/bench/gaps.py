"""Compute the gap that a fault leaves in jobs that fire each second, from the rows of the runs.

    due   1     2     3     4     5     6     7          one column per second; fault just after 2
    start 1.0   2.0   ······6.1·6.1·6.1 6.1   7.0
                  └──────────── back: 5.0 ─────┘         and the latest run was 3.1 s late

A job is back on time at the first scheduled time after its last late run. If no run is late, there
was no gap. A scheduled time without a row is counted as lost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import floor
from typing import Final

ON_TIME: Final = 0.5
"""Seconds from which a start counts as late; more than the normal delay on a shared machine."""


@dataclass(frozen=True, slots=True)
class Instant:
    """A row of a job: when it was due and started, in seconds since 1970, and its end."""

    job: str
    due: float
    started: float | None
    succeeded: bool
    assignments: int = 1

    @property
    def late(self) -> float:
        """Return the lateness in seconds; infinite if the run never started."""
        return float("inf") if self.started is None else self.started - self.due

    @property
    def on_time(self) -> bool:
        """Return whether the run started as if there were no fault."""
        return self.late <= ON_TIME


@dataclass(frozen=True, slots=True)
class Gap:
    """The gap of some jobs in a range of scheduled times."""

    backs: tuple[float, ...]
    """For each job, seconds from the fault until it was on time again; 0 if it was never late."""
    latest: float
    """Lateness of the latest start, in seconds."""
    late: int
    lost: int
    """Scheduled times without a row, or whose run didn't succeed."""
    doubled: int
    """Rows beyond one for each scheduled time."""
    again: int
    """Count runs that were dispatched more than once."""


def reckon(
    rows: Iterable[Instant], jobs: Iterable[str], *, fault: float, first: float, last: float
) -> Gap:
    """Return the gap in these jobs' scheduled times after `first`, up to `last`."""
    wanted = set(jobs)
    seen = [row for row in rows if row.job in wanted and first < row.due <= last]
    rows_of: defaultdict[str, list[Instant]] = defaultdict(list)
    for row in seen:
        rows_of[row.job].append(row)
    counted = Counter((row.job, row.due) for row in seen if row.succeeded)
    expected = seconds_between(first, last) * len(wanted)
    started = [row for row in seen if row.started is not None]
    return Gap(
        tuple(_back(rows_of[job], fault) for job in sorted(wanted)),
        max((row.late for row in started), default=0.0),
        sum(not row.on_time for row in seen),
        expected - len(counted),
        len(seen) - len({(row.job, row.due) for row in seen}),
        sum(row.assignments > 1 for row in seen),
    )


def seconds_between(first: float, last: float) -> int:
    """Return the whole seconds after `first`, up to `last`."""
    return max(0, floor(last) - floor(first))


def _back(rows: Iterable[Instant], fault: float) -> float:
    ordered = sorted(rows, key=lambda row: row.due)
    late = [place for place, row in enumerate(ordered) if not row.on_time]
    if not late:
        return 0.0
    after = ordered[late[-1] + 1 :]
    started = after[0].started if after else None
    return float("inf") if started is None else started - fault
