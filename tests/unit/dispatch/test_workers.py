"""The workers attached to a member: grants, pushes, revocations."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from schedd.core.dispatch.packed_runs import Holdings
from schedd.core.dispatch.placement import PlacementCriteria
from schedd.core.dispatch.ready_queue import QueueHead
from schedd.core.ids import IncarnationId, RunId, Token
from schedd.core.jobs.definition import Definition, Priority
from schedd.core.runs.model import DispatchedBatch, Incarnation, LiveRun
from schedd.core.runs.records import WorkerView, view_without_heartbeats
from schedd.dispatch.revocations import ASKED_AT_ONCE
from schedd.dispatch.start_confirmation import MOST_ASKED
from schedd.dispatch.workers.registry import REVOKE_MARGIN, SILENT_AFTER, WorkerRegistry
from schedd.dispatch.workers.remote_workers import LastHeartbeat, NoRemoteWorkers
from schedd.runtime.definition_texts import CachedDefinition
from support.definitions import cached_definition
from support.runs import NOW, RecordingLine, SetClock, running, worker
from support.wait import WAIT_TIMEOUT


def known(slots: int = 1) -> CachedDefinition:
    return cached_definition(Definition(1, "default", action="shell", slots=slots))


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def workers(clock: SetClock) -> WorkerRegistry:
    return WorkerRegistry(clock, lambda _event: None)


def test_pushed_but_unreceived_runs_are_taken_off_the_grant(workers: WorkerRegistry):
    one, line = worker(), RecordingLine()
    attached = workers.attach(one, line)
    workers.granted(attached, slots=3, received=0)
    workers.push(DispatchedBatch.of([running(1, one)]), [known()])
    assert [offer.slots for offer in workers.offers()] == [2]
    # The worker has it and keeps two more free: the same two, reported again.
    workers.granted(attached, slots=2, received=1)
    assert [offer.slots for offer in workers.offers()] == [2]


def test_a_wide_run_takes_its_slots_off_the_grant(workers: WorkerRegistry):
    one = worker()
    workers.granted(workers.attach(one, RecordingLine()), slots=4, received=0)
    workers.push(DispatchedBatch.of([running(1, one)]), [known(slots=3)])
    assert [offer.slots for offer in workers.offers()] == [1]


def test_a_grant_below_the_assignments_in_flight_offers_no_slots(workers: WorkerRegistry):
    one = worker()
    attached = workers.attach(one, RecordingLine())
    workers.granted(attached, slots=2, received=0)
    workers.push(DispatchedBatch.of([running(1, one)]), [known()])
    workers.granted(attached, slots=0, received=0)
    assert not workers.offers()


def test_a_chosen_slot_is_offered_to_no_other_run_before_the_push(workers: WorkerRegistry):
    one = worker()
    attached = workers.attach(one, RecordingLine())
    workers.granted(attached, slots=4, received=0)
    with workers.choosing() as choice:
        choice.reserve_slots(next(iter(workers.offers())), 3)
        assert [offer.slots for offer in workers.offers()] == [1]
        workers.push(DispatchedBatch.of([running(1, one)]), [known(slots=2)])
    assert attached.under_way == 0
    assert [offer.slots for offer in workers.offers()] == [2], "one of them was let go of"


def test_each_end_of_a_choice_releases_its_slots(workers: WorkerRegistry):
    attached = workers.attach(worker(), RecordingLine())
    workers.granted(attached, slots=4, received=0)

    def broken_off() -> None:
        with workers.choosing() as choice:
            choice.reserve_slots(next(iter(workers.offers())), 3)
            raise RuntimeError("a bug, or its task was cancelled")

    with pytest.raises(RuntimeError):
        broken_off()
    assert [offer.slots for offer in workers.offers()] == [4]


def test_a_worker_that_grants_less_gets_the_slots_in_use_at_once(
    workers: WorkerRegistry,
):
    """The worker keeps slots for that, and no more."""
    one, line = worker(), RecordingLine()
    attached = workers.attach(one, line)
    workers.granted(attached, slots=4, received=0)
    with workers.choosing() as choice:
        choice.reserve_slots(next(iter(workers.offers())), 2)
        workers.push(DispatchedBatch.of([running(1, one)]), [known()])
        choice.release()
        choice.reserve_slots(next(iter(workers.offers())), 2)
        workers.granted(attached, slots=0, received=0, serial=7)
        assert line.reached == [(7, 3)]
        workers.granted(attached, slots=1, received=0, serial=7)
        for number in (2, 3):
            workers.push(DispatchedBatch.of([running(number, one)]), [known()])
    assert line.reached == [(7, 3)], "once; as far as it went"


def test_a_worker_that_grants_no_less_gets_no_message(workers: WorkerRegistry):
    attached = workers.attach(worker(), line := RecordingLine())
    workers.granted(attached, slots=2, received=0)
    workers.granted(attached, slots=4, received=0)
    with workers.choosing() as choice:
        choice.reserve_slots(next(iter(workers.offers())), 2)
    assert line.reached == []


@pytest.mark.parametrize(
    ("granted", "reached"), [(0, [(7, 3), (7, 0)]), (1, [(7, 3), (7, 0)]), (3, [(7, 3)])]
)
def test_released_slots_are_reported_to_a_worker_that_reserves_them(
    workers: WorkerRegistry, granted: int, reached: list[tuple[int, int]]
):
    attached = workers.attach(worker(), line := RecordingLine())
    workers.granted(attached, slots=4, received=0)
    with workers.choosing() as choice:
        choice.reserve_slots(next(iter(workers.offers())), 3)
        workers.granted(attached, slots=granted, received=0, serial=7)
    assert line.reached == reached
    assert sum(offer.slots for offer in workers.offers()) == granted


def test_a_worker_that_drains_offers_nothing(workers: WorkerRegistry):
    one = worker()
    attached = workers.attach(one, RecordingLine())
    workers.granted(attached, slots=2, received=0)
    workers.record_heartbeat(attached, NOW, Holdings(), free=2, since_refresh=0, draining=True)
    assert not workers.offers()


def test_a_run_of_a_detached_worker_isnt_pushed(workers: WorkerRegistry):
    one = worker()
    attached = workers.attach(one, RecordingLine())
    workers.detach(attached)
    assert not workers.push(DispatchedBatch.of([running(1, one)]), [known()])


def test_an_old_stream_that_ends_late_doesnt_detach_the_new_one(workers: WorkerRegistry):
    one, line = worker(), RecordingLine()
    old = workers.attach(one, RecordingLine())
    workers.granted(workers.attach(one, line), slots=1, received=0)
    workers.detach(old)
    assert workers.push(DispatchedBatch.of([running(1, one)]), [known()])
    assert len(line.assigned) == 1


def test_an_old_stream_gets_no_message_once_there_is_a_new_one(workers: WorkerRegistry):
    old, new = RecordingLine(), RecordingLine()
    workers.attach(worker(), old)
    workers.detach(workers.attach(worker(2), RecordingLine()))
    workers.attach(worker(), new)
    workers.demand(lambda _: [QueueHead(Priority.HIGH, NOW, 3)])
    assert (len(old.demanded), len(new.demanded)) == (0, 1)


def test_demand_is_sent_when_it_changes_and_to_workers_that_attach_later(workers: WorkerRegistry):
    first, late = RecordingLine(), RecordingLine()
    workers.attach(worker(1), first)
    head = QueueHead(Priority.HIGH, NOW, 3)
    workers.demand(lambda _: [head])
    workers.demand(lambda _: [head])
    workers.attach(worker(2), late)
    assert first.demanded == [[head]]
    assert late.demanded == [[head]]


def test_an_equivalent_demand_isnt_sent_again(workers: WorkerRegistry):
    """Of a thousand each knows the age of a head to half a second."""
    few, many = RecordingLine(), RecordingLine()
    workers.attach(worker(1, slots=2), few)
    workers.attach(worker(2, slots=50), many)
    for number in range(3, 1_001):
        workers.attach(worker(number), RecordingLine())
    heads = [
        QueueHead(Priority.HIGH, NOW + timedelta(seconds=late), slots)
        for late, slots in ((0.0, 90), (0.3, 60), (0.4, 40), (0.6, 40), (0.7, 1))
    ]
    for head in heads:
        workers.demand(lambda _, head=head: [head])
    workers.demand(lambda _: [])
    assert few.demanded == [[heads[0]], [heads[3]], [heads[4]], []]
    assert many.demanded == [[heads[0]], [heads[2]], [heads[4]], []]


def test_a_few_workers_get_a_new_oldest_run_at_once(workers: WorkerRegistry):
    """By that the queues of several owners are one."""
    workers.attach(worker(), line := RecordingLine())
    heads = [QueueHead(Priority.HIGH, NOW + timedelta(seconds=at), 3) for at in (0.0, 0.01)]
    for head in heads:
        workers.demand(lambda _, head=head: [head])
    assert line.demanded == [[head] for head in heads]


def test_a_new_worker_gets_the_demand_once_and_again_only_on_changes(workers: WorkerRegistry):
    first, late = RecordingLine(), RecordingLine()
    old, new = QueueHead(Priority.HIGH, NOW, 3), QueueHead(Priority.LOW, NOW, 1)
    workers.attach(worker(1), first)
    workers.demand(lambda _: [old])
    workers.attach(worker(2), late)
    workers.demand(lambda _: [old])
    workers.demand(lambda _: [new])
    assert first.demanded == late.demanded == [[old], [new]]


def test_demand_for_one_worker_is_sent_only_to_that_worker(workers: WorkerRegistry):
    lines = {number: RecordingLine() for number in (1, 2, 3)}
    for number, line in lines.items():
        workers.attach(worker(number), line)
    head = QueueHead(Priority.HIGH, NOW, 1)
    for name in ("w2", "w3"):
        workers.demand(
            lambda one, name=name: [head] if one.worker == name else [],
            PlacementCriteria(names=frozenset({name})),
        )
    workers.demand(lambda _: [])
    assert [line.demanded for line in lines.values()] == [[], [[head], []], [[head], []]]


def test_a_worker_gets_only_the_demand_that_it_matches(workers: WorkerRegistry):
    first, second = RecordingLine(), RecordingLine()
    workers.attach(worker(1), first)
    workers.attach(replace(worker(2), labels={"gpu": "a100"}), second)
    head = QueueHead(Priority.HIGH, NOW, 3)
    workers.demand(lambda one: [head] if one.labels else [], PlacementCriteria(frozenset({"gpu"})))
    assert (first.demanded, second.demanded) == ([], [[head]])


def test_a_drained_worker_offers_no_slots_and_is_notified_once(
    workers: WorkerRegistry,
):
    line, other = RecordingLine(), RecordingLine()
    workers.granted(workers.attach(worker(1), line), slots=2, received=0)
    workers.granted(workers.attach(worker(2), other), slots=2, received=0)
    for names in ({"w1"}, {"w1", "nobody"}):
        workers.drained(names)
        assert [offer.incarnation.worker for offer in workers.offers()] == ["w2"]
    workers.drained(())
    assert len(workers.offers()) == 2
    assert (line.drained, other.drained) == ([True, False], [])


def test_a_drained_worker_that_reattaches_offers_no_slots_from_the_start(
    workers: WorkerRegistry,
):
    workers.drained({"w1"})
    line = RecordingLine()
    workers.granted(workers.attach(worker(1), line), slots=8, received=0)
    assert not workers.offers()
    assert line.drained == [True]
    again = RecordingLine()
    workers.drained(())
    workers.attach(worker(1), again, draining=True)
    assert again.drained == [False], "it had received the drain, and not its end"


def test_a_worker_notified_of_a_drain_on_another_stream_is_notified_of_its_end(
    workers: WorkerRegistry,
):
    line = RecordingLine()
    workers.attach(worker(1), line).draining = True
    workers.drained(())
    workers.drained(())
    assert line.drained == [False]


def test_demand_is_looked_up_once_for_workers_with_equal_abilities(workers: WorkerRegistry):
    for number in range(1, 6):
        workers.attach(worker(number), RecordingLine())
    workers.attach(worker(6, slots=9), RecordingLine())
    asked: list[str] = []
    workers.demand(lambda one: [asked.append(one.worker)][:0])
    assert asked == ["w1", "w6"]


def test_a_worker_without_recent_heartbeats_offers_no_slots():
    boot = [100.0]
    workers = WorkerRegistry(SetClock(), lambda _event: None, boot=lambda: boot[0])
    attached = workers.attach(worker(), RecordingLine())
    workers.granted(attached, slots=2, received=0)
    boot[0] += SILENT_AFTER
    assert len(workers.offers()) == 1
    boot[0] += 0.1
    assert not workers.offers()
    workers.record_heartbeat(attached, NOW, Holdings(), free=2, since_refresh=0, draining=False)
    assert len(workers.offers()) == 1


async def test_a_worker_with_a_silently_cut_connection_counts_as_detached() -> None:
    """P4.6: otherwise its member keeps shards that it can't dispatch, until TCP gives up."""
    boot, attachments = [100.0], list[bool]()
    workers = WorkerRegistry(SetClock(), lambda _event: None, boot=lambda: boot[0])
    workers.on_attachment(attachments.append)
    workers.elsewhere = other = OtherMember()
    one, line = worker(), RecordingLine()
    attached = workers.attach(one, line)
    workers.check_silent_workers()
    boot[0] += SILENT_AFTER + 0.1
    workers.check_silent_workers()
    assert attachments == [False, True, False]
    workers.cancel(running(1, one))
    assert len(line.cancelled) == len(other.cancelled) == 1, "by both ways"
    workers.record_heartbeat(attached, NOW, Holdings(), free=2, since_refresh=0, draining=False)
    workers.check_silent_workers()
    workers.detach(attached)
    assert attachments == [False, True, False, True, False]


def test_a_lost_incarnation_offers_no_slots_though_its_stream_is_open(workers: WorkerRegistry):
    one = worker()
    attached = workers.attach(one, RecordingLine())
    workers.granted(attached, slots=2, received=0)
    workers.lost([one.id])
    workers.granted(attached, slots=2, received=0)
    assert not workers.offers()


async def test_never_started_needs_a_heartbeat_stamped_after_start_by(workers: WorkerRegistry):
    """P4.3: before that the assignment may be on its way, or may yet start."""

    async def never_started() -> bool:
        return await workers.never_started([out]) == [out]

    one = worker()
    attached = workers.attach(one, RecordingLine())
    out = running(1, one, token=7)
    assert out.start_by is not None
    assert not await never_started()
    workers.record_heartbeat(
        attached, out.start_by, Holdings(), free=1, since_refresh=0, draining=False
    )
    assert not await never_started()
    after = out.start_by + timedelta(milliseconds=1)
    holds = [(out.key.run_id, Token(7))]
    workers.record_heartbeat(
        attached, after, Holdings.from_keys(holds), free=1, since_refresh=0, draining=False
    )
    assert not await never_started()
    another = [(out.key.run_id, Token(6))]
    workers.record_heartbeat(
        attached, after, Holdings.from_keys(another), free=1, since_refresh=0, draining=False
    )
    assert await never_started()


async def test_a_revoke_waits_for_the_answer_of_the_worker(workers: WorkerRegistry):
    """P3.8: until then it may start."""
    one, line = worker(), RecordingLine()
    workers.attach(one, line)
    out = running(1, one)
    waiting = asyncio.create_task(workers.revoke([out]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert line.revoked == [(out.key.run_id, out.token)]
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not done, "P3.8: it waits"
    workers.revoke_answered(out.key.run_id, out.token)
    async with asyncio.timeout(WAIT_TIMEOUT):
        await waiting


async def test_a_revoke_waits_no_longer_than_start_by(workers: WorkerRegistry, clock: SetClock):
    """P3.8: nor less; the worker's clock may be a little behind ours."""
    out = running(1, worker())  # attached nowhere
    assert out.start_by is not None
    clock.time = out.start_by - timedelta(milliseconds=20)
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(WAIT_TIMEOUT):
        await workers.revoke([out])
    waited = asyncio.get_running_loop().time() - began
    assert waited >= REVOKE_MARGIN, "P3.8: the worker's clock may be a little behind ours"


class OtherMember(NoRemoteWorkers):
    """The one other member, as far as it says what it has."""

    def __init__(self) -> None:
        self.cancelled: list[LiveRun] = []
        self.revoked: list[LiveRun] = []
        self.answers = False
        self.beat: LastHeartbeat | None = None
        self.beats: list[WorkerView] = []
        self.asked: list[list[int]] = []
        """The numbers of the workers of each question."""

    async def revoke(
        self, incarnation: IncarnationId, runs: Sequence[LiveRun]
    ) -> list[tuple[RunId, Token]]:
        self.revoked += runs
        return [(run.key.run_id, run.token) for run in runs] if self.answers else []

    def cancel(self, run: LiveRun, *, kill: bool) -> None:
        self.cancelled.append(run)

    async def last_heartbeat(self, incarnation: IncarnationId) -> LastHeartbeat | None:
        return self.beat

    async def views(self, away: Sequence[Incarnation]) -> list[WorkerView]:
        self.asked.append([one.id.number for one in away])
        return self.beats


@pytest.fixture
def other(workers: WorkerRegistry) -> OtherMember:
    workers.elsewhere = other = OtherMember()
    return other


async def test_a_worker_attached_elsewhere_is_asked_over_one_hop(
    workers: WorkerRegistry, other: OtherMember
):
    """P4.5: both revokes and cancels."""
    out = running(1, worker())
    other.answers = True
    async with asyncio.timeout(WAIT_TIMEOUT):
        await workers.revoke([out])
    workers.cancel(out)
    assert (other.revoked, other.cancelled) == ([out], [out])


async def test_revokes_are_sent_once_per_worker_and_a_few_at_a_time(
    workers: WorkerRegistry,
):
    """A cluster pause asks all workers for the runs that may start."""
    asked: list[int] = []
    at_once, most = 0, 0

    class Others(NoRemoteWorkers):
        async def revoke(
            self, incarnation: IncarnationId, runs: Sequence[LiveRun]
        ) -> list[tuple[RunId, Token]]:
            nonlocal at_once, most
            asked.append(len(runs))
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0)
            at_once -= 1
            return [(run.key.run_id, run.token) for run in runs]

    workers.elsewhere = Others()
    out = [running(n, worker(n % 40 + 1)) for n in range(4000)]
    tasks: set[int] = set()
    revoking = asyncio.create_task(workers.revoke(out), name="revoking")
    async with asyncio.timeout(10):
        while not revoking.done():
            tasks.add(len(asyncio.all_tasks()))
            await asyncio.sleep(0)
    assert asked == [100] * 40
    assert most == ASKED_AT_ONCE
    assert max(tasks) < 50


@pytest.mark.slow
async def test_a_revoke_waits_for_the_latest_start_by_without_an_answer(
    workers: WorkerRegistry, clock: SetClock
):
    one, line = worker(), RecordingLine()
    workers.attach(one, line)
    soon, late = running(1, one), running(2, one)
    assert soon.start_by is not None
    clock.time = soon.start_by - timedelta(milliseconds=20)
    late = replace(late, start_by=soon.start_by + timedelta(hours=1))
    waiting = asyncio.create_task(workers.revoke([late, soon]), name="waiting")
    done, _ = await asyncio.wait([waiting], timeout=0.8)
    assert not done, "the second may start for an hour"
    workers.revoke_answered(late.key.run_id, late.token)
    async with asyncio.timeout(WAIT_TIMEOUT):
        await waiting


async def test_a_worker_attached_here_is_asked_here_alone(
    workers: WorkerRegistry, other: OtherMember
):
    one, line = worker(), RecordingLine()
    workers.attach(one, line)
    out = running(1, one)
    workers.cancel(out)
    assert (line.cancelled, other.cancelled) == ([out.key.run_id], [])


async def test_heartbeats_that_another_member_received_show_what_never_started(
    workers: WorkerRegistry, other: OtherMember, clock: SetClock
):
    """P4.3: else a run whose assignment was lost would be RUNNING as long as that worker lives."""
    out = running(1, worker())
    assert out.start_by is not None
    clock.time = out.start_by + timedelta(seconds=2)
    assert await workers.never_started([out]) == []
    other.beat = LastHeartbeat(clock.time, Holdings.from_keys([(out.key.run_id, out.token)]))
    assert await workers.never_started([out]) == []
    other.beat = LastHeartbeat(clock.time, Holdings())
    assert await workers.never_started([out]) == [out]


async def test_workers_with_long_runs_dont_keep_the_others_from_being_asked_about(
    workers: WorkerRegistry, other: OtherMember, clock: SetClock
):
    """Else a run that never started on the ninth of them would be RUNNING as long as it lives."""
    out = [running(number, worker(number)) for number in range(1, MOST_ASKED + 2)]
    last = out[-1]
    assert last.start_by is not None
    clock.time = last.start_by + timedelta(seconds=2)
    long = Holdings.from_keys((run.key.run_id, run.token) for run in out[:-1])
    other.beat = LastHeartbeat(clock.time, long)
    scans = [await workers.never_started(out) for _ in range(2)]
    assert [last] in scans


async def test_a_worker_without_heartbeats_here_is_looked_up_at_other_members(clock: SetClock):
    """P4.3: a line that was cut in silence may stand for long before it breaks."""
    boot = [100.0]
    workers = WorkerRegistry(clock, lambda _event: None, boot=lambda: boot[0])
    workers.elsewhere = other = OtherMember()
    one = worker()
    workers.attach(one, RecordingLine())
    out = running(1, one)
    assert out.start_by is not None
    clock.time = out.start_by + timedelta(seconds=2)
    other.beat = LastHeartbeat(clock.time, Holdings())
    assert await workers.never_started([out]) == []
    boot[0] += SILENT_AFTER + 0.1
    assert await workers.never_started([out]) == [out]


class World:
    """A member with one worker attached, 8 runs on it; and the time."""

    def __init__(self, clock: SetClock) -> None:
        self.boot = 100.0
        self.workers = WorkerRegistry(clock, lambda _event: None, boot=lambda: self.boot)
        self.workers.elsewhere = self.other = OtherMember()
        self.attached = self.workers.attach(worker(1), RecordingLine())
        self.beat()

    def beat(self) -> None:
        self.workers.record_heartbeat(
            self.attached,
            NOW,
            Holdings(bytes(8 * 24)),
            free=2,
            since_refresh=1.5,
            draining=True,
            refusal_reason="spool rejects writes",
        )

    async def views(self, *numbers: int) -> list[WorkerView]:
        return await self.workers.views([worker(number) for number in numbers])


async def test_no_member_is_asked_about_a_thousand_workers_that_are_received_here(clock: SetClock):
    world = World(clock)
    for number in range(2, 1001):
        world.workers.attach(worker(number), RecordingLine())
    found = await world.views(*range(1, 1001))
    assert [view.incarnation.id.number for view in found] == [*range(1, 1001)]
    assert world.other.asked == []


async def test_other_members_are_asked_at_once_about_all_workers_not_attached_here(clock: SetClock):
    world = World(clock)
    world.other.beats = [
        WorkerView(worker(3), draining=True, free=0, running=4, lease_age=2.0, silent=2.0)
    ]
    here, nobodys, theirs = await world.views(1, 2, 3)
    assert world.other.asked == [[2, 3]]
    assert (here.running, here.heartbeats_missing, theirs) == (8, False, world.other.beats[0])
    assert nobodys == view_without_heartbeats(worker(2)), (
        "and never: it is live, all free, and nothing runs on it"
    )
    assert nobodys.heartbeats_missing


async def test_a_silent_worker_is_shown_with_its_last_figures_and_their_age(clock: SetClock):
    """Its lease gets older, whatever it said of it."""
    world = World(clock)
    world.boot += 2
    world.workers.granted(world.attached, slots=1, received=0)
    [view] = world.workers.workers()
    assert (view.lease_age, view.silent) == (3.5, 0), "a grant says nothing of the lease"
    world.boot += 100
    for [view] in (world.workers.workers(), await world.views(1)):
        assert (view.running, view.free, view.draining, view.heartbeats_missing) == (
            8,
            2,
            True,
            False,
        )
        assert (view.lease_age, view.silent) == (103.5, 100)
        assert view.refusal_reason == "", "the cause may have ended since"
    world.beat()
    [view] = world.workers.workers()
    assert (view.lease_age, view.refusal_reason) == (1.5, "spool rejects writes")


async def test_the_newest_report_of_a_silent_worker_counts(clock: SetClock):
    """A line that was cut in silence may stand for long before it breaks."""
    world = World(clock)
    world.boot += SILENT_AFTER + 1
    fresh = WorkerView(worker(1), draining=False, free=3, running=1, lease_age=0.5)
    world.other.beats = [fresh]
    assert await world.views(1) == [fresh]
    world.other.beats = [replace(fresh, silent=SILENT_AFTER + 2)]
    [view] = await world.views(1)
    assert view.running == 8
