"""What is told of calls to a real etcd: how long each took, whether it was answered, and the slack
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
from schedkit.lease_margin import Slack
from support.etcd import EtcdCluster
from support.wait import wait_until_async

NOBODY = "127.0.0.1:1"


def calls(told: list[Event]) -> list[Called]:
    return [event for event in told if isinstance(event, Called)]


async def test_each_call_is_timed_by_what_was_asked(single: EtcdCluster, root: str) -> None:
    told: list[Event] = []
    access = EtcdAccess(single.endpoints)
    async with connect(access, deadline=DEADLINE, root=root, emit=told.append) as client:
        await client.get("a")
        await client.txn([], [])
        assert client.silence.seconds() == 0
    assert [(one.service, one.call, one.failed) for one in calls(told)] == [
        (Service.ETCD, "Range", False),
        (Service.ETCD, "Txn", False),
    ]
    assert all(0 < one.took < 2 * DEADLINE for one in calls(told))


async def test_while_nobody_answers_that_is_told_with_its_time_until_somebody_does(
    single: EtcdCluster, root: str
) -> None:
    told: list[Event] = []
    access = EtcdAccess((NOBODY,))
    async with connect(access, deadline=DEADLINE, root=root, emit=told.append) as client:
        for _ in range(2):
            with pytest.raises(Unavailable):
                await client.get("a")
        first, second = calls(told)
        assert first.failed
        assert second.failed
        assert client.silence.seconds() >= first.took + second.took
    async with connect(
        EtcdAccess((NOBODY, *single.endpoints)), deadline=DEADLINE, root=root
    ) as client:
        await client.get("a")
        assert client.silence.seconds() == 0


async def test_a_lease_that_is_kept_tells_of_its_keepalives_and_of_its_slack(
    single: EtcdCluster, root: str
) -> None:
    told: list[Event] = []
    slack, access = Slack(), EtcdAccess(single.endpoints)
    async with (
        connect(access, deadline=DEADLINE, root=root, emit=told.append) as client,
        keep_lease(client, access, ttl=3, deadline=DEADLINE, slack=slack) as keeper,
    ):
        await wait_until_async(
            lambda: any(one.call == "LeaseKeepAlive" for one in calls(told)), 10, "a keepalive"
        )
        assert slack.ttl == keeper.lease.ttl
        least = slack.least()
        assert least is not None
        assert 0 < least < keeper.lease.ttl


async def test_keepalives_that_nobody_answers_are_a_silence_until_one_is_answered(
    single: EtcdCluster, root: str
) -> None:
    nobody, access = EtcdAccess((NOBODY,)), EtcdAccess(single.endpoints)
    async with connect(access, deadline=DEADLINE, root=root) as client:
        async with keep_lease(client, nobody, ttl=3, deadline=DEADLINE) as keeper:
            assert await keeper.until_lost() is LeaseLoss.UNANSWERED
            assert client.silence.seconds() > DEADLINE, "though every other call was answered"
        assert client.silence.seconds() == 0, "its revocation was answered"
        async with keep_lease(client, access, ttl=3, deadline=DEADLINE):
            client.silence.unanswered(boottime())
            await wait_until_async(lambda: client.silence.seconds() == 0, 10, "a keepalive")
