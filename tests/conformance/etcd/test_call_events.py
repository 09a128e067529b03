"""Events about calls to a real etcd: how long each took, whether it was answered, and the margin
of a lease that is kept.
"""

from __future__ import annotations

import pytest

from conformance.etcd.conftest import DEADLINE
from schedd.core.events import Called, Event, Service
from schedd.etcd.access import EtcdAccess
from schedd.etcd.client import connect
from schedd.etcd.lease_keeper import keep_lease
from schedd.etcd.lease_trust import LeaseLoss
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from schedkit.lease_margin import LeaseMargin
from support.etcd import EtcdCluster
from support.wait import wait_until_async

CLOSED = "127.0.0.1:1"


def calls(events: list[Event]) -> list[Called]:
    return [event for event in events if isinstance(event, Called)]


async def test_each_call_is_timed_by_its_name(single: EtcdCluster, root: str) -> None:
    events: list[Event] = []
    access = EtcdAccess(single.endpoints)
    async with connect(access, deadline=DEADLINE, root=root, emit=events.append) as client:
        await client.get("a")
        await client.txn([], [])
        assert client.silence.seconds() == 0
    assert [(one.service, one.call, one.failed) for one in calls(events)] == [
        (Service.ETCD, "Range", False),
        (Service.ETCD, "Txn", False),
    ]
    assert all(0 < one.took < 2 * DEADLINE for one in calls(events))


async def test_unanswered_calls_are_reported_with_their_time_until_a_member_answers(
    single: EtcdCluster, root: str
) -> None:
    events: list[Event] = []
    access = EtcdAccess((CLOSED,))
    async with connect(access, deadline=DEADLINE, root=root, emit=events.append) as client:
        for _ in range(2):
            with pytest.raises(Unavailable):
                await client.get("a")
        first, second = calls(events)
        assert first.failed
        assert second.failed
        assert client.silence.seconds() >= first.took + second.took
    async with connect(
        EtcdAccess((CLOSED, *single.endpoints)), deadline=DEADLINE, root=root
    ) as client:
        await client.get("a")
        assert client.silence.seconds() == 0


async def test_a_kept_lease_reports_its_keepalives_and_its_margin(
    single: EtcdCluster, root: str
) -> None:
    events: list[Event] = []
    margin, access = LeaseMargin(), EtcdAccess(single.endpoints)
    async with (
        connect(access, deadline=DEADLINE, root=root, emit=events.append) as client,
        keep_lease(client, access, ttl=3, deadline=DEADLINE, margin=margin) as keeper,
    ):
        await wait_until_async(
            lambda: any(one.call == "LeaseKeepAlive" for one in calls(events)), 10, "a keepalive"
        )
        assert margin.ttl == keeper.lease.ttl
        least = margin.least()
        assert least is not None
        assert 0 < least < keeper.lease.ttl


async def test_unanswered_keepalives_are_a_silence_until_one_is_answered(
    single: EtcdCluster, root: str
) -> None:
    closed, access = EtcdAccess((CLOSED,)), EtcdAccess(single.endpoints)
    async with connect(access, deadline=DEADLINE, root=root) as client:
        async with keep_lease(client, closed, ttl=3, deadline=DEADLINE) as keeper:
            assert await keeper.until_lost() is LeaseLoss.UNANSWERED
            assert client.silence.seconds() > DEADLINE, "though every other call was answered"
        assert client.silence.seconds() == 0, "its revocation was answered"
        async with keep_lease(client, access, ttl=3, deadline=DEADLINE):
            client.silence.unanswered(boottime())
            await wait_until_async(lambda: client.silence.seconds() == 0, 10, "a keepalive")
