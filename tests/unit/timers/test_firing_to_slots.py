"""Firing as RUNNING: which due timers get free slots, and what follows a slot that is missing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from time import process_time
from typing import Any

import pytest

from schedd.core.dispatch.placement import Need, Unable
from schedd.core.dispatch.priority_order import CLASS_STEP, last_rank
from schedd.core.dispatch.ready_queue import QueueHead
from schedd.core.ids import Id, JobId, RunId, ShardId
from schedd.core.jobs.definition import (
    CatchUp,
    CatchUpPolicy,
    Delivery,
    Match,
    Overlap,
    Placement,
    Priority,
)
from schedd.core.runs.deadlines import START_WITHIN
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import Claim, Firing, NewRun, Timer
from schedd.core.runs.pools import PoolKey
from schedd.core.runs.records import FireOutcome
from schedd.core.schedule.compiled_schedule import EverySchedule
from schedd.core.timers.cluster_pauses import Pauses
from schedd.core.timers.pre_dispatch import Lookahead
from schedd.dispatch.held_timers import HOLD
from schedd.runtime.definition_texts import CachedDefinition
from schedd.timers.fire import BATCH, ENOUGH, TO_SLOTS
from schedkit.errors import OutcomeUnknown, Unavailable
from support import firing
from support.definitions import cached_definition
from support.firing import TIMER, Herd, World
from support.runs import NOW, run, worker

AHEAD = Lookahead(timedelta(seconds=2), timedelta(seconds=1))


def job(number: int) -> JobId:
    return JobId(Id.from_int(number))


@dataclass
class Stored(Herd):
    """Timers whose rows are read again one by one."""

    async def timers(self, jobs: Collection[JobId]) -> list[Timer]:
        self.calls.append("reread")
        return [self.due[job] for job in jobs if job in self.due]


class Refusing(Stored):
    """A guard of the database refuses all steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.edited = {*self.due}

    async def fire(self, claim: Claim, firings: Sequence[Firing], switched: int = 0) -> FireOutcome:
        self.calls.append("fire")
        return FireOutcome([], [each.job_id for each in firings], frozenset())


@dataclass
class Repeating(Herd):
    """Timers that are fired again and again, as PENDING."""

    made: list[NewRun] = field(default_factory=list)

    async def fire(self, claim: Claim, firings: Sequence[Firing], switched: int = 0) -> FireOutcome:
        for step in firings:
            self.made += step.runs
            self.due[step.job_id] = self.due[step.job_id]._replace(
                due_at=step.next_due_at, nominal=step.next_nominal
            )
        return FireOutcome([], [], frozenset())


def change_jobs(world: World, changes: Callable[[int], dict[str, Any]]) -> None:
    """Change the definition of each job, by its number."""
    made = world.definitions._made

    def changed(its: JobId) -> CachedDefinition:
        entry = made(its)
        number = int.from_bytes(its, "big")
        definition = replace(entry.definition, **changes(number))
        return cached_definition(definition, entry.compiled)

    world.definitions._made = changed  # type: ignore[method-assign]


def herd(count: int, *, due: float = 0.0, **changes: Any) -> Herd:
    """So many timers, due so many seconds from now."""
    rows = Stored(count=count, **changes)
    at = NOW + timedelta(seconds=due)
    rows.due = {job: one._replace(due_at=at, nominal=at) for job, one in rows.due.items()}
    return rows


def need(world: World) -> Need:
    """The need of all jobs."""
    return world.definitions._made(job(0)).text.need


def pending(rows: Herd) -> int:
    return rows.calls.count("fire")


async def test_due_timers_take_free_slots_and_are_pushed_to_their_worker() -> None:
    rows = herd(3)
    world = World(rows)
    line = world.attach(worker(), slots=4)

    await world.after(0)

    assert {one.job_id for one in rows.sent} == {job(0), job(1), job(2)}
    assert pending(rows) == 0
    assert {sent.key.run_id for sent in line.assigned} == {one.key.run_id for one in rows.sent}
    assert len({sent.token for sent in line.assigned}) == 3
    assert len(world.run_index.running) == 3
    assert not world.run_index.held_timers
    attached = world.workers.attached(worker().id)
    assert attached is not None
    assert (attached.pushed, attached.under_way) == (3, 0)


async def test_a_herd_is_fired_into_free_slots_in_large_batches() -> None:
    """Several workers share a batch, and each frame to a worker has a cost of its own."""
    rows = herd(5 * TO_SLOTS, due=0.5)
    world = World(rows, ahead=AHEAD)
    line = world.attach(worker(slots=9 * TO_SLOTS), slots=0)
    await world.after(0)
    world.grant(worker(), 9 * TO_SLOTS)

    await world.after(0)

    assert len(line.assigned) == 5 * TO_SLOTS
    assert max(rows.batches) == TO_SLOTS > BATCH
    assert len(rows.batches) <= 12


async def test_a_batch_leaves_slots_for_the_next_while_it_is_written() -> None:
    """Workers run one batch while the owner writes the next."""
    rows = herd(4 * BATCH, due=0.5)
    world = World(rows, ahead=AHEAD)
    line = world.attach(worker(slots=4 * BATCH), slots=0)
    await world.after(0)
    world.grant(worker(), 4 * BATCH)

    await world.after(0)

    assert len(line.assigned) == 4 * BATCH
    assert max(rows.batches) == BATCH


async def test_without_a_worker_timers_are_fired_as_pending_at_once() -> None:
    rows = herd(3)
    world = World(rows)
    await world.after(0)
    assert (rows.sent, len(world.run_index.ready)) == ([], 3)


async def test_a_timer_without_a_slot_waits_for_the_next_one() -> None:
    rows = herd(3, due=0.5)
    world = World(rows, ahead=AHEAD)
    line = world.attach(worker(), slots=1)
    await world.after(0)
    assert len(line.assigned) == 1

    world.grant(worker(), 1, received=1)
    await world.after(0.1)
    world.grant(worker(), 1, received=2)
    await world.after(0.1)

    assert len(line.assigned) == 3
    assert pending(rows) == 0


async def test_timers_without_a_slot_are_fired_as_pending_soon_after_they_are_due() -> None:
    rows = herd(3, due=0.5)
    world = World(rows, ahead=AHEAD)
    line = world.attach(worker(), slots=1)
    await world.after(0)
    await world.after(0.5 + HOLD.total_seconds() / 2)
    assert (len(line.assigned), pending(rows)) == (1, 0)

    await world.after(HOLD.total_seconds() / 2)

    assert (len(line.assigned), len(world.run_index.ready)) == (1, 2)
    assert not world.run_index.held_timers


async def test_a_timer_without_a_slot_is_soon_fired_though_others_get_slots() -> None:
    """The timer needs a whole worker, and one slot becomes free with each statement."""
    rows = herd(101, due=0.5)
    world = World(rows, ahead=AHEAD)
    change_jobs(world, lambda number: {"slots": 9 if number == 100 else 1})
    line = world.attach(worker(slots=9), slots=0)
    await world.after(0)
    assert len(world.run_index.held_timers) == 101

    rows.meanwhile = lambda: world.grant(worker(slots=9), 1, received=len(line.assigned) + 1)
    world.grant(worker(slots=9), 1)
    world.clock.time += timedelta(seconds=0.5) + HOLD
    for _ in range(4):
        await world.fire.step()

    assert job(100) in {waits.job_id for waits in world.run_index.ready}
    assert line.assigned


async def test_while_enough_runs_are_ready_overdue_timers_wait_for_a_limited_time() -> None:
    rows = herd(200, each=0.01)
    world = World(rows)
    world.placeable = lambda: ENOUGH
    world.attach(worker(), slots=0)
    await world.after(0)
    await world.after(HOLD.total_seconds())
    assert 0 < len(world.run_index.ready) < 200
    fired = pending(rows)

    rows.seconds += 60
    await world.after(0.01)

    assert pending(rows) > fired


@pytest.mark.parametrize("policy", [CatchUpPolicy.NONE, CatchUpPolicy.LATEST])
async def test_a_job_of_each_second_loses_no_time_while_all_workers_are_full(
    monkeypatch: pytest.MonkeyPatch, policy: CatchUpPolicy
) -> None:
    """The step of a late timer would record times as missed."""
    monkeypatch.setattr(firing, "EVERY", EverySchedule(timedelta(seconds=1)))
    rows = Repeating(count=1)
    world = World(rows, ahead=Lookahead(timedelta(seconds=2.5), timedelta(seconds=1.5)))
    world.definitions.catch_up = CatchUp(policy)
    world.definitions.changes = {"overlap": Overlap.ALLOW}
    world.placeable = lambda: 2 * ENOUGH
    world.attach(worker(), slots=0)

    for _ in range(100):
        await world.after(0.1)

    assert {new.state for new in rows.made} == {State.PENDING}
    seconds = range(max(11, len(rows.made)))
    assert [new.due_at for new in rows.made] == [NOW + timedelta(seconds=n) for n in seconds]


@pytest.mark.parametrize(("slots", "sent"), [(2, 0), (3, 1), (9, 3)])
async def test_slots_that_waiting_runs_need_are_left_to_them(slots: int, sent: int) -> None:
    """Also slots for runs that wait to be pre-dispatched. Timers without a slot are at once ordered
    among the ready runs.
    """
    rows = herd(3)
    world = World(rows)
    line = world.attach(worker(slots=9), slots=slots)
    world.run_index.ready.add([run(501)], need(world))
    world.run_index.early.add(run(502, ready_at=NOW + timedelta(seconds=1)), need(world))

    await world.after(0)

    assert len(line.assigned) == sent
    assert len(world.run_index.ready) == 1 + 3 - sent


async def test_slots_that_runs_to_pre_dispatch_cant_use_are_free_for_due_timers() -> None:
    """Another member's head limits the ranks of the runs that the slots are for."""
    rows = herd(2)
    world = World(rows)
    line = world.attach(worker(slots=9), slots=0)
    world.grant(worker(slots=9), 9, last=last_rank(Priority.MEDIUM, NOW))
    world.run_index.early.add(run(502, ready_at=NOW + timedelta(seconds=1)), need(world))
    await world.after(0)
    assert len(line.assigned) == 2


@pytest.mark.parametrize(("slots", "sent"), [(1, 0), (2, 1), (99, 2)])
async def test_slots_beside_a_waiting_run_are_given_singly_after_a_refusal(
    slots: int, sent: int
) -> None:
    rows = herd(2)
    world = World(rows)
    line = world.attach(worker(slots=slots), slots=slots)
    attached = world.workers.attached(worker().id)
    assert attached is not None
    attached.cant_do(job(900), Unable(1, "no such handler"))
    world.workers._offering.changed(worker().id)
    world.run_index.ready.add([run(501)], need(world))
    await world.after(0)
    assert len(line.assigned) == sent


async def test_no_slot_is_taken_while_a_waiting_run_needs_several_of_one_worker() -> None:
    rows = herd(2)
    world = World(rows)
    line = world.attach(worker(slots=9), slots=9)
    world.run_index.ready.add([run(501)], replace(need(world), slots=3))
    await world.after(0)
    assert line.assigned == []


async def test_runs_that_no_free_slot_could_serve_hold_up_no_timer() -> None:
    rows = herd(2)
    world = World(rows)
    world.placeable = lambda: 0
    line = world.attach(worker(), slots=4)
    world.run_index.ready.add([run(501)], replace(need(world), action="http"))
    await world.after(0)
    assert len(line.assigned) == 2


async def test_a_timer_is_fired_as_running_by_the_lookahead_before_its_due_time() -> None:
    """P4.7: the run's start limit counts from its due time."""
    rows = herd(2, due=3)
    world = World(rows, ahead=AHEAD)
    line = world.attach(worker(), slots=4)
    await world.after(0)
    await world.after(1.5)
    assert (rows.sent, pending(rows)) == ([], 0)

    await world.after(0.51)

    assert len(line.assigned) == 2
    due = NOW + timedelta(seconds=3)
    assert {sent.start_by for sent in line.assigned} == {due + START_WITHIN}


async def test_without_pre_dispatch_timers_get_slots_when_they_are_due() -> None:
    rows = herd(2, due=1)
    world = World(rows, ahead=Lookahead(timedelta(seconds=2)))
    line = world.attach(worker(), slots=4)
    await world.after(0.9)
    assert line.assigned == []
    await world.after(0.1)
    assert len(line.assigned) == 2


async def test_a_herd_too_large_for_the_lookahead_is_fired_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("schedd.dispatch.held_timers.HERD", 3)
    rows = herd(5, due=2)
    world = World(rows, ahead=AHEAD)
    line = world.attach(worker(slots=9), slots=9)
    await world.after(0)
    assert len(line.assigned) == 5


async def test_due_timers_go_before_others_and_urgent_ones_before_less_urgent_ones() -> None:
    rows = herd(6)
    soon = NOW + timedelta(seconds=0.5)
    for number in (0, 1, 4):
        rows.due[job(number)] = rows.due[job(number)]._replace(due_at=soon, nominal=soon)
    world = World(rows, urgent={job(n) for n in (4, 5)}, ahead=AHEAD)
    world.definitions.read_of |= {job(n) for n in range(6)}
    world.attach(worker(slots=9), slots=5)

    await world.after(0)

    order = [one.job_id for one in rows.sent]
    assert order[0] == job(5)
    assert {*order[1:3]} == {job(2), job(3)}
    assert {*order[3:]} < {job(0), job(1), job(4)}


async def test_a_due_timer_gets_a_slot_before_an_urgent_one_that_isnt_due() -> None:
    """Timers of two priorities are due, so they share no statement."""
    rows = herd(3, due=0.5)
    soon = NOW + timedelta(seconds=0.9)
    rows.due[job(2)] = rows.due[job(2)]._replace(due_at=soon, nominal=soon)
    world = World(rows, urgent={job(1), job(2)}, ahead=AHEAD)
    world.definitions.read_of |= {job(n) for n in range(3)}
    world.attach(worker(), slots=0)
    await world.after(0)
    assert len(world.run_index.held_timers) == 3

    world.grant(worker(), 2)
    await world.after(0.5)

    assert [one.job_id for one in rows.sent] == [job(1), job(0)]


async def test_a_timer_that_isnt_due_goes_behind_ready_runs_of_another_member() -> None:
    rows = herd(1, due=0.9)
    world = World(rows, urgent={job(0)}, ahead=AHEAD)
    world.definitions.read_of.add(job(0))
    line = world.attach(worker(), slots=0)
    world.grant(worker(), 4, last=last_rank(Priority.MEDIUM, NOW))
    await world.after(0)
    assert line.assigned == []


async def test_a_timer_that_comes_up_waits_for_no_stream_of_timers_that_arent_due() -> None:
    """A slot becomes free during each statement."""
    rows = herd(200, due=0.5)
    world = World(rows, urgent={job(500)}, ahead=AHEAD)
    line = world.attach(worker(slots=9), slots=0)
    await world.after(0)
    assert len(world.run_index.held_timers) == 200
    rows.due[job(500)] = TIMER._replace(job_id=job(500))
    world.run_index.timers.come_up([rows.due[job(500)]], now=NOW)
    rows.meanwhile = lambda: world.grant(worker(slots=9), 1, received=len(line.assigned) + 1)
    world.grant(worker(slots=9), 1)

    for _ in range(8):
        await world.fire.step()

    assert job(500) in [one.job_id for one in rows.sent][:5]


@pytest.mark.parametrize("needs", [1, 2_000])
async def test_a_choice_among_many_needs_doesnt_block_the_loop(needs: int) -> None:
    rows = herd(2_000, due=0.5)
    world = World(rows, ahead=AHEAD)
    change_jobs(world, lambda number: {"namespace": f"n{number % needs}"})
    world.attach(worker(slots=999), slots=0)
    await world.after(0)
    held = world.run_index.held_timers
    assert len(held.needs) == needs
    world.grant(worker(slots=999), 999)
    queues = world.run_index.ready, world.run_index.early
    began = process_time()
    with world.workers.choosing() as choice:
        chosen = held.choose(BATCH, NOW, world.workers.offers(), choice, queues)
    assert len(chosen) == BATCH
    assert process_time() - began < 0.5


async def test_of_many_needs_without_slots_one_step_looks_at_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The timers of the others go with the steps that follow."""
    monkeypatch.setattr("schedd.dispatch.held_timers.LOOKS", 10)
    rows = herd(40, due=0.5)
    world = World(rows, ahead=AHEAD)
    change_jobs(world, lambda number: {"namespace": f"n{number}"})
    world.attach(worker(), slots=0)
    await world.after(0)
    world.clock.time += timedelta(seconds=0.5) + HOLD

    await world.fire.step()
    assert len(world.run_index.ready) == 10

    await world.after(0)
    assert len(world.run_index.ready) == 40


async def test_needs_without_timers_are_forgotten() -> None:
    rows = herd(30)
    world = World(rows)
    change_jobs(world, lambda number: {"namespace": f"n{number}"})
    world.attach(worker(slots=99), slots=99)
    await world.after(0)
    assert len(rows.sent) == 30
    assert world.run_index.held_timers.needs == []


async def test_timers_of_one_definition_and_time_go_together() -> None:
    """Their step is computed once, and one statement and one message take them all."""
    rows = herd(40, due=0.5)
    world = World(rows, ahead=AHEAD)
    world.definitions.one_text = True
    line = world.attach(worker(slots=99), slots=0)
    await world.after(0)
    assert len(world.run_index.held_timers) == 40

    world.grant(worker(slots=99), 99)
    await world.after(0.01)

    assert len({id(one.batch) for one in rows.sent}) == 1
    assert {one.job_id for one in rows.sent} == {job(number) for number in range(40)}
    assert len({one.key.run_id for one in rows.sent}) == 40
    assert {sent.key.run_id for sent in line.assigned} == {one.key.run_id for one in rows.sent}
    assert not world.run_index.held_timers


async def test_of_timers_that_go_together_each_takes_the_slot_of_an_offer() -> None:
    """Part of a batch waits for the next slots, in order."""
    rows = herd(7, due=0.5)
    world = World(rows, ahead=AHEAD)
    world.definitions.one_text = True
    lines = [world.attach(worker(number, slots=9), slots=0) for number in (1, 2)]
    await world.after(0)
    world.grant(worker(1, slots=9), 2)
    world.grant(worker(2, slots=9), 3)
    await world.after(0.01)
    assert [len(line.assigned) for line in lines] == [2, 3]
    assert len(world.run_index.held_timers) == 2

    world.grant(worker(1, slots=9), 9, received=2)
    await world.after(0.01)

    assert [len(line.assigned) for line in lines] == [4, 3]
    assert len({sent.key.run_id for line in lines for sent in line.assigned}) == 7


async def test_of_timers_held_together_an_edited_one_goes_by_its_new_row() -> None:
    rows = herd(3, due=0.5)
    world = World(rows, ahead=AHEAD)
    world.definitions.one_text = True
    line = world.attach(worker(), slots=0)
    await world.after(0)
    later = NOW + timedelta(seconds=60)
    rows.due[job(0)] = rows.due[job(0)]._replace(due_at=later, nominal=later)
    del rows.due[job(1)]
    world.fire.changed([job(0), job(1)])
    await world.after(0)

    world.grant(worker(), 4)
    await world.after(0.01)

    assert [one.job_id for one in rows.sent] == [job(2)]
    assert [sent.job_id for sent in line.assigned] == [job(2)]


@pytest.mark.parametrize("one_text", [True, False])
async def test_a_timer_that_is_held_again_after_its_row_was_read_goes_once(one_text: bool) -> None:
    """Its earlier place is stale, in a batch that goes to slots at the same time."""
    rows = herd(3, due=0.5)
    world = World(rows, ahead=AHEAD)
    world.definitions.one_text = one_text
    line = world.attach(worker(slots=9), slots=0)
    await world.after(0)
    world.fire.changed([job(1)])
    await world.after(0)
    held = world.run_index.held_timers
    assert [head.slots for head in held.heads(NOW, lambda _need: True)] == [4]

    world.grant(worker(slots=9), 9)
    await world.after(0.01)

    assert [one.job_id for one in rows.sent] == [job(0), job(2), job(1)]
    assert len(line.assigned) == 3
    assert not held


@pytest.mark.parametrize("one_text", [True, False])
async def test_held_timers_ask_for_slots_without_a_walk_through_them(one_text: bool) -> None:
    rows = herd(3_000, due=0.5)
    world = World(rows, ahead=AHEAD)
    world.definitions.one_text = one_text
    world.attach(worker(slots=999), slots=0)
    await world.after(0)
    held = world.run_index.held_timers
    took: list[float] = []
    for _ in range(5):
        began = process_time()
        for _ in range(20):
            [head] = held.heads(NOW, lambda _need: True)
        took.append((process_time() - began) / 20)
    assert head.slots == 3_000
    assert min(took) < 0.000_05


async def test_timers_held_together_are_fired_as_pending_together_when_overdue() -> None:
    rows = herd(60, due=0.5)
    world = World(rows, ahead=AHEAD)
    world.definitions.one_text = True
    world.attach(worker(), slots=0)
    await world.after(0)
    await world.after(0.5 + HOLD.total_seconds())
    assert len(world.run_index.ready) == 60
    assert len({waits.key.run_id for waits in world.run_index.ready}) == 60


async def test_timers_that_share_a_step_keep_the_priority_of_their_own_jobs() -> None:
    """Their definitions weren't read when the batch was formed."""
    rows = herd(3)
    world = World(rows, urgent={job(1)})
    world.attach(worker(), slots=4)
    await world.after(0)
    priorities = {one.job_id: one.batch.priority for one in rows.sent}
    assert priorities == {
        job(0): Priority.MEDIUM,
        job(1): Priority.HIGH,
        job(2): Priority.MEDIUM,
    }


async def test_an_urgent_timer_waits_for_one_batch_of_held_timers_at_most() -> None:
    rows = herd(3_000, due=0.5)
    world = World(rows, urgent={job(5_000)}, ahead=AHEAD)
    world.definitions.read_of.add(job(5_000))
    world.attach(worker(slots=9_000), slots=0)
    await world.after(0)
    assert len(world.run_index.held_timers) == 3_000

    rows.due[job(5_000)] = TIMER._replace(job_id=job(5_000))
    world.fire.changed([job(5_000)])
    world.grant(worker(), 9_000)
    await world.after(0.5)

    assert [one.job_id for one in rows.sent].index(job(5_000)) <= BATCH
    assert len(rows.sent) == 3_001


async def test_of_timers_of_equal_priority_the_soonest_due_gets_the_slot() -> None:
    rows = herd(8)
    for number in range(8):
        at = NOW + timedelta(seconds=4, milliseconds=-number)
        rows.due[job(number)] = rows.due[job(number)]._replace(due_at=at, nominal=at)
    world = World(rows)
    world.clock.time += timedelta(seconds=4)
    world.attach(worker(), slots=3)
    await world.after(0)
    assert [one.job_id for one in rows.sent] == [job(7), job(6), job(5)]


@pytest.mark.parametrize(
    "changes",
    [
        {"overlap": Overlap.BUFFER_ALL},
        {"overlap": Overlap.CANCEL_OTHER},
        {"overlap": Overlap.ALLOW, "pause_after_failures": 3},
        {"placement": Placement.PACK},
        {"placement": Placement.STICKY},
        {"prefer": (Match("zone", ("a",)),)},
        {"pool": PoolKey("p")},
        {"max_runs": 5},
        {"start_deadline": timedelta(seconds=30)},
        {"run_timeout": timedelta(seconds=30)},
        {"delivery": Delivery.AT_MOST_ONCE},
        {"generation": 2},
    ],
    ids=str,
)
async def test_a_job_with_limits_or_a_choice_of_workers_is_dispatched_from_the_ready_queue(
    changes: dict[str, Any],
) -> None:
    rows = herd(1)
    world = World(rows)
    world.attach(worker(), slots=4)
    world.definitions.changes = changes
    await world.after(0)
    assert (rows.sent, pending(rows)) == ([], 1)


@pytest.fixture
def hourly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next time of all timers is half an hour from now, so a late one has missed one time."""
    every = EverySchedule(timedelta(hours=1), phase=timedelta(minutes=30))
    monkeypatch.setattr(firing, "EVERY", every)


@pytest.mark.usefixtures("hourly")
async def test_a_late_timer_takes_a_free_slot_and_its_run_is_late() -> None:
    rows = herd(3, due=-30)
    world = World(rows)
    line = world.attach(worker(), slots=4)

    await world.after(0)

    assert (len(line.assigned), pending(rows)) == (3, 0)
    runs = [world.run_index.running[one.key.run_id] for one in rows.sent]
    assert {(run.late, run.due_at, run.ready_at) for run in runs} == {
        (True, NOW - timedelta(seconds=30), NOW)
    }
    assert {sent.start_by for sent in line.assigned} == {NOW + START_WITHIN}


@pytest.mark.usefixtures("hourly")
async def test_a_late_timer_of_a_job_that_catches_up_on_all_times_has_a_catch_up_limit() -> None:
    rows = herd(1, due=-30)
    world = World(rows)
    world.definitions.catch_up = CatchUp(CatchUpPolicy.ALL)
    world.attach(worker(), slots=4)
    await world.after(0)
    assert (rows.sent, pending(rows)) == ([], 1)


async def test_a_timer_that_has_missed_several_times_is_fired_as_pending() -> None:
    rows = herd(1, due=-30)
    world = World(rows)
    world.definitions.catch_up = CatchUp(CatchUpPolicy.LATEST)
    world.attach(worker(), slots=4)
    await world.after(0)
    assert (rows.sent, pending(rows)) == ([], 1)


@pytest.mark.usefixtures("hourly")
async def test_late_timers_go_one_class_lower_the_first_due_first() -> None:
    """As late runs in the ready queue: as if they were of the class below, and due now."""
    rows = herd(6)
    urgent, punctual, low = job(0), job(1), job(2)
    for number, late in (0, 40), (1, 0.2), (2, 0.2), (3, 30), (4, 60), (5, 50):
        at = NOW - timedelta(seconds=late)
        rows.due[job(number)] = rows.due[job(number)]._replace(due_at=at, nominal=at)
    world = World(rows, urgent={urgent})
    change_jobs(world, lambda number: {"priority": Priority.LOW} if job(number) == low else {})
    world.definitions.read_of |= {*rows.due}
    world.attach(worker(slots=9), slots=0)
    for _ in range(4):
        await world.step()
    assert len(world.run_index.held_timers) == 6

    for received in range(6):
        world.grant(worker(slots=9), 1, received=received)
        await world.fire.step()

    order = [one.job_id for one in rows.sent]
    assert order == [punctual, urgent, low, job(4), job(5), job(3)]


@pytest.mark.usefixtures("hourly")
@pytest.mark.parametrize("slots", [2, 1])
async def test_a_held_late_timer_waits_for_no_stream_of_punctual_timers(slots: int) -> None:
    """With a free slot, it is fired as RUNNING. Without one, it is overdue after `HOLD`."""
    rows = herd(1, due=-30)
    world = World(rows)
    world.attach(worker(slots=99), slots=0)
    await world.step()
    assert len(world.run_index.held_timers) == 1

    for number in range(1, 9):
        now = world.clock.time = world.clock.time + HOLD / 4
        rows.due[job(number)] = timer = TIMER._replace(job_id=job(number), due_at=now, nominal=now)
        world.run_index.timers.come_up([timer], now=now)
        await world.fire.step()
        world.grant(worker(slots=99), slots, received=len(rows.sent))

    assert job(0) not in rows.due
    assert [one.job_id for one in rows.sent].count(job(0)) == (slots > 1)


@pytest.mark.usefixtures("hourly")
async def test_late_timers_ask_for_slots_behind_punctual_runs_of_another_member() -> None:
    rows = herd(2, due=-30)
    world = World(rows)
    line = world.attach(worker(), slots=0)
    await world.step()
    [head] = world.run_index.held_timers.heads(NOW, lambda _need: True)
    assert (head.priority, head.waiting_since) == (Priority.MEDIUM, NOW + CLASS_STEP)

    world.grant(worker(), 4, last=last_rank(Priority.MEDIUM, NOW))
    await world.fire.step()
    assert line.assigned == []
    world.grant(worker(), 4, last=last_rank(head.priority, head.waiting_since))
    await world.fire.step()
    assert len(line.assigned) == 2


@pytest.mark.usefixtures("hourly")
async def test_a_late_timer_without_a_slot_is_soon_fired_as_pending_and_stays_late() -> None:
    """Its run is late from the first look on, however long the timer was held."""
    rows = herd(2, due=-30)
    world = World(rows)
    world.attach(worker(), slots=0)
    await world.after(0)
    assert len(world.run_index.held_timers) == 2
    await world.after(HOLD.total_seconds() / 2)
    assert pending(rows) == 0

    await world.after(HOLD.total_seconds() / 2)

    assert {(run.late, run.ready_at) for run in world.run_index.ready} == {(True, NOW)}
    assert len(world.run_index.ready) == 2


@pytest.mark.usefixtures("hourly")
async def test_a_late_time_inside_the_window_stays_inside_while_its_timer_is_held() -> None:
    """A pause of the cluster makes its first step invalid."""
    rows = herd(1, due=-30)
    world = World(rows)
    world.definitions.catch_up = CatchUp(CatchUpPolicy.LATEST, timedelta(seconds=30.2))
    world.attach(worker(), slots=0)
    await world.after(0)
    world.run_index.held_timers.release(world.clock.now())
    world.clock.time += timedelta(seconds=0.4)
    await world.fire.step()

    world.grant(worker(), 4)
    await world.after(0)

    [sent] = rows.sent
    assert sent.batch.step.runs[0].due_at == NOW - timedelta(seconds=30)


@pytest.mark.usefixtures("hourly")
async def test_late_timers_that_are_no_longer_held_come_up_behind_timers_that_are_due_now() -> None:
    """The cluster was paused and resumed while they waited for slots."""
    rows = herd(3, due=-30)
    due_now = rows.due[job(2)] = rows.due[job(2)]._replace(due_at=NOW, nominal=NOW)
    world = World(rows)
    world.attach(worker(), slots=0)
    await world.after(0)
    assert len(world.run_index.held_timers) == 3

    world.run_index.held_timers.release(world.clock.now())

    assert world.run_index.timers.pop_due(world.clock.now(), 1) == [due_now]


@pytest.mark.usefixtures("hourly")
@pytest.mark.parametrize("stored", [True, False])
async def test_a_late_timer_in_a_commit_in_doubt_goes_once_more_only_if_its_row_says_so(
    stored: bool,
) -> None:
    """P1.4"""
    rows = herd(2, due=-30, fails=[OutcomeUnknown("no answer")])
    world = World(rows)
    world.attach(worker(), slots=4)
    before = dict(rows.due)
    with pytest.raises(OutcomeUnknown):
        await world.after(0)
    rows.due = {} if stored else before

    await world.after(0)

    assert len(rows.sent) == (2 if stored else 4)
    assert {one.batch.step.due_at for one in rows.sent} == {NOW - timedelta(seconds=30)}
    assert not world.run_index.timers


@pytest.mark.usefixtures("hourly")
async def test_late_timers_that_their_owner_held_are_fired_once_by_the_next_owner() -> None:
    """P3.4: the earlier owner gets slots after it lost the shard."""
    rows = herd(3, due=-30)
    before, after = World(rows), World(rows)
    line, other = before.attach(worker(), slots=0), after.attach(worker(), slots=4)
    await before.after(0)
    assert len(before.run_index.held_timers) == 3

    before.run_index.ownership.drop([TIMER.shard])
    await after.after(0)
    before.grant(worker(), 4)
    await before.after(HOLD.total_seconds())

    assert (len(other.assigned), line.assigned) == (3, [])
    assert (len(rows.sent), pending(rows)) == (3, 0)


async def test_a_run_beside_another_of_its_job_waits_in_the_ready_queue() -> None:
    """P3.6"""
    rows = herd(2, beside={job(1)})
    world = World(rows)
    line = world.attach(worker(), slots=4)

    await world.after(0)

    assert [sent.job_id for sent in line.assigned] == [job(0)]
    assert [waits.job_id for waits in world.run_index.ready] == [job(1)]
    attached = world.workers.attached(worker().id)
    assert attached is not None
    assert (attached.pushed, attached.under_way) == (1, 0)


async def test_nothing_is_pushed_while_the_commit_is_in_doubt() -> None:
    """P1.4: the rows say what happened; a scan finds the run, and it never started."""
    rows = herd(2, fails=[OutcomeUnknown("no answer")])
    world = World(rows)
    line = world.attach(worker(), slots=4)
    with pytest.raises(OutcomeUnknown):
        await world.after(0)
    assert line.assigned == []
    assert len(world.run_index.running) == 0
    attached = world.workers.attached(worker().id)
    assert attached is not None
    assert attached.available == 4

    await world.after(0)

    assert "reread" in rows.calls
    assert not world.run_index.timers
    assert line.assigned == []


async def test_nothing_is_fired_as_running_once_trust_has_passed() -> None:
    """P1.7"""
    rows = herd(2)
    world = World(rows, trusted=False)
    line = world.attach(worker(), slots=4)
    with pytest.raises(Exception, match="lease"):
        await world.after(0)
    assert (rows.sent, line.assigned) == ([], [])


async def test_a_timer_that_was_edited_is_read_again_and_not_pushed() -> None:
    """P3.4"""
    rows = herd(2, edited={job(1)})
    world = World(rows)
    line = world.attach(worker(), slots=4)
    await world.step()
    await world.step()
    await world.step()
    assert [sent.job_id for sent in line.assigned] == [job(0)]
    assert "reread" in rows.calls


async def test_a_held_timer_that_was_edited_or_whose_shard_was_lost_gets_no_slot() -> None:
    rows = herd(3, due=0.5)
    world = World(rows, ahead=AHEAD)
    line = world.attach(worker(), slots=0)
    await world.after(0)
    assert len(world.run_index.held_timers) == 3
    gone = rows.due.pop(job(1))
    world.fire.changed([gone.job_id])
    await world.after(0)

    world.run_index.ownership.drop({ShardId(0)})
    world.grant(worker(), 4)
    await world.after(0.1)

    assert (line.assigned, rows.sent) == ([], [])


async def test_a_held_timer_whose_row_changed_goes_by_its_new_row() -> None:
    rows = herd(1, due=0.5)
    world = World(rows, ahead=AHEAD)
    line = world.attach(worker(), slots=0)
    await world.after(0)
    rows.due[job(0)] = rows.due[job(0)]._replace(generation=2)
    world.definitions.changes = {"generation": 2}
    world.fire.changed([job(0)])
    await world.after(0)

    world.grant(worker(), 1)
    await world.after(0.01)

    assert [one.timer.generation for one in rows.sent] == [2]
    assert len(line.assigned) == 1


async def test_after_a_pause_of_the_cluster_held_timers_are_planned_again() -> None:
    """P3.11: a step is computed with the pauses of its time."""
    rows = herd(2, due=0.5)
    world = World(rows, ahead=AHEAD)
    line = world.attach(worker(), slots=0)
    await world.after(0)
    rows.switched = 2
    world.cluster_pause.pauses = Pauses(switched=2)

    world.grant(worker(), 4)
    await world.after(0.01)

    assert len(line.assigned) == 2
    assert not world.run_index.held_timers


async def test_slots_for_ranks_above_another_members_head_are_given_singly() -> None:
    """Of a worker that two members compete for."""
    rows = herd(2)
    world = World(rows)
    line = world.attach(worker(), slots=0)
    world.grant(worker(), 4, last=last_rank(Priority.MEDIUM, NOW))
    await world.after(0)
    assert len(line.assigned) == 2

    behind = herd(2)
    world = World(behind)
    line = world.attach(worker(), slots=0)
    world.grant(worker(), 4, last=last_rank(Priority.HIGH, NOW))
    await world.after(0)
    await world.after(HOLD.total_seconds())
    assert line.assigned == []
    assert len(world.run_index.ready) == 2


async def test_held_timers_ask_workers_for_slots() -> None:
    """Due timers ask by their priority, others as LOW ones, and only by the lookahead."""
    rows = herd(6, due=0.5)
    for number, due in ((3, 1.4), (4, 1.4), (5, 1.9)):
        at = NOW + timedelta(seconds=due)
        rows.due[job(number)] = rows.due[job(number)]._replace(due_at=at, nominal=at)
    world = World(rows, ahead=AHEAD)
    world.attach(worker(), slots=0)
    await world.after(0)
    held, due = world.run_index.held_timers, NOW + timedelta(seconds=0.5)

    assert held.heads(NOW, lambda _need: True) == [QueueHead(Priority.LOW, due, 3)]
    assert held.heads(due, lambda _need: True) == [
        QueueHead(Priority.MEDIUM, due, 3),
        QueueHead(Priority.LOW, NOW + timedelta(seconds=1.4), 2),
    ]
    assert held.heads(due, lambda _need: False) == []


async def test_dispatch_tells_workers_when_held_timers_come_and_go() -> None:
    rows = herd(3, due=0.5)
    world = World(rows, ahead=AHEAD)
    counts: list[int] = []
    world.fire.on_ready(lambda: counts.append(len(world.run_index.held_timers)))
    line = world.attach(worker(), slots=0)
    await world.after(0)
    assert counts == [3]

    world.grant(worker(), 4)
    await world.after(0.01)

    assert len(line.assigned) == 3
    assert counts == [3, 0]


async def test_a_batch_that_times_out_is_tried_again_with_fewer_timers() -> None:
    rows = herd(600, due=0.5)
    world = World(rows, ahead=AHEAD)
    world.attach(worker(slots=999), slots=0)
    await world.after(0)
    world.grant(worker(slots=999), 999)
    await world.fire.step()
    await world.fire.step()
    rows.meanwhile = lambda: setattr(rows, "seconds", rows.seconds + 3.0)
    rows.fails = [Unavailable("statement timeout")]

    with pytest.raises(Unavailable):
        await world.fire.step()
    await world.fire.step()

    assert rows.batches == [50, 100, 200, 50]


async def test_all_timers_that_were_refused_wait_before_they_are_tried_again() -> None:
    """A step fires held timers and others; a guard of the database rejects both batches."""
    rows = Refusing(count=2)
    world = World(rows)
    world.attach(worker(), slots=0)
    world.run_index.timers.come_up([rows.due[job(0)]], now=NOW)
    await world.fire.step()
    assert len(world.run_index.held_timers) == 1
    world.definitions.changes = {"run_timeout": timedelta(seconds=30)}  # job 1 isn't held
    world.run_index.timers.come_up([rows.due[job(1)]], now=NOW)
    world.grant(worker(), 4)
    await world.fire.step()

    calls = len(rows.calls)
    await world.after(0)
    assert not any("fire" in call for call in rows.calls[calls:])
    await world.after(0.51)
    assert pending(rows) == 2


async def test_a_run_that_cant_be_pushed_is_given_back() -> None:
    """Its worker is attached nowhere by the time of the COMMIT."""
    rows = herd(1)
    world = World(rows)
    world.attach(worker(), slots=4)
    given: list[RunId] = []

    async def give_back(claim: object, unstarted: list[Any]) -> list[Any]:
        given.extend(one.key.run_id for one in unstarted)
        return [replace(world.run_index.running[given[0]], state=State.PENDING)]

    rows.give_back = give_back  # type: ignore[attr-defined]
    attached = world.workers.attached(worker().id)
    assert attached is not None
    rows.meanwhile = lambda: world.workers.detach(attached)
    await world.after(0)
    assert given == [rows.sent[0].key.run_id]
    assert len(world.run_index.ready) == 1
