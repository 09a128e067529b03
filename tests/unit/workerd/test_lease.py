"""The instant that a worker and its keeper share."""

from __future__ import annotations

import math
import os

from workerd.process.shared_lease import SharedLease


def test_until_it_is_told_it_has_no_end() -> None:
    lease = SharedLease()
    assert lease.until() == math.inf
    lease.close()


def test_the_other_end_reads_what_was_told_last_earlier_or_later() -> None:
    ours = SharedLease()
    theirs = SharedLease(os.dup(ours.fd))
    for instant in (1000.25, 2000.5, 1500.0):
        ours.write(instant)
        assert theirs.until() == instant
    for each in (ours, theirs):
        each.close()
