"""A member's life over fakes: joining, leading, losing, coming back, leaving."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from schedd.cluster import member
from schedd.cluster.leader.candidate import Candidate
from schedd.core.cluster import data_loss_check
from schedd.core.cluster.coordination import Delete, Put
from schedd.core.cluster.membership import LEADER, MAP, decode_member, member_key
from schedd.core.cluster.shard_map import ShardMap, decode, encode
from schedd.core.ids import SHARDS, ShardId, Term, Timeline
from schedd.core.runs.model import Tenure
from schedd.core.timers.cluster_pauses import Pause
from support.fakes import FakeMembershipStore
from support.members import FakeCluster
from support.wait import WAIT_TIMEOUT, wait_until_async


async def test_three_members_own_every_shard_exactly_once() -> None:
    async with FakeCluster("a", "b", "c") as cluster:
        await cluster.wait_until_stable()
        owned = [shard for name in "abc" for shard in cluster[name].owned]
        assert sorted(owned) == list(range(SHARDS))
        assert cluster.leader() in {"a", "b", "c"}


async def test_a_member_of_weight_0_owns_no_shards() -> None:
    async with FakeCluster("a", idle=0) as cluster:
        await cluster.wait_until_stable("a")
        assert not cluster["idle"].owned


async def test_a_newcomer_gets_its_share_and_nothing_else_moves() -> None:
    async with FakeCluster("a", "b") as cluster:
        await cluster.wait_until_stable()
        before = {name: cluster[name].owned for name in "ab"}
        cluster.start("c")
        await cluster.wait_until_stable()
        assert all(cluster[name].owned < before[name] for name in "ab")


async def test_a_killed_members_shards_move_when_its_lease_ends() -> None:
    async with FakeCluster("a", "b", "c") as cluster:
        await cluster.wait_until_stable()
        tenure, lease = cluster["a"].tenure, cluster["a"].leases.kept[-1].lease
        cluster.kill("a")
        cluster.etcd.expire(lease.id)
        await cluster.wait_until_stable("b", "c")
        assert tenure is not None
        assert cluster.rows.fenced(tenure)


async def test_the_leaders_death_makes_another_lead_under_a_higher_term() -> None:
    async with FakeCluster("a", "b", "c") as cluster:
        await cluster.wait_until_stable()
        leader, term = cluster.leader(), cluster.rows.term
        assert leader is not None
        lease = cluster[leader].leases.kept[-1].lease
        cluster.kill(leader)
        cluster.etcd.expire(lease.id)
        await cluster.wait_until_stable()
        assert cluster.leader() not in (None, leader)
        assert cluster.rows.term > term


async def test_a_member_that_lost_its_lease_returns_with_a_new_tenure() -> None:
    async with FakeCluster("a", "b") as cluster:
        await cluster.wait_until_stable()
        tenure = cluster["a"].tenure
        cluster["a"].leases.kept[-1].lost.set()
        await wait_until_async(
            lambda: cluster["a"].tenure not in (None, tenure), WAIT_TIMEOUT, "a new tenure"
        )
        assert tenure is not None
        assert cluster.rows.fenced(tenure)
        await cluster.wait_until_stable()


async def test_a_member_whose_key_was_deleted_gives_its_tenure_up() -> None:
    async with FakeCluster("a", "b") as cluster:
        await cluster.wait_until_stable()
        tenure = cluster["a"].tenure
        await cluster["b"].client.txn((), [Delete(member_key("a"))])
        await wait_until_async(
            lambda: cluster["a"].tenure not in (None, tenure), WAIT_TIMEOUT, "a new tenure"
        )
        await cluster.wait_until_stable()


@pytest.mark.slow
async def test_a_member_whose_row_was_fenced_returns_with_a_new_tenure() -> None:
    async with FakeCluster("a", "b") as cluster:
        await cluster.wait_until_stable()
        tenure = cluster["a"].tenure
        assert tenure is not None
        cluster.rows.fence([tenure])
        await wait_until_async(
            lambda: cluster["a"].tenure not in (None, tenure), WAIT_TIMEOUT, "a new tenure"
        )
        await cluster.wait_until_stable()


async def test_a_lease_that_outlived_its_tenure_in_an_outage_doesnt_delay_the_next() -> None:
    async with FakeCluster("a") as cluster:
        await cluster.wait_until_stable()
        tenure, lease = cluster["a"].tenure, cluster["a"].leases.kept[-1].lease
        cluster.cut("a", database=False)
        cluster["a"].leases.kept[-1].lost.set()
        await wait_until_async(
            lambda: cluster["a"].tenure is None, WAIT_TIMEOUT, "the tenure to end"
        )
        cluster.cut("a", etcd=False, database=False)
        assert lease.id in cluster.etcd.leases
        await wait_until_async(
            lambda: cluster["a"].tenure not in (None, tenure), WAIT_TIMEOUT, "a new tenure"
        )
        await cluster.wait_until_stable()
        assert lease.id not in cluster.etcd.leases


async def test_a_leader_whose_key_was_deleted_makes_room_for_an_honest_election() -> None:
    async with FakeCluster("a") as cluster:
        await cluster.wait_until_stable()
        term = cluster.rows.term
        await cluster["a"].client.txn((), [Delete(LEADER)])
        await wait_until_async(lambda: cluster.rows.term > term, WAIT_TIMEOUT, "another term")
        await cluster.wait_until_stable()


async def test_a_drained_member_hands_over_and_leaves_nothing() -> None:
    """P2.1: it fences its own tenure; no other member must detect that it stopped."""
    async with FakeCluster("a", "b", "c") as cluster:
        await cluster.wait_until_stable()
        leader = cluster.leader()
        assert leader is not None
        others = {"a", "b", "c"} - {leader}
        tenure = cluster[leader].tenure
        gone = cluster[leader]
        gone.draining.set()
        await gone.ended()
        await cluster.wait_until_stable(*others)
        assert tenure is not None
        assert cluster.rows.fenced(tenure)
        assert member_key(leader) not in cluster.etcd.entries
        await wait_until_async(lambda: cluster.leader() in others, WAIT_TIMEOUT, "another leader")


async def test_a_draining_leader_hands_its_shards_over_before_it_leaves() -> None:
    async with FakeCluster("a", "b") as cluster:
        await cluster.wait_until_stable()
        leader = cluster.leader()
        assert leader is not None
        [other] = {"a", "b"} - {leader}
        before = len(cluster.rows.takings)
        cluster[leader].draining.set()
        await cluster[leader].ended()
        takers = {tenure for _, _, tenure in cluster.rows.takings[before:]}
        assert takers == {cluster[other].tenure}


async def test_the_last_member_leaves_without_waiting_for_anyone() -> None:
    async with FakeCluster("a") as cluster:
        await cluster.wait_until_stable()
        cluster["a"].draining.set()
        async with asyncio.timeout(WAIT_TIMEOUT):
            await cluster["a"].ended()
        assert set(cluster.etcd.entries) == {MAP, data_loss_check.KEY}


async def test_two_daemons_of_one_name_are_never_both_members() -> None:
    """M12: the second waits until the first has left."""
    async with FakeCluster("a") as cluster:
        await cluster.wait_until_stable()
        entry = cluster.etcd.entries[member_key("a")]
        second = cluster.start("second", identity="a")
        await wait_until_async(
            lambda: second.member.cluster.view().members, WAIT_TIMEOUT, "the second to look around"
        )
        await cluster.wait_until_stable("a")
        assert second.tenure is None
        assert cluster.etcd.entries[member_key("a")] == entry
        cluster["a"].draining.set()
        await cluster["a"].ended()
        await cluster.wait_until_stable("second")


@pytest.mark.slow
async def test_a_map_of_a_lower_term_moves_nothing() -> None:
    async with FakeCluster("a", "b") as cluster:
        await cluster.wait_until_stable()
        a = cluster["a"]
        assert a.tenure is not None
        stale = ShardMap(Term(0), {ShardId(at): a.tenure for at in range(SHARDS)})
        takings = len(cluster.rows.takings)
        await a.client.txn((), [Put(MAP, encode(stale))])
        entries = cluster.etcd.entries
        await wait_until_async(
            lambda: decode(entries[MAP].value).term == cluster.rows.term,
            WAIT_TIMEOUT,
            "the leader's map",
        )
        assert len(cluster.rows.takings) == takings
        await cluster.wait_until_stable()


async def test_a_registration_whose_answer_was_lost_is_undone_and_tried_again() -> None:
    async with FakeCluster() as cluster:
        daemon = cluster.start("a")
        daemon.client.loses_answers = 1
        await cluster.wait_until_stable()
        assert len(cluster.etcd.leases) == 1


@pytest.mark.slow
async def test_a_shard_that_a_transaction_found_lost_is_taken_again() -> None:
    async with FakeCluster("a") as cluster:
        await cluster.wait_until_stable()
        a = cluster["a"]
        epoch = a.member.cluster.owned()[ShardId(7)]
        row = cluster.rows.shards[ShardId(7)]
        # A job moved in: the row's epoch was raised.
        cluster.rows.shards[ShardId(7)] = type(row)(row.id, row.owner, row.epoch + 5, row.timeline)
        await wait_until_async(
            lambda: a.member.cluster.owned().get(ShardId(7), 0) > epoch + 5,
            WAIT_TIMEOUT,
            "a new epoch",
        )


async def test_a_new_timeline_of_the_database_makes_every_member_take_over_again() -> None:
    """P2.6: under tenures of their own, for those of before may be lost with the tail."""
    async with FakeCluster("a", "b") as cluster:
        await cluster.wait_until_stable()
        before = {name: cluster[name].tenure for name in "ab"}
        cluster.rows.timeline = Timeline(2)
        await wait_until_async(
            lambda: all(cluster[name].tenure not in (None, before[name]) for name in "ab"),
            WAIT_TIMEOUT,
            "new tenures",
        )
        await cluster.wait_until_stable()
        assert {row.timeline for row in cluster.rows.shards.values()} == {2}


@pytest.mark.slow
async def test_a_member_that_must_retake_its_shards_doesnt_lead_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else each whose tenure ends a moment later than the leader's would lead for that moment."""
    looks = Counter[Candidate]()
    step = Candidate.step

    async def counted(candidate: Candidate) -> float | None:
        answer = await step(candidate)
        looks[candidate] += 1
        return answer

    monkeypatch.setattr(Candidate, "step", counted)
    monkeypatch.setattr(member, "HEALTH_EVERY", 3600.0)  # a long moment
    async with FakeCluster("a", "b") as cluster:
        await cluster.wait_until_stable()
        term = cluster.rows.term
        cluster.rows.timeline = Timeline(2)
        await wait_until_async(
            lambda: caplog.text.count("timeline changed: from=1 to=2") == 2,
            WAIT_TIMEOUT,
            "both to notice",
        )
        await cluster["a"].client.txn((), [Delete(LEADER)])
        looks.clear()
        await wait_until_async(
            lambda: sum(count > 1 for count in looks.values()) == 2,
            WAIT_TIMEOUT,
            "both to have looked whether they should lead",
        )
        assert cluster.rows.term == term


@pytest.mark.slow
async def test_a_database_that_went_back_is_judged_by_a_new_term_before_anyone_owns_a_shard() -> (
    None
):
    """P2.9: on the same timeline, with all members running; the verdict precedes each map."""
    async with FakeCluster("a", "b") as cluster:
        await cluster.wait_until_stable()
        await wait_until_async(
            lambda: all(cluster[name].store.lineage.known.at for name in "ab"),
            WAIT_TIMEOUT,
            "marks",
        )
        before, term = {name: cluster[name].tenure for name in "ab"}, cluster.rows.term
        taken = len(cluster.rows.takings)
        found: list[int] = []
        judged = cluster.rows.pauses

        class JoinDecision(list[Pause]):
            def append(self, pause: Pause) -> None:
                found.append(len(cluster.rows.takings))
                super().append(pause)

        cluster.rows.pauses = JoinDecision(judged)
        mark = cluster.rows.mark
        assert mark.at is not None
        cluster.rows.mark = replace(mark, at=mark.at - timedelta(hours=1))
        await wait_until_async(
            lambda: all(cluster[name].tenure not in (None, before[name]) for name in "ab"),
            WAIT_TIMEOUT,
            "new tenures",
        )
        await cluster.wait_until_stable()
        assert found == [taken], "held before the first shard was taken again, and once"
        assert cluster.rows.term > term
        assert len(cluster.rows.takings) > taken


@pytest.mark.slow
async def test_a_shard_that_a_member_owns_unknowingly_is_corrected() -> None:
    async with FakeCluster("a", "b") as cluster:
        await cluster.wait_until_stable()
        shard = min(cluster["b"].owned)
        row = cluster.rows.shards[shard]
        # As after a taking whose answer was lost, and a map that has changed meanwhile.
        cluster.rows.shards[shard] = type(row)(shard, cluster["a"].tenure, row.epoch, row.timeline)
        await wait_until_async(
            lambda: cluster.rows.shards[shard].owner == cluster["b"].tenure,
            WAIT_TIMEOUT,
            "b to have it again",
        )
        await cluster.wait_until_stable()


@pytest.mark.slow
async def test_a_member_cut_from_the_database_alone_leaves_its_shards_to_the_others() -> None:
    async with FakeCluster("a", "b", "c") as cluster:
        await cluster.wait_until_stable()
        leader = cluster.leader()
        assert leader is not None
        cluster.cut(leader, etcd=False, database=True)
        others = {"a", "b", "c"} - {leader}
        await cluster.wait_until_stable(*others)
        assert cluster[leader].tenure is None
        cluster.cut(leader, etcd=False, database=False)
        await cluster.wait_until_stable()


async def test_the_beginning_of_a_tenure_is_logged_with_its_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with FakeCluster("a") as cluster:
        await cluster.wait_until_stable()
        tenure = cluster["a"].tenure
    [line] = [one for one in caplog.records if one.getMessage() == "member joined the cluster"]
    assert line.tenure == tenure


@pytest.mark.slow
async def test_an_outage_of_the_database_for_all_ends_no_tenure() -> None:
    async with FakeCluster("a", "b") as cluster:
        await cluster.wait_until_stable()
        before = {name: cluster[name].tenure for name in "ab"}
        term = cluster.rows.term
        for name in "ab":
            cluster.cut(name, etcd=False, database=True)
        entries = cluster.etcd.entries
        await wait_until_async(
            lambda: not any(decode_member(entries[member_key(name)]).database for name in "ab"),
            WAIT_TIMEOUT,
            "both to say so",
        )
        for name in "ab":
            cluster.cut(name, etcd=False, database=False)
        await wait_until_async(
            lambda: all(decode_member(entries[member_key(name)]).database for name in "ab"),
            WAIT_TIMEOUT,
            "both to have it again",
        )
        assert {name: cluster[name].tenure for name in "ab"} == before
        assert cluster.rows.term == term


@pytest.mark.slow
async def test_shards_are_assigned_to_members_with_workers() -> None:
    """P4.6: a member says whether it has some, and the leader heeds it."""
    async with FakeCluster("a", "b") as cluster:
        await cluster.wait_until_stable()
        cluster["a"].member.attached(True)
        await cluster.wait_until_stable("a")
        cluster["b"].member.attached(True)
        await cluster.wait_until_stable()


async def test_a_member_registers_before_its_tenure_has_a_row() -> None:
    """P2.1: a leader reads rows, then keys; a row without a key would be fenced at once."""
    keys: list[bool] = []

    class Watching(FakeMembershipStore):
        async def open_tenure(self, tenure: Tenure) -> None:
            keys.append(member_key("a") in cluster.etcd.entries)
            await super().open_tenure(tenure)

    async with FakeCluster() as cluster:
        daemon = cluster.start("a", store=Watching(cluster.rows))
        await cluster.wait_until_stable("a")
        assert daemon.tenure is not None
    assert keys == [True]


@pytest.mark.slow
async def test_a_member_without_its_database_does_not_campaign() -> None:
    """M10: it couldn't open a term."""
    async with FakeCluster("a") as cluster:
        await cluster.wait_until_stable()
        daemon = cluster.start("b")
        await cluster.wait_until_stable()
        cluster.cut("b", etcd=False, database=True)
        entries = cluster.etcd.entries
        await wait_until_async(
            lambda: not decode_member(entries[member_key("b")]).database,
            WAIT_TIMEOUT,
            "it to say so",
        )
        lease = cluster["a"].leases.kept[-1].lease.id
        cluster.kill("a")
        cluster.etcd.expire(lease)
        revision = cluster.etcd.revision
        view = daemon.member.cluster.view
        await wait_until_async(lambda: view().leader is None, WAIT_TIMEOUT, "it to see that")
        for _ in range(100):  # rounds of the loop: a campaign over fakes takes a few
            await asyncio.sleep(0)
        assert cluster.etcd.revision == revision, "it doesn't even try"
