"""Streams, admission and trust, on the real wire with a scripted member."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, timedelta
from pathlib import Path

import grpc
import pytest

from schedproto.v1 import common_pb2, job_pb2
from schedproto.v1 import worker_service_pb2 as pb
from support.fake_member import FakeMember
from support.shared_workers import SharedWorkers
from support.wait import wait_until_async
from support.worker_process import WorkerProcess, alive, cluster, http_get, pid_in, wait_until_ended
from workerd.delivery.result_sender import RESEND_AFTER

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLOCKS = timedelta(seconds=0.1)
"""By which a reading of the member's time may be off."""


def lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


def counting(file: Path) -> list[str]:
    return ["sh", "-c", f"echo started >> {file}"]


async def test_the_hello_has_the_workers_name_and_abilities(tmp_path: Path) -> None:
    async with cluster(tmp_path, config='[labels]\ndisk = "ssd"\n', slots="3") as (member, worker):
        hello = (await member.attached()).hello
        assert (hello.worker, hello.slots, dict(hello.labels)) == ("w1", 3, {"disk": "ssd"})
        assert sorted(hello.actions) == ["grpc", "http", "python", "shell"]
        assert hello.spool_id == (worker.spool / "spool_id").read_text()
        assert len(hello.incarnation) == 36


async def test_the_same_assignment_twice_starts_once(
    workers: SharedWorkers, tmp_path: Path
) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        mark = tmp_path / "mark"
        assignment = member.assignment(
            incarnation=stream.hello.incarnation, argv=counting(mark), start_within=5
        )
        await stream.send(assignments=[assignment, assignment])
        await stream.result_of(assignment.key)
        await stream.send(assignments=[assignment])
        other = await stream.assign(argv=["true"])
        await stream.result_of(other)
        assert lines(mark) == 1
        assert not stream.refusals


async def test_an_assignment_repeated_after_its_end_brings_its_result_again(
    workers: SharedWorkers,
) -> None:
    async with workers() as (member, _):
        member.acknowledge_results = False
        stream = await member.attached()
        assignment = member.assignment(incarnation=stream.hello.incarnation, argv=["true"])
        await stream.send(assignments=[assignment])
        first = await stream.result_of(assignment.key)
        await stream.until(lambda: len(stream.results) >= 2, "the result sent again")
        await asyncio.sleep(RESEND_AFTER)  # the next time without a request: after twice as long
        await stream.send(assignments=[assignment])
        await stream.until(lambda: len(stream.results) >= 3, "the result once more", timeout=1.5)
        assert stream.results == [first] * 3


async def test_a_lower_token_than_one_seen_is_refused_with_an_alarm(workers: SharedWorkers) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        new, old = member.key(run="r", token=9), member.key(run="r", token=8)
        await stream.result_of(await stream.assign(key=new, argv=["true"]))
        refusal = await stream.refusal_of(await stream.assign(key=old, argv=["true"]))
        assert refusal.why == pb.Refusal.WHY_GREATER_TOKEN_SEEN
        assert refusal.greatest_token_seen == 9


async def test_another_incarnations_assignment_is_refused(workers: SharedWorkers) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        key = await stream.assign(argv=["true"], incarnation="someone-else")
        assert (await stream.refusal_of(key)).why == pb.Refusal.WHY_OTHER_INCARNATION


async def test_an_assignment_after_its_start_by_is_refused(workers: SharedWorkers) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        key = await stream.assign(argv=["true"], start_within=-0.1)
        assert (await stream.refusal_of(key)).why == pb.Refusal.WHY_TOO_LATE


async def test_a_full_worker_refuses_and_has_granted_no_more_than_it_had(tmp_path: Path) -> None:
    async with cluster(tmp_path, slots="1") as (member, _):
        stream = await member.attached()
        assert stream.granted == pb.Granted(slots=1, received=0)
        running = await stream.assign(argv=["sleep", "300"])
        await stream.holds(running, pb.Holding.STATE_RUNNING)
        refused = await stream.assign(argv=["true"])
        assert (await stream.refusal_of(refused)).why == pb.Refusal.WHY_NO_SLOT
        await stream.send(cancels=[pb.Cancel(key=running)])
        await stream.until(
            lambda: stream.granted == pb.Granted(slots=1, received=2), "the slot granted again"
        )


async def test_an_assignment_of_many_slots_takes_them_all(tmp_path: Path) -> None:
    async with cluster(tmp_path, slots="4") as (member, _):
        stream = await member.attached()
        wide = member.assignment(incarnation=stream.hello.incarnation, argv=["sleep", "300"])
        wide.slots = 3
        await stream.send(assignments=[wide])
        await stream.holds(wide.key, pb.Holding.STATE_RUNNING)
        await stream.until(lambda: stream.heartbeats[-1].free == 1 or None, "one slot left")
        refused = member.assignment(incarnation=stream.hello.incarnation, argv=["true"])
        refused.slots = 2
        await stream.send(assignments=[refused])
        assert (await stream.refusal_of(refused.key)).why == pb.Refusal.WHY_NO_SLOT


async def test_a_pre_dispatched_assignment_starts_at_its_due_time_and_never_before(
    workers: SharedWorkers,
) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        pre_dispatched = member.assignment(
            incarnation=stream.hello.incarnation, argv=["true"], start_in=0.6
        )
        await stream.send(assignments=[pre_dispatched])
        await stream.holds(pre_dispatched.key, pb.Holding.STATE_HELD)
        result = await stream.result_of(pre_dispatched.key)
        late = result.started_at.ToNanoseconds() - pre_dispatched.not_before.ToNanoseconds()
        assert 0 <= late < 100e6, f"{late / 1e6} ms"


async def test_a_revoked_assignment_never_starts(workers: SharedWorkers, tmp_path: Path) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        mark = tmp_path / "mark"
        assignment = member.assignment(
            incarnation=stream.hello.incarnation, argv=counting(mark), start_in=0.5
        )
        await stream.send(assignments=[assignment])
        await stream.holds(assignment.key, pb.Holding.STATE_HELD)
        answer = await stream.revoke(assignment.key)
        assert answer.outcome == pb.RevokeAnswer.OUTCOME_REVOKED
        await stream.send(assignments=[assignment])
        assert (await stream.refusal_of(assignment.key)).why == pb.Refusal.WHY_REVOKED
        after = await stream.assign(argv=["true"], start_in=0.8)
        await stream.result_of(after)
        assert lines(mark) == 0


async def test_a_revoke_that_overtakes_its_assignment_holds(workers: SharedWorkers) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        key = member.key()
        assert (await stream.revoke(key)).outcome == pb.RevokeAnswer.OUTCOME_REVOKED
        await stream.assign(key=key, argv=["true"])
        assert (await stream.refusal_of(key)).why == pb.Refusal.WHY_REVOKED


async def test_a_revoke_in_the_frame_of_its_assignment_has_priority(
    workers: SharedWorkers, tmp_path: Path
) -> None:
    """P4.2: a busy stream coalesces, and what was asked back must not start."""
    async with workers() as (member, _):
        stream = await member.attached()
        mark = tmp_path / "mark"
        assignment = member.assignment(incarnation=stream.hello.incarnation, argv=counting(mark))
        revoke = pb.Revoke(key=assignment.key)
        await stream.send(assignments=[assignment], revokes=[revoke])
        assert (await stream.refusal_of(assignment.key)).why == pb.Refusal.WHY_REVOKED
        await stream.result_of(await stream.assign(argv=["true"]))
        assert lines(mark) == 0


async def test_a_started_assignment_is_not_revoked(workers: SharedWorkers) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        key = await stream.assign(argv=["sleep", "300"])
        assert (await stream.revoke(key)).outcome == pb.RevokeAnswer.OUTCOME_STARTED


async def test_a_cancel_before_the_start_is_a_refusal(workers: SharedWorkers) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        key = await stream.assign(argv=["true"], start_in=60)
        await stream.holds(key, pb.Holding.STATE_HELD)
        await stream.send(cancels=[pb.Cancel(key=key)])
        assert (await stream.refusal_of(key)).why == pb.Refusal.WHY_REVOKED
        await stream.until(lambda: not [*stream.held()] or None, "nothing held")


async def test_a_worker_without_a_refreshed_lease_takes_nothing(tmp_path: Path) -> None:
    """W1: attached, but no member confirms its key."""
    async with FakeMember(ttl=3.0) as member:
        member.refresh = False
        worker = WorkerProcess(tmp_path, [member.address])
        worker.start()
        try:
            stream = await member.attached()
            await stream.until(lambda: len(stream.heartbeats) >= 3 or None, "heartbeats")
            assert stream.heartbeats[-1].since_refresh.ToTimedelta().total_seconds() >= 3.0
            assert stream.granted.slots == 0
            key = await stream.assign(argv=["true"])
            assert (await stream.refusal_of(key)).why == pb.Refusal.WHY_TOO_LATE
            port = await worker.http_port()
            assert (await http_get(port, "/readyz"))[0] == 503
            member.refresh = True
            await stream.granted_at_least(1)
            assert (await http_get(port, "/readyz"))[0] == 200
            await stream.until(
                lambda: (
                    stream.heartbeats[-1].since_refresh.ToTimedelta().total_seconds() < 1.0 or None
                ),
                "a refresh noticed",
            )
        finally:
            await worker.stop()


async def test_the_end_of_trust_withdraws_slots_and_kills_only_runs_with_kill(
    tmp_path: Path,
) -> None:
    """W1: by `on_lease_lost`, which says kill of one and finish of the other."""
    async with FakeMember(ttl=3.0) as member:
        worker = WorkerProcess(tmp_path, [member.address])
        worker.start()
        try:
            stream = await member.attached()
            await stream.granted_at_least(1)
            killed, spared = tmp_path / "killed", tmp_path / "spared"
            for mark, rule in (
                (killed, job_pb2.ON_LEASE_LOST_KILL),
                (spared, job_pb2.ON_LEASE_LOST_FINISH),
            ):
                script = f"echo $$ > {mark}; exec sleep 300"
                await stream.assign(argv=["sh", "-c", script], on_lease_lost=rule)
            doomed, lasting = await pid_in(killed), await pid_in(spared)
            member.refresh = False
            await wait_until_ended(doomed, within=4.0)
            # The killing and the withdrawal go different ways; whatever comes meanwhile is refused.
            late = await stream.assign(argv=["true"])
            assert (await stream.refusal_of(late)).why == pb.Refusal.WHY_TOO_LATE
            await stream.until(lambda: stream.granted.slots == 0, "no slots granted", timeout=2.0)
            result = (await stream.until(lambda: stream.results or None, "a result"))[0]
            assert result.outcome == pb.Result.OUTCOME_RETURNED
            assert result.reason == common_pb2.REASON_WORKER_LOST
            assert alive(lasting)
        finally:
            worker.kill()
            await wait_until_ended(lasting, within=2.0)


async def test_a_lost_incarnation_is_followed_by_a_new_one(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (member, _):
        old = await member.attached()
        running = await old.assign(argv=["sh", "-c", "sleep 1; exit 4"])
        pre_dispatched = await old.assign(argv=["true"], start_in=1.0)
        await old.holds(pre_dispatched, pb.Holding.STATE_HELD)
        member.lost.add(old.hello.incarnation)
        new = await member.attached(2)
        assert new.hello.incarnation != old.hello.incarnation
        assert new.hello.spool_id == old.hello.spool_id
        assert [*new.hello.running] == [running]
        result = await new.result_of(running)
        assert result.incarnation == old.hello.incarnation
        assert result.exit_code == 4
        await new.granted_at_least(1)
        assert not [each for each in new.results if each.key == pre_dispatched]


async def test_a_member_that_aborts_the_hello_gets_a_new_incarnation(tmp_path: Path) -> None:
    async with FakeMember() as member:
        member.abort = (grpc.StatusCode.ABORTED, "lost")
        worker = WorkerProcess(tmp_path, [member.address])
        worker.start()
        try:
            await wait_until_async(
                lambda: worker.log.read_text().count("registering again") >= 2, 10, "two tries"
            )
            member.abort = None
            await (await member.attached()).granted_at_least(1)
        finally:
            await worker.stop()


async def test_all_members_are_attached_to_and_slots_are_shared(tmp_path: Path) -> None:
    async with FakeMember("m1") as one, FakeMember("m2") as two:
        one.peers = two.peers = (one, two)
        worker = WorkerProcess(tmp_path, [one.address], slots="4")
        worker.start()
        try:
            first, second = await one.attached(grants=False), await two.attached(grants=False)
            assert first.hello.incarnation == second.hello.incarnation
            for stream in (first, second):
                await stream.until(lambda s=stream: s.granted.slots == 2 or None, "an even share")
            waiting = pb.Demand.Head(priority=common_pb2.PRIORITY_HIGH, slots=3)
            waiting.waiting_since.GetCurrentTime()
            await second.send(demand=pb.Demand(heads=[waiting]))
            await second.until(lambda: second.granted.slots >= 3 or None, "what was asked for")
            await first.until(lambda: first.granted.slots <= 1 or None, "the rest")
        finally:
            await worker.stop()


async def test_a_slot_is_granted_to_the_best_head_and_names_the_next_one(
    tmp_path: Path,
) -> None:
    def heads(*priorities: common_pb2.Priority.ValueType, since: int = 0) -> pb.Demand:
        demand = pb.Demand(heads=[pb.Demand.Head(priority=each, slots=1) for each in priorities])
        for head in demand.heads:
            head.waiting_since.FromSeconds(1_800_000_000 + since)
        return demand

    high, low = common_pb2.PRIORITY_HIGH, common_pb2.PRIORITY_LOW
    async with FakeMember("m1") as one, FakeMember("m2") as two:
        one.peers = two.peers = (one, two)
        worker = WorkerProcess(tmp_path, [one.address], slots="1")
        worker.start()
        try:
            first, second = await one.attached(grants=False), await two.attached(grants=False)
            await first.send(demand=heads(high, low))
            await first.granted_at_least(1)
            await second.send(demand=heads(high, since=1))
            await first.until(
                lambda: first.granted.slots == 1 and first.granted.before.priority == high,
                "the other's head to arrive",
            )
            assert second.granted.slots == 0
            await first.send(demand=heads(low))  # another worker took the HIGH one
            await second.until(lambda: second.granted.slots == 1, "the slot")
            assert second.granted.before.priority == low
            await first.until(lambda: first.granted.slots == 0, "no slot any more")
            await first.send(demand=heads())
            await second.until(lambda: not second.granted.HasField("before"), "no other to wait")
        finally:
            await worker.stop()


async def test_an_assignment_chosen_under_an_earlier_grant_has_its_slot(tmp_path: Path) -> None:
    async with FakeMember("m1") as one, FakeMember("m2") as two:
        one.peers = two.peers = (one, two)
        one.answers_grants = two.answers_grants = False
        worker = WorkerProcess(tmp_path, [one.address], slots="2")
        worker.start()
        try:
            first, second = await one.attached(grants=False), await two.attached(grants=False)
            await first.until(lambda: first.granted.slots == 1, "an even share")
            await first.send(reach=pb.Reach(serial=first.granted.serial))  # it had both slots
            await second.until(lambda: second.granted.slots == 1, "an even share")
            waiting = pb.Demand.Head(priority=common_pb2.PRIORITY_HIGH, slots=2)
            waiting.waiting_since.GetCurrentTime()
            await second.send(demand=pb.Demand(heads=[waiting]))
            await first.until(lambda: first.granted.slots == 0, "the slot to be asked back")
            chosen = pb.Reach(serial=first.granted.serial, slots=1)
            await first.send(reach=chosen)
            for _ in range(second.granted.slots):
                taken = await second.assign(argv=["sleep", "300"])
                await second.holds(taken, pb.Holding.STATE_RUNNING)
            late = await first.assign(argv=["sleep", "300"])
            await first.holds(late, pb.Holding.STATE_RUNNING)
            assert not first.refusals
        finally:
            await worker.stop()


async def test_an_older_list_of_members_is_ignored(tmp_path: Path) -> None:
    async with FakeMember("m1") as one, FakeMember("m2") as two:
        one.peers, one.revision = (one, two), 7
        worker = WorkerProcess(tmp_path, [one.address])
        worker.start()
        try:
            stream = await one.attached()
            await two.attached()
            older = pb.Members(
                revision=6, endpoints=[pb.Members.Endpoint(name="m1", grpc=one.address)]
            )
            await stream.send(members=older)
            await two.stop()
            await two.start()
            await two.attached(2)
        finally:
            await worker.stop()


async def test_a_result_is_sent_to_another_member_when_its_own_has_stopped(tmp_path: Path) -> None:
    """W3: any member accepts it, so it waits for none."""
    async with FakeMember("m1") as one, FakeMember("m2") as two:
        one.peers = two.peers = (one, two)
        worker = WorkerProcess(tmp_path, [one.address])
        worker.start()
        try:
            first, second = await one.attached(grants=False), await two.attached(grants=False)
            await first.granted_at_least(1)
            key = await first.assign(argv=["sh", "-c", "sleep 0.5"])
            await first.holds(key, pb.Holding.STATE_RUNNING)
            await one.stop()
            await second.result_of(key, timeout=3.0)
            await second.acknowledge(key)
        finally:
            await worker.stop()


async def test_an_unanswered_result_is_offered_to_another_member(tmp_path: Path) -> None:
    """W3: a member that takes no results holds none up."""
    async with FakeMember("m1") as one, FakeMember("m2") as two:
        one.peers = two.peers = (one, two)
        worker = WorkerProcess(tmp_path, [one.address])
        worker.start()
        try:
            first, second = await one.attached(grants=False), await two.attached(grants=False)
            await first.granted_at_least(1)
            key = await first.assign(argv=["true"])
            sent = await first.result_of(key)
            began = time.monotonic()
            assert await second.result_of(key, timeout=4.0) == sent
            assert time.monotonic() - began > 1.0
            await second.acknowledge(key, pb.Acknowledgement.VERDICT_STALE)
            await wait_until_async(
                lambda: not [*worker.spool.glob("*.results")], 5.0, "an empty spool"
            )
            assert "stale" in worker.log.read_text()
        finally:
            await worker.stop()


async def test_a_broken_stream_is_opened_again_with_the_same_incarnation(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (member, _):
        old = await member.attached()
        key = await old.assign(argv=["sleep", "300"])
        await old.holds(key, pb.Holding.STATE_RUNNING)
        await member.stop()
        await member.start()
        new = await member.attached(2)
        assert new.hello.incarnation == old.hello.incarnation
        assert [*new.hello.running] == [key]
        await new.granted_at_least(1)
        assert new.granted.received == 0


async def test_a_member_drains_and_undrains_a_worker(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (member, _):
        stream = await member.attached()
        await stream.send(drain=pb.Drain())
        await stream.until(lambda: stream.granted.slots == 0 or None, "no slots")
        key = await stream.assign(argv=["true"])
        assert (await stream.refusal_of(key)).why == pb.Refusal.WHY_DRAINING
        await stream.until(lambda: stream.heartbeats[-1].draining or None, "a draining heartbeat")
        await stream.send(drain=pb.Drain(undrain=True))
        await stream.granted_at_least(1)
        await stream.result_of(await stream.assign(argv=["true"]))


async def test_metrics_count_results_by_outcome(tmp_path: Path) -> None:
    async with cluster(tmp_path, slots="5") as (member, worker):
        stream = await member.attached()
        await stream.result_of(await stream.assign(argv=["false"]))
        port = await worker.http_port()
        assert await http_get(port, "/healthz") == (200, "ok\n")
        _, series = await http_get(port, "/metrics")
        assert "workerd_slots 5.0" in series
        assert 'workerd_starts_total{action="shell"} 1.0' in series
        assert 'workerd_outcomes_total{outcome="FAILED",reason="EXIT_CODE"} 1.0' in series


async def test_a_heartbeat_says_by_which_clock_start_by_is_judged(tmp_path: Path) -> None:
    """An assignment that is late by the time in a heartbeat is never started."""
    async with cluster(tmp_path) as (member, _):
        stream = await member.attached()
        await stream.until(lambda: len(stream.heartbeats) >= 4 or None, "heartbeats")
        times = [
            each.worker_cluster_time
            for each in stream.heartbeats
            if each.HasField("worker_cluster_time")
        ]
        nanos = [each.ToNanoseconds() for each in times]
        assert nanos == sorted(nanos)
        assert abs(nanos[-1] / 1e9 - time.time()) < 1.0
        assignment = member.assignment(incarnation=stream.hello.incarnation, argv=["true"])
        assignment.start_by.CopyFrom(times[-1])
        assignment.start_by.nanos = max(assignment.start_by.nanos - 1, 0)
        await stream.send(assignments=[assignment])
        assert (await stream.refusal_of(assignment.key)).why == pb.Refusal.WHY_TOO_LATE


async def test_a_workers_reports_of_a_run_are_dated_by_the_clusters_time(tmp_path: Path) -> None:
    """A host's wall clock may be off by an hour, and no report with it."""
    async with cluster(tmp_path, ahead=timedelta(hours=1)) as (member, _):
        stream = await member.attached()
        before = member.now()
        key = await stream.assign(argv=["sleep", "0.2"])
        result = await stream.result_of(key)
        started = result.started_at.ToDatetime(UTC)
        finished = result.finished_at.ToDatetime(UTC)
        assert before - CLOCKS < started < finished < member.now() + CLOCKS


async def test_a_silent_member_keeps_no_slots_idle(tmp_path: Path) -> None:
    async with FakeMember("m1") as one, FakeMember("m2") as two:
        one.peers = two.peers = (one, two)
        worker = WorkerProcess(tmp_path, [one.address], slots="4")
        worker.start()
        try:
            first, second = await one.attached(grants=False), await two.attached(grants=False)
            await second.until(lambda: second.granted.slots == 2 or None, "an even share")
            two.answer_heartbeats = False
            await first.until(lambda: first.granted.slots == 4 or None, "all slots")
            two.answer_heartbeats = True
            await second.until(lambda: second.granted.slots == 2 or None, "its share again")
        finally:
            await worker.stop()


async def test_a_worker_whose_name_is_taken_waits_with_the_incarnation_it_has(
    tmp_path: Path,
) -> None:
    async with FakeMember() as member:
        member.abort = (grpc.StatusCode.ALREADY_EXISTS, "w1 is already there, on host h2")
        worker = WorkerProcess(tmp_path, [member.address])
        worker.start()
        try:
            await wait_until_async(
                lambda: "w1 is already there" in worker.log.read_text(), 10, "the reason in its log"
            )
            member.abort = None
            await (await member.attached()).granted_at_least(1)
            assert "registering again" not in worker.log.read_text()
        finally:
            await worker.stop()
