"""The two clocks of a process: one to measure with, one to show.

Invariants
- Leases, trust and deadlines between steps go by `boottime` alone: it runs through a suspend, it
  never goes back, and nobody can set it. `time.monotonic` stops in a suspend, so a lease judged
  by it would still be trusted after a night's sleep.
- `utcnow` is for people and for records. Whether a run is due is judged on cluster time.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime


def boottime() -> float:
    """Seconds since boot, suspend included (CLOCK_BOOTTIME). Comparable on one host only."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def utcnow() -> datetime:
    """The host's wall clock as an aware instant in UTC. May jump either way."""
    return datetime.now(UTC)
