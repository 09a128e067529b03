"""A leader begins its term with a database that lost data."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from schedd.cluster.leader.recovery import Recovery
from schedd.cluster.leader.term import Leadership, TermOver, campaign, open_term
from schedd.core.cluster import data_loss_check
from schedd.core.cluster.coordination import Delete, Put
from schedd.core.cluster.data_loss_check import Mark
from schedd.core.cluster.membership import LEADER
from schedd.core.ids import Id, TenureId, Term
from schedd.core.runs.records import WaitingRun
from schedkit.errors import Unavailable
from support.fakes import FakeCoordination, FakeDatabase, FakeEtcd, FakeMembershipStore


class Throne:
    """Leaders over fakes, one after the other."""

    def __init__(self) -> None:
        self.etcd = FakeCoordination(FakeEtcd())
        self.rows = FakeDatabase()
        self.store = FakeMembershipStore(self.rows)
        self.recovery = Recovery(self.etcd, self.store, ttl=5)

    async def reign(self) -> Leadership:
        await self.etcd.txn((), [Delete(LEADER)])
        mandate = await campaign(self.etcd, TenureId(Id.from_int(1)), (await self.etcd.grant(5)).id)
        assert mandate is not None
        return await open_term(self.etcd, self.store, mandate, lambda: True)

    async def look(self) -> None:
        await self.recovery.check_data_loss(await self.reign())

    async def remembered(self) -> Mark | None:
        entry = await self.etcd.get(data_loss_check.KEY)
        return data_loss_check.decode(entry.value) if entry else None

    def goes_back(self, seconds: float) -> datetime:
        """The rows' newest mark from now on."""
        assert self.rows.mark.at is not None
        at = self.rows.mark.at - timedelta(seconds=seconds)
        self.rows.mark = replace(self.rows.mark, at=at)
        return at


class DiesInIt(FakeMembershipStore):
    """A store that goes away once the pause is committed."""

    async def waiting(
        self, after: WaitingRun | None, until: datetime, limit: int
    ) -> list[WaitingRun]:
        raise Unavailable("the database is away")


@pytest.fixture
def throne() -> Throne:
    return Throne()


async def test_the_first_term_stores_the_committed_mark_in_etcd(
    throne: Throne,
) -> None:
    await throne.look()
    assert throne.rows.mark.at is not None
    assert await throne.remembered() == await throne.store.read_mark()
    assert (throne.rows.pauses, throne.rows.audit) == ([], [])


async def test_an_empty_etcd_beside_a_database_with_marks_is_reported(
    throne: Throne, caplog: pytest.LogCaptureFixture
) -> None:
    """P2.9: no member can detect whether the database went back; a person may know."""
    await throne.look()
    await throne.etcd.txn((), [Delete(data_loss_check.KEY)])
    await throne.look()

    [entry] = throne.rows.audit
    assert entry.action == "forget-mark"
    assert "`schedd recover`" in entry.reason
    assert "etcd has no mark" in caplog.text
    assert throne.rows.pauses == [], "it continues: etcd may be lost alone"


async def test_the_next_term_on_the_same_database_continues(throne: Throne) -> None:
    await throne.look()
    await throne.look()
    assert (throne.rows.pauses, throne.rows.audit) == ([], [])


async def test_a_short_loss_is_audited_and_the_term_continues(throne: Throne) -> None:
    """P2.9: an asynchronous failover asks no member."""
    await throne.look()
    throne.goes_back(12)
    await throne.look()
    assert throne.rows.pauses == []
    [entry] = throne.rows.audit
    assert (entry.actor, entry.action) == ("schedd", "lose-tail")
    assert "about 12.0 s" in entry.reason
    await throne.look()
    assert len(throne.rows.audit) == 1, "once: the marks have gone on from there"


async def test_a_longer_loss_pauses_the_cluster_from_the_restored_mark_on(throne: Throne) -> None:
    """P2.9: with its own visible cause, and the whole hole inside."""
    await throne.look()
    before = await throne.remembered()
    restored = throne.goes_back(3600)
    await throne.look()
    [pause] = throne.rows.pauses
    assert before is not None
    assert before.at is not None
    assert (pause.began, pause.by, pause.recovering) == (restored, "schedd", True)
    assert pause.lost_until == before.at + data_loss_check.DOUBT
    assert "resume --catch-up-since" in pause.note
    [entry] = throne.rows.audit
    assert (entry.action, json.loads(entry.after)["note"]) == ("recover", pause.note)
    after = await throne.remembered()
    assert after is not None
    assert after.at is not None
    assert after.at > before.at


async def test_the_doubtful_period_lasts_as_long_as_owners_may_act_without_a_mark(
    throne: Throne,
) -> None:
    """P2.9: a leader died; no member made a mark for a minute, its lease's; owners continued."""
    await throne.look()
    before = await throne.remembered()
    throne.goes_back(3600)
    await Recovery(throne.etcd, throne.store, ttl=60).check_data_loss(await throne.reign())
    assert before is not None
    assert before.at is not None
    [pause] = throne.rows.pauses
    assert pause.lost_until is not None
    assert pause.lost_until >= before.at + timedelta(seconds=data_loss_check.EVERY + 60 + 60)


async def test_the_successor_of_a_leader_that_died_midway_starts_from_the_beginning(
    throne: Throne,
) -> None:
    """P2.9: no mark is made before, so the gap is still there."""
    await throne.look()
    before = await throne.remembered()
    throne.goes_back(3600)
    with pytest.raises(Unavailable):
        await Recovery(throne.etcd, DiesInIt(throne.rows), ttl=5).check_data_loss(
            await throne.reign()
        )
    assert await throne.remembered() == before
    await throne.look()
    assert throne.rows.pauses[-1].recovering
    assert await throne.remembered() != before


class Asked(FakeMembershipStore):
    """Notes up to when it was asked for what waits."""

    until: datetime | None = None

    async def waiting(
        self, after: WaitingRun | None, until: datetime, limit: int
    ) -> list[WaitingRun]:
        self.until = until
        return []


async def test_a_successor_ends_the_doubtful_period_though_etcd_lost_the_gap(
    throne: Throne,
) -> None:
    """P2.9: etcd was restored, too, before the recovery was done. (Found by the model.)"""
    await throne.look()
    throne.goes_back(3600)
    with pytest.raises(Unavailable):
        await Recovery(throne.etcd, DiesInIt(throne.rows), ttl=5).check_data_loss(
            await throne.reign()
        )
    await throne.etcd.txn((), [Delete(data_loss_check.KEY)])

    asked = Asked(throne.rows)
    await Recovery(throne.etcd, asked, ttl=5).check_data_loss(await throne.reign())

    assert asked.until == throne.rows.pauses[-1].lost_until
    assert len(throne.rows.pauses) == 1, "the same recovery"


async def test_a_term_without_a_recovery_ends_nothing(throne: Throne) -> None:
    asked = Asked(throne.rows)
    await Recovery(throne.etcd, asked, ttl=5).check_data_loss(await throne.reign())
    assert asked.until is None


async def test_a_former_leader_neither_marks_nor_recovers(throne: Throne) -> None:
    """P2.2: term and mandate are compared by each write."""
    await throne.look()
    old = await throne.reign()
    throne.goes_back(3600)
    throne.rows.term = Term(throne.rows.term + 1)
    with pytest.raises(TermOver):
        await throne.recovery.check_data_loss(old)
    assert throne.rows.pauses == []
    fresh = await throne.reign()
    await throne.etcd.txn((), [Delete(LEADER)])
    with pytest.raises(TermOver):
        await throne.recovery.check_data_loss(fresh)
    assert throne.rows.pauses == []


async def test_an_unreadable_mark_is_replaced_without_a_comparison(throne: Throne) -> None:
    await throne.etcd.txn((), [Put(data_loss_check.KEY, b"?")])
    await throne.look()
    assert await throne.remembered() == await throne.store.read_mark()
