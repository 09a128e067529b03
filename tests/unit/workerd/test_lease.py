"""The end of trust that a worker and its keeper share."""

from __future__ import annotations

import math
import os

from workerd.process.keeper import SharedLease


def test_a_lease_without_a_written_end_has_no_end() -> None:
    lease = SharedLease()
    assert lease.until() == math.inf
    lease.close()


def test_the_keeper_reads_the_last_written_end_for_earlier_and_later_values() -> None:
    ours = SharedLease()
    theirs = SharedLease(os.dup(ours.fd))
    for instant in (1000.25, 2000.5, 1500.0):
        ours.write(instant)
        assert theirs.until() == instant
    for each in (ours, theirs):
        each.close()
