"""The two clocks of a process: boot time to measure, UTC to show.

Invariants
- Leases, trust windows and timeouts use `boottime` only: it includes a suspend, never goes back and
  can't be set. `time.monotonic` stops in a suspend: a lease would be trusted after it expired.
- `utcnow` is for people and records. Whether a run is due is decided on cluster time.
"""

import time
from datetime import UTC, datetime


def boottime() -> float:
    """Return seconds since boot, suspend included (CLOCK_BOOTTIME). Comparable on one host only."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def utcnow() -> datetime:
    """Return the host's wall clock, in UTC. It may jump in both directions."""
    return datetime.now(UTC)
