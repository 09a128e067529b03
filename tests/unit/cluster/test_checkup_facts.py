"""The status a member reports to the doctor: clocks, trust, certificate, a restored etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from schedd.app.checkup_facts import CheckupCollector
from schedd.cluster.member import MemberIdentity
from schedd.cluster.observer import Observer
from schedd.core.checkup.facts import EtcdEndpoint
from schedd.core.cluster.coordination import Put, Revision
from schedd.etcd.errors import AccessDenied
from schedd.runtime.dependency_health import DependencyHealth
from schedkit.clock import utcnow
from schedkit.net.channel import TLS
from support.certs import Authority
from support.fakes import FakeCoordination, FakeEtcd
from support.wait import WAIT_TIMEOUT, wait_until_async

AHEAD = timedelta(seconds=3)


@dataclass
class Clock:
    """Cluster time, ahead of this host's."""

    def now(self) -> datetime:
        return utcnow() + AHEAD

    def away_for(self) -> float:
        return 0.5


def checkup(tls: TLS | None) -> CheckupCollector:
    identity = MemberIdentity("m1", "m1:7420", "m1:7421", version="1.0", tzdata="2026a")
    member = SimpleNamespace(identity=identity, cluster=SimpleNamespace(trusted=lambda: True))
    unused = cast("Any", None)
    clock, health = cast("Any", Clock()), DependencyHealth()
    return CheckupCollector(
        unused,
        unused,
        clock,
        cast("Any", member),
        unused,
        unused,
        unused,
        tls,
        unused,
        health=health,
    )


def test_the_status_has_both_clocks_and_the_trust() -> None:
    said = checkup(None).examine_member()
    assert (said.name, said.version, said.tzdata, said.lease_trusted) == (
        "m1",
        "1.0",
        "2026a",
        True,
    )
    apart = said.cluster_time.ToDatetime(UTC) - said.wall_clock.ToDatetime(UTC)
    assert abs(apart - AHEAD) < timedelta(seconds=1)
    assert not said.HasField("certificate_expires_at")


def test_the_status_has_the_expiry_of_the_certificate_on_disk(tmp_path: Path) -> None:
    tls = Authority.create(tmp_path).issue("m1")
    ends = checkup(tls).examine_member().certificate_expires_at.ToDatetime(UTC)
    assert timedelta(days=1) < ends - datetime.now(UTC) < timedelta(days=3)
    tls.cert.write_text("no certificate")
    assert checkup(tls).examine_member().certificate_expires_at.seconds == 0, "as good as ended"


class DenyingEtcd:
    """An etcd that answers, and denies every read."""

    endpoints = ("e1:2379",)

    async def status(self) -> tuple[EtcdEndpoint, ...]:
        return (EtcdEndpoint("e1:2379", version="3.6.1", leads=True),)

    async def list(self, prefix: str) -> None:
        raise AccessDenied("permission_denied", f"etcd denies the read of {prefix!r}", "grant it")


async def test_the_doctor_reads_the_keys_and_reports_why_it_cant() -> None:
    cluster = SimpleNamespace(went_back=None)
    member = cast("Any", SimpleNamespace(cluster=cluster))
    doctor = replace(checkup(None), etcd=cast("Any", DenyingEtcd()), member=member)
    facts = await doctor._etcd()  # the facts of etcd alone
    assert facts.endpoints[0].away == ""
    assert (facts.unread, facts.unread_remedy) == ("etcd denies the read of ''", "grant it")


@asynccontextmanager
async def observed(etcd: FakeEtcd) -> AsyncIterator[Observer]:
    observer = Observer(FakeCoordination(etcd))
    following = asyncio.create_task(observer.run(), name="observer")
    try:
        await wait_until_async(lambda: observer.view().revision > 0, WAIT_TIMEOUT, "the first view")
        yield observer
    finally:
        following.cancel()


async def test_an_etcd_whose_revisions_go_back_is_remembered() -> None:
    etcd = FakeEtcd()
    etcd.txn((), [Put("map", b"")], ())
    async with observed(etcd) as observer:
        etcd.txn((), [Put("map", b"1")], ())
        await wait_until_async(lambda: observer.view().revision == 3, WAIT_TIMEOUT, "the change")
        assert observer.went_back is None
        etcd.revision = Revision(0)
        etcd.txn((), [Put("map", b"2")], ())
        await wait_until_async(
            lambda: observer.view().revision == 1, WAIT_TIMEOUT, "the restored state"
        )
        assert observer.went_back is not None
