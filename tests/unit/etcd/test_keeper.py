"""The keeper of a lease, over a lifeline that takes its time."""

from __future__ import annotations

import time
from typing import cast

from schedd.core.cluster.coordination import Lease, LeaseId
from schedd.etcd.keepalive_connection import Lifeline
from schedd.etcd.lease_keeper import EtcdLeaseKeeper
from schedd.etcd.lease_trust import LeaseTrust
from schedkit.clock import boottime
from schedkit.lease_margin import LeaseMargin

TTL = 5


class Slow:
    """A keepalive is answered after a while."""

    asked_at = 0.0

    def keepalive(self, lease: LeaseId) -> int:
        self.asked_at = boottime()
        time.sleep(0.02)  # the subject: the way there and back
        return TTL


async def test_trust_runs_from_the_sending_of_a_keepalive_not_from_its_answer() -> None:
    """M6: etcd may count from any moment after the sending."""
    began, slow = boottime(), Slow()
    trust = LeaseTrust(TTL, deadline=0.5, sent=began - 3)
    keeper = EtcdLeaseKeeper(Lease(LeaseId(1), TTL), trust, cast("Lifeline", slow), LeaseMargin())
    keeper._send()
    margin = 1.0
    assert began <= keeper.trusted_until - (TTL - margin) <= slow.asked_at
