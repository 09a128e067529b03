"""Handing out: who goes, who waits, and that nobody is held up or forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from schedd.core.batch_size import LEAST
from schedd.core.ids import JobId, ShardId, Token
from schedd.core.labels import Match
from schedd.core.late import LateLimits
from schedd.core.lifecycle import State
from schedd.core.model import (
    Assigned,
    CatchUp,
    CatchUpPolicy,
    Claim,
    Draft,
    LiveRun,
    Placement,
    Priority,
)
from schedd.core.pauses import NO_PAUSES, Pause, Pauses
from schedd.core.placement import Unable
from schedd.core.pools import PoolKey
from schedd.core.ready_queue import Head
from schedd.core.records import Assignments, Unstarted
from schedd.owner import late_runs
from schedd.owner.broadcasts import AT_ONCE as BROADCASTS_AT_ONCE
from schedd.owner.broadcasts import LOOKS as BROADCASTS_LOOKS
from schedd.owner.dispatch import MANY
from schedd.owner.elsewhere import Nowhere
from schedd.owner.wordings import Known
from schedkit.errors import OutcomeUnknown, Unavailable
from support.dispatching import SHELL, World, of
from support.runs import NOW, RecordingLine, run, worker
from support.wait import PATIENCE


async def test_runs_that_no_worker_can_do_hold_nobody_up_and_ask_for_no_slots():
    world = World()
    line = world.attach(worker(), grant=2)
    strange = replace(SHELL, action="python", handler="nobody has it")
    world.definitions.jobs = {run(number).job_id: strange for number in range(1, 3_001)}
    world.board.put_runs([of(number, number, waited=60) for number in range(1, 3_001)], NOW)
    world.board.put_runs([of(9_000, 9_000)], NOW)

    await world.settle()

    assert world.handed() == {9_000}
    assert not any(line.demanded[-1:])
    assert len(world.board.ready) == 3_000


async def test_a_run_goes_to_who_hasnt_refused_its_job_though_another_has_more_slots():
    world = World()
    old, new = world.attach(worker(1), grant=3), world.attach(worker(2), grant=1)
    world.workers.unable(worker(1).id, run(1).job_id, Unable(1))
    world.board.put_runs([of(1, 1)], NOW)
    await world.settle()
    assert (len(old.assigned), len(new.assigned)) == (0, 1)
    world.board.put_runs([of(1, 2)], NOW)
    await world.settle()
    assert len(old.assigned) == 1, "there is nobody else"


async def test_while_the_cluster_is_paused_nobody_is_asked_for_slots_and_nothing_is_drafted():
    world = World()
    line = world.attach(worker(), grant=2)
    world.board.put_runs([of(1, 1), of(1, 2), of(1, 3)], NOW)
    await world.dispatch.step()
    assert line.demanded[-1], "the third waits for a slot"
    world.brake.pauses = Pauses(1, (Pause(NOW, "ops"),))
    world.board.put_runs([of(1, 4)], NOW)
    line.demanded.clear()
    drafted = len(world.rows.drafts)

    await world.settle()

    assert len(world.rows.drafts) == drafted
    assert not any(line.demanded[-1:])
    world.brake.pauses = NO_PAUSES
    world.workers.granted(next(iter(world.workers._attached.values())), 4, received=2)
    await world.settle()
    assert world.handed() == {1, 2, 3, 4}


async def test_a_run_that_a_scan_puts_back_while_definitions_are_read_is_drafted_once(
    monkeypatch: pytest.MonkeyPatch,
):
    """Of two drafts of one run the second would end it, or take a slot for nothing."""
    world = World()
    world.attach(worker(slots=8), grant=8)
    strange = replace(SHELL, action="python", handler="nobody has it")
    world.definitions.jobs = {run(2).job_id: strange}
    waiting = [of(1, 1, waited=60), of(2, 2, waited=60)]
    read = world.definitions.newest

    async def scanned(jobs: Collection[JobId]) -> dict[JobId, Known]:
        world.board.put_runs(waiting, NOW)
        return await read(jobs)

    monkeypatch.setattr(world.definitions, "newest", scanned)
    world.board.put_runs(waiting, NOW)
    await world.dispatch.step()
    assert [draft.key for draft in world.rows.drafts] == [waiting[0].key]


async def test_a_run_of_many_slots_asks_for_all_of_them():
    world = World()
    line = world.attach(worker(slots=4), grant=1)
    world.definitions.default = replace(SHELL, slots=4)
    world.board.put_runs([of(1, 1)], NOW)

    await world.settle()

    assert world.handed() == set()
    assert line.demanded[-1] == [Head(Priority.MEDIUM, NOW, 4, least=4)]


def one_at_a_time() -> World:
    """A worker with room, and a job that may have one run under way."""
    world = World()
    world.attach(worker(slots=8), grant=4)
    world.definitions.default = replace(SHELL, overlap_limit=1)
    world.rows.limits = {run(1).job_id: 1}
    return world


async def test_a_run_over_its_jobs_limit_is_held_until_one_of_its_job_is_gone():
    world = World()
    line = world.attach(worker(slots=8), grant=4)
    world.definitions.default = replace(SHELL, overlap_limit=1)
    job = run(1).job_id
    world.rows.limits = {job: 1}
    world.board.put_runs([of(1, 1, waited=9), of(1, 2, waited=8), of(1, 3, waited=7)], NOW)

    await world.settle()
    assert world.handed() == {1}
    assert not any(line.demanded), "what may not start asks for no slots"
    tried = len(world.rows.drafts)
    world.board.put_runs([of(1, 2, waited=8), of(1, 3, waited=7)], NOW)  # a scan
    await world.settle()
    assert len(world.rows.drafts) == tried

    world.rows.admitted[job] = 0
    assert world.board.forget(of(1, 1).key.run_id, job) == 1
    await world.settle()
    assert world.handed() == {1, 2}


async def test_one_that_goes_while_the_others_are_judged_by_rows_of_before_lets_the_oldest_go():
    world, job = one_at_a_time(), run(1).job_id
    world.board.put_runs([of(1, 1)], NOW)
    await world.settle()
    world.board.put_runs([of(1, 3, waited=7), of(1, 2, waited=8)], NOW)

    def ended() -> None:
        world.rows.meanwhile = lambda: None
        world.rows.admitted[job] = 0
        assert world.board.forget(of(1, 1).key.run_id, job) == 0, "nobody is held yet"

    world.rows.meanwhile = ended
    await world.settle()
    assert world.handed() == {1, 2}
    assert world.board.held == [job]
    tried = len(world.rows.drafts)
    await world.settle()
    assert len(world.rows.drafts) == tried, "it lets one of them go, once"


async def test_one_that_goes_meanwhile_lets_the_oldest_go_before_one_that_is_held_already():
    """The rows let the oldest go alone: who is tried before it is held again, and nobody runs."""
    world, job = one_at_a_time(), run(1).job_id
    world.board.put_runs([of(1, 1)], NOW)
    await world.settle()
    world.board.hold(of(1, 3, waited=7))
    world.board.put_runs([of(1, 2, waited=8)], NOW)

    def ended() -> None:
        world.rows.meanwhile = lambda: None
        world.rows.admitted[job] = 0
        world.board.forget(of(1, 1).key.run_id, job)

    world.rows.meanwhile = ended
    await world.settle()
    assert world.handed() == {1, 2}
    assert world.board.held == [job]


async def test_a_held_run_is_tried_again_though_nobody_said_that_one_is_gone():
    world, job = one_at_a_time(), run(1).job_id
    world.rows.limits = {job: 0}
    world.board.put_runs([of(1, 1)], NOW)
    await world.settle()
    assert world.board.held == [job]

    world.rows.limits = {job: 1}
    world.dispatch._try_held_at = 0.0
    await world.settle()
    assert world.handed() == {1}


async def test_a_draft_from_an_old_definition_is_made_anew_at_once():
    world = World()
    world.attach(worker(), grant=1)
    job = run(1).job_id
    world.rows.generations = {job: 2}
    world.definitions.stale = {job: SHELL}
    world.definitions.jobs = {job: replace(SHELL, generation=2)}
    world.board.put_runs([of(1, 1)], NOW)

    await world.settle()

    assert [draft.generation for draft in world.rows.drafts] == [1, 2]
    assert world.handed() == {1}


async def test_an_edit_that_nobody_told_of_still_reaches_what_nobody_can_do():
    world = World()
    world.attach(worker(), grant=1)
    job = run(1).job_id
    world.definitions.stale = {job: replace(SHELL, action="python", handler="old")}
    world.definitions.jobs = {job: SHELL}
    world.board.put_runs([of(1, 1)], NOW)
    await world.settle()
    assert world.handed() == set()

    world.dispatch._unsort_at = 0.0
    await world.settle()
    assert world.handed() == {1}


async def test_a_hundred_thousand_that_wait_cost_a_round_nothing():
    world = World()
    world.attach(worker(slots=1), grant=0)
    world.board.put_runs([of(number, number) for number in range(1, 100_001)], NOW)
    looked = 0

    class Counting(dict[Any, Any]):
        def values(self) -> Any:
            nonlocal looked
            looked += 1
            return super().values()

    for line in world.board.ready._lines.values():
        line.runs = Counting(line.runs)
    for _ in range(10):
        await world.dispatch.step()
    assert looked == 0


@pytest.mark.parametrize(("waiting", "together"), [(MANY, 2), (10, 12)])
async def test_while_much_is_ready_what_is_urgent_is_written_without_the_rest(
    waiting: int, together: int
) -> None:
    """The rest takes its time; with little there is no rest to speak of."""
    world = World()
    world.attach(worker(slots=64), grant=64)
    world.board.put_runs([of(number, number) for number in range(1, waiting + 1)], NOW)
    urgent = [replace(of(n, n), priority=Priority.HIGH) for n in (9001, 9002)]
    world.board.put_runs(urgent, NOW)
    await world.dispatch.step()
    assert len(world.handed()) == together
    assert world.handed() >= {9001, 9002}
    await world.settle()
    assert len(world.handed()) == min(64, waiting + 2), "and the rest follows at once"


async def test_who_waits_beside_free_slots_waits_for_one_batch_however_many_are_urgent() -> None:
    world = World()
    world.attach(worker(slots=64), grant=64)
    world.board.put_runs([of(number, number) for number in range(1, MANY + 1)], NOW)
    for urgent in (9001, 9002):
        world.board.put_runs([replace(of(urgent, urgent), priority=Priority.HIGH)], NOW)
        await world.dispatch.step()
        assert urgent in world.handed()
    assert len(world.handed()) > 2


async def test_what_waits_for_a_handler_that_nobody_has_isnt_placeable():
    world = World()
    world.attach(worker(), grant=1)
    strange = replace(SHELL, action="python", handler="nobody has it")
    world.definitions.jobs = {run(number).job_id: strange for number in range(1, 11)}
    world.board.put_runs([of(number, number, waited=60) for number in range(1, 11)], NOW)
    world.board.put_runs([of(number, number) for number in range(11, 14)], NOW)

    await world.settle()

    assert world.handed() == {11}
    assert (len(world.board.ready), world.dispatch.placeable()) == (12, 2)


def test_what_is_gone_from_the_rows_leaves_the_board():
    world = World()
    board = world.board
    board.put_runs([of(1, 1), of(2, 2)], NOW)
    board.hold(of(3, 3))
    far = replace(of(4, 4), ready_at=NOW + timedelta(hours=1), state=State.RETRYING)
    board.put_runs([far], NOW)

    standing = board.standing(NOW + timedelta(seconds=10))

    assert {run.key.run_id.int for run in standing} == {1, 2, 3}
    for one in standing:
        board.forget(one.key.run_id, one.job_id)
    assert len(board.ready) == 0
    assert board.held == []


async def test_what_may_not_have_been_committed_is_pushed_to_nobody() -> None:
    """P1.4: its worker would start under a token that the row may lack."""
    world = World()
    line = world.attach(worker(), grant=4)
    world.board.put_runs([of(1, 1)], NOW)
    world.rows.fails.append(OutcomeUnknown("no answer to COMMIT"))

    with pytest.raises(Unavailable):
        await world.dispatch.step()

    assert line.assigned == []
    assert world.board.running == {}
    assert len(world.rows.drafts) == 1


async def test_what_takes_too_long_for_the_database_is_tried_again_by_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same batch would fail for ever, and nothing of this member's start."""
    world = World()
    world.attach(worker(), grant=2_000)
    world.board.put_runs([of(n, n) for n in range(1, 2_001)], NOW)
    for _ in range(4):
        await world.dispatch.step()
    now = 1_000.0
    monkeypatch.setattr("schedd.owner.dispatch.boottime", lambda: now)

    def slow() -> None:
        nonlocal now
        now += 6.0

    world.rows.meanwhile = slow
    world.rows.fails.append(Unavailable("it took too long"))
    before = len(world.rows.drafts)
    with pytest.raises(Unavailable):
        await world.dispatch.step()
    failed = len(world.rows.drafts) - before
    world.rows.meanwhile = lambda: None
    await world.dispatch.step()

    assert failed >= 8 * LEAST
    assert len(world.rows.drafts) - before - failed == LEAST


async def test_what_is_being_written_when_a_worker_grants_less_is_told_and_pushed() -> None:
    world, one = World(), worker()
    line = world.attach(one, grant=4)
    world.board.put_runs([of(1, 1), of(2, 2)], NOW)
    world.rows.meanwhile = lambda: world.grant(one, 1, serial=3)
    await world.dispatch.step()
    assert line.reached == [(3, 2)]
    assert world.handed() == {1, 2}
    assert not world.workers.offers()


async def test_what_is_not_committed_after_a_worker_has_granted_less_is_let_go_of() -> None:
    """Else its slots would be kept for nobody."""
    world, one = World(), worker()
    line = world.attach(one, grant=4)
    world.board.put_runs([of(1, 1), of(2, 2)], NOW)
    world.rows.meanwhile = lambda: world.grant(one, 1, serial=3)
    world.rows.fails.append(OutcomeUnknown("no answer to COMMIT"))
    with pytest.raises(Unavailable):
        await world.dispatch.step()
    assert line.reached == [(3, 2), (3, 0)]
    assert [offer.slots for offer in world.workers.offers()] == [1]


async def test_a_step_that_is_cancelled_leaves_nothing_under_way() -> None:
    world, one = World(), worker()
    world.attach(one, grant=4)
    world.board.put_runs([of(1, 1)], NOW)
    writing = asyncio.Event()

    async def stuck(*_: object) -> Assignments:
        writing.set()
        await asyncio.Event().wait()
        raise AssertionError("it is never done")

    world.rows.assign = stuck  # type: ignore[method-assign]  # a database that hangs
    step = asyncio.create_task(world.dispatch.step(), name="step")
    await asyncio.wait_for(writing.wait(), PATIENCE)
    assert [offer.slots for offer in world.workers.offers()] == [3]
    step.cancel()
    await asyncio.gather(step, return_exceptions=True)
    assert [offer.slots for offer in world.workers.offers()] == [4]


async def test_what_is_withdrawn_while_definitions_are_read_is_used_for_no_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker was told that nothing is on its way, and has given the slot to another member."""
    world, one = World(), worker()
    line = world.attach(one, grant=4)
    read = world.definitions.newest

    async def withdrawn(jobs: Collection[JobId]) -> dict[JobId, Known]:
        world.grant(one, 0, serial=3)
        return await read(jobs)

    monkeypatch.setattr(world.definitions, "newest", withdrawn)
    world.board.put_runs([of(1, 1)], NOW)
    await world.settle()
    assert line.reached == [(3, 0)]
    assert world.rows.drafts == []
    world.grant(one, 4)
    monkeypatch.undo()
    await world.settle()
    assert world.handed() == {1}


async def test_a_slot_granted_while_definitions_are_read_isnt_for_who_has_just_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What waits for just that worker goes first; the fresh one was tried by others' slots."""
    world = World()
    picky = replace(SHELL, require=(Match("disk", ("ssd",)),))
    world.definitions.jobs = {run(1).job_id: picky, run(2).job_id: picky}
    world.attach(worker(1), grant=1)
    wanted = replace(worker(2), labels={"disk": "ssd"})
    world.attach(wanted, grant=0)
    world.board.put_runs([of(1, 1, waited=9)], NOW)
    await world.settle()
    read = world.definitions.newest

    async def granted(jobs: Collection[JobId]) -> dict[JobId, Known]:
        world.grant(wanted, 1)
        return await read(jobs)

    monkeypatch.setattr(world.definitions, "newest", granted)
    world.board.put_runs([of(2, 2)], NOW)
    await world.settle()
    assert world.handed() == {1}


async def test_what_was_handed_to_a_worker_that_left_meanwhile_goes_over_one_hop_or_back() -> None:
    """P4.5"""
    world = World()
    given_back: list[Unstarted] = []
    passed_on: list[LiveRun] = []

    class OtherMember(Nowhere):
        async def assign(self, handed: Sequence[tuple[Assigned, Known]]) -> list[Assigned]:
            first, *rest = [assigned for assigned, _ in handed]
            passed_on.append(first.run)
            return rest

    async def give_back(claim: Claim, unstarted: Sequence[Unstarted]) -> list[LiveRun]:
        given_back.extend(unstarted)
        return []

    assign = world.rows.assign

    async def leaving(
        claim: Claim, drafts: Sequence[Draft], next_token: Callable[[ShardId], Token]
    ) -> Assignments:
        world.workers.detach(attached)
        return await assign(claim, drafts, next_token)

    world.workers.elsewhere = OtherMember()
    attached = world.workers.attach(worker(), RecordingLine())
    world.workers.granted(attached, 4, received=0)
    world.rows.assign = leaving  # type: ignore[method-assign]  # who leaves meanwhile
    world.rows.give_back = give_back  # type: ignore[attr-defined]  # here alone
    world.board.put_runs([of(1, 1), of(2, 2)], NOW)

    await world.dispatch.step()

    assert len(passed_on) == len(given_back) == 1
    assert given_back[0].key != passed_on[0].key


async def test_what_a_scan_read_while_it_was_handed_out_asks_for_no_slot_any_more():
    """A slot granted for a HIGH run that runs already would go to this member's LOW one, before
    the HIGH ones of others.
    """
    world = World()
    line = world.attach(worker(), grant=1)
    high, low = replace(of(1, 1), priority=Priority.HIGH), replace(of(2, 2), priority=Priority.LOW)
    world.board.put_runs([high, low], NOW)
    world.rows.meanwhile = lambda: world.board.put_runs([high, low], NOW)

    await world.settle()

    assert world.handed() == {1}
    assert [head.priority for head in line.demanded[-1]] == [Priority.LOW]


async def test_a_slot_granted_for_a_high_run_that_another_worker_took_isnt_used_for_a_low_one():
    """The HIGH run of another member waits for it: this one tells what it has left."""
    world = World()
    first, second = worker(1, name="w1"), worker(2, name="w2")
    world.attach(first, grant=1)
    line = world.attach(second, grant=0)
    high, low = replace(of(1, 1), priority=Priority.HIGH), replace(of(2, 2), priority=Priority.LOW)
    world.board.put_runs([high, low], NOW)
    await world.settle()
    assert world.handed() == {1}

    world.grant(second, 1, before=Head(Priority.HIGH, NOW, 1))
    await world.settle()

    assert world.handed() == {1}
    assert line.demanded[-1] == [Head(Priority.LOW, NOW, 1)]
    assert len(world.rows.drafts) == 1, "nothing was tried in vain"
    world.grant(second, 1)
    await world.settle()
    assert world.handed() == {1, 2}


async def test_a_slot_is_used_for_whatever_goes_before_what_waits_at_other_members():
    world = World()
    one = worker()
    world.attach(one, grant=0)
    aged = replace(of(1, 1, waited=180), priority=Priority.LOW)
    fresh = replace(of(2, 2), priority=Priority.HIGH)
    world.board.put_runs([aged, fresh], NOW)
    world.grant(one, 2, before=Head(Priority.HIGH, NOW - timedelta(seconds=20), 9))
    await world.settle()
    assert world.handed() == {1, 2}


def late(world: World, number: int, *, due: float = 600, **changes: Any) -> LiveRun:
    """Of a job of its own, made just now by catch-up."""
    one = replace(of(number, number), due_at=NOW - timedelta(seconds=due), **changes)
    world.rows.due_at[one.key] = one.due_at
    return one


def numbers(world: World) -> list[int]:
    """What was handed out, in that order."""
    return [key.run_id.int for key in world.rows.given]


def catching_up(reserved: float, owned: int) -> World:
    """Whose jobs have `catch_up: all`, released as fast as anybody likes."""
    world = World(limits=LateLimits(release_rate=1e6, reserved=reserved), owned=owned)
    world.definitions.default = replace(SHELL, catch_up=CatchUp(CatchUpPolicy.ALL))
    world.late.room()  # its pace begins empty
    world.seconds += 1.0
    return world


async def test_paced_runs_leave_the_reserved_slots_to_what_is_due_now():
    world = catching_up(reserved=0.2, owned=256)
    line = world.attach(worker(slots=10), grant=10)
    world.board.put_runs([late(world, number, paced=True) for number in range(1, 51)], NOW)

    await world.settle()
    assert len(world.handed()) == 8
    assert not any(line.demanded[-1:]), "more slots would be of no use to them"
    assert world.dispatch.placeable() == 0, "nor is that why anybody should fire the slower"

    world.board.put_runs([of(99, 99), of(98, 98)], NOW)
    await world.settle()
    assert set(numbers(world)[8:]) == {98, 99}


async def test_of_a_shard_whose_runs_were_not_read_yet_no_paced_one_takes_a_slot():
    """Who had it before has let some go: with as many again they would be too many."""
    world = catching_up(reserved=0.2, owned=256)
    world.attach(worker(slots=10), grant=10)
    world.board.read -= set(map(ShardId, range(128)))
    world.board.put_runs([late(world, number, paced=True) for number in range(1, 51)], NOW)

    await world.settle()
    assert len(world.handed()) == 4

    world.board.were_read(map(ShardId, range(256)))
    await world.settle()
    assert len(world.handed()) == 8


async def test_late_runs_of_other_jobs_take_whatever_slots_there_are():
    """Most of a herd is late before it is fired: it would take the longer for nothing."""
    world = World(limits=LateLimits(reserved=0.2), owned=64)
    world.attach(worker(slots=10), grant=10)
    world.board.put_runs([late(world, number) for number in range(1, 51)], NOW)

    await world.settle()
    assert len(world.handed()) == 10


@pytest.mark.parametrize(("unread", "together"), [(0, 30), (30, 4), (10, 4)])
async def test_a_round_reads_so_many_definitions_of_late_runs_and_takes_all_that_are_at_hand(
    monkeypatch: pytest.MonkeyPatch, unread: int, together: int
) -> None:
    """A herd is late before it is fired, and its definitions were read for that."""
    monkeypatch.setattr(late_runs, "LOOKED_UP", 4)
    world = World(owned=256)
    world.attach(worker(slots=64), grant=64)
    runs = [late(world, number) for number in range(1, 31)]
    world.definitions.unread = {run.job_id for run in runs[:unread]}
    world.board.put_runs(runs, NOW)

    await world.dispatch.step()
    assert len(world.handed()) == together
    await world.settle()
    assert len(world.handed()) == 30


async def test_a_round_reads_so_many_definitions_of_what_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a takeover they may be thousands: until they are read they count as paced ones."""
    monkeypatch.setattr(late_runs, "LOOKED_UP", 4)
    world = catching_up(reserved=0.2, owned=256)
    world.attach(worker(slots=64), grant=0)
    others = [late(world, number) for number in range(1, 11)]
    running = [replace(one, state=State.RUNNING, token=Token(7), attempt=1) for one in others]
    world.definitions.unread = {run.job_id for run in running}
    world.definitions.jobs = {run.job_id: SHELL for run in running}
    world.board.put_runs([*running, late(world, 99, paced=True)], NOW)

    left = []
    for _ in range(4):
        left.append(world.late.room().slots)
        await world.late.look()
    assert left == [41, 45, 49, 51]


async def test_a_paced_run_that_has_reported_leaves_its_slot_to_the_next():
    """To store its result takes its time; the worker has the slot again already."""
    world = catching_up(reserved=0.2, owned=256)
    one = worker(slots=10)
    world.attach(one, grant=10)
    world.board.put_runs([late(world, number, paced=True) for number in range(1, 51)], NOW)
    await world.settle()
    for done in list(world.board.running.values())[:3]:
        world.board.report(done.key.run_id, done.token)

    attached = world.workers.attached(one.id)
    assert attached is not None
    world.workers.granted(attached, 5, received=8)
    await world.settle()
    assert len(world.handed()) == 11


async def test_an_owner_takes_of_the_slots_for_paced_runs_its_part_of_the_shards():
    world = catching_up(reserved=0.2, owned=128)
    world.attach(worker(slots=10), grant=10)
    world.board.put_runs([late(world, number, paced=True) for number in range(1, 51)], NOW)

    await world.settle()
    assert len(world.handed()) == 4


async def test_what_is_due_now_goes_before_what_is_late():
    world = World(owned=256)
    world.attach(worker(slots=100), grant=3)
    world.board.put_runs([late(world, number) for number in range(1, 51)], NOW)
    world.board.put_runs([of(99, 99), of(98, 98)], NOW)

    await world.settle()
    assert set(numbers(world)[:2]) == {98, 99}
    assert len(numbers(world)) == 3


@pytest.mark.parametrize("told", [True, False])
async def test_late_runs_of_jobs_that_catch_up_with_all_are_released_at_the_rate_oldest_first(
    told: bool,
):
    """`told`: whether their owner knows what they are. One that has taken their shard over looks
    it up.
    """
    world = World(limits=LateLimits(release_rate=10.0, reserved=0.0), owned=256)
    world.attach(worker(slots=1_000), grant=1_000)
    world.definitions.default = replace(SHELL, catch_up=CatchUp(CatchUpPolicy.ALL))
    runs = [late(world, number, due=1_000 - number, paced=told) for number in range(1, 101)]
    world.board.put_runs(reversed(runs), NOW)

    await world.settle()
    assert numbers(world) == []
    for second in range(1, 11):
        for _ in range(4):
            world.seconds += 0.25
            wait = await settled(world)
        assert len(numbers(world)) == 10 * second
    assert wait <= 1.0
    if told:
        assert numbers(world) == list(range(1, 101))
    assert len(world.board.ready) == 0


async def test_who_waits_for_a_release_is_looked_at_when_it_comes():
    world = World(limits=LateLimits(release_rate=4.0), owned=256)
    world.attach(worker(slots=100), grant=100)
    world.definitions.default = replace(SHELL, catch_up=CatchUp(CatchUpPolicy.ALL))
    world.board.put_runs([late(world, 1, paced=True)], NOW)
    assert await settled(world) == pytest.approx(0.25)


async def test_late_runs_of_other_jobs_wait_for_no_release():
    world = World(limits=LateLimits(release_rate=1.0, reserved=0.0), owned=256)
    world.attach(worker(slots=100), grant=100)
    world.board.put_runs([late(world, number) for number in range(1, 51)], NOW)

    await world.settle()
    assert len(world.handed()) == 50


async def test_a_release_that_was_of_no_use_isnt_lost():
    """Another run of its job is in its way: the next one may go instead."""
    world = World(limits=LateLimits(release_rate=1.0), owned=256)
    world.attach(worker(slots=100), grant=100)
    world.definitions.default = replace(SHELL, catch_up=CatchUp(CatchUpPolicy.ALL))
    world.rows.limits = {run(1).job_id: 0}
    first, second = (late(world, number, due=9 - number, paced=True) for number in (1, 2))
    world.board.put_runs([first, second], NOW)
    await world.settle()

    world.seconds += 1.0
    await world.settle()
    assert world.board.held == [first.job_id]
    assert world.handed() == {2}


async def test_a_wide_paced_run_goes_where_the_slots_for_such_never_are_enough():
    world = catching_up(reserved=0.2, owned=64)
    world.attach(worker(slots=8), grant=8)
    world.definitions.default = replace(world.definitions.default, slots=4)
    world.board.put_runs([late(world, number, paced=True) for number in (1, 2)], NOW)

    await world.settle()
    assert len(world.handed()) == 1


async def settled(world: World) -> float:
    """The pause until its next round."""
    for _ in range(100):
        if (wait := await world.dispatch.step()) > 0:
            return wait
    raise AssertionError("it never comes to rest")


# -- Pools --

POOL = PoolKey("default/p")


async def test_a_full_pool_holds_nobody_up_and_asks_for_no_slots():
    world = World()
    line = world.attach(worker(), grant=50)
    world.rows.places[POOL] = 2
    pooled = replace(SHELL, pool=POOL)
    world.definitions.jobs = {run(number).job_id: pooled for number in range(1, 3_001)}
    world.board.put_runs([of(number, number, waited=60) for number in range(1, 3_001)], NOW)
    world.board.put_runs([of(9_000, 9_000)], NOW)

    await world.settle()

    assert world.handed() == {1, 2, 9_000}
    assert len(world.rows.drafts) == 3, "what has no place isn't tried"
    assert not any(line.demanded[-1:])


async def test_when_one_of_a_full_pool_has_ended_the_next_goes():
    world = World()
    world.attach(worker(), grant=50)
    world.rows.places[POOL] = 1
    world.definitions.default = replace(SHELL, pool=POOL)
    world.board.put_runs([of(number, number) for number in (1, 2, 3)], NOW)
    await world.settle()
    assert world.handed() == {1}
    woken: list[None] = []
    world.board.on_room = lambda: woken.append(None)
    world.rows.places[POOL] = 1
    world.board.forget(run(1).key.run_id, run(1).job_id)
    assert woken, "nobody grants slots for what has no room, so that nothing else wakes it"
    await world.settle()
    assert world.handed() == {1, 2}


async def test_less_room_than_was_thought_is_believed_until_it_is_looked_at_anew():
    world = World()
    world.attach(worker(), grant=50)
    world.rows.places[POOL] = 3
    world.definitions.default = replace(SHELL, pool=POOL)
    world.board.put_runs([of(1, 1)], NOW)
    await world.settle()
    world.rows.places[POOL] = 0  # somebody lowered the limit
    world.board.put_runs([of(2, 2)], NOW)
    await world.settle()
    assert world.handed() == {1}
    assert len(world.board.ready) == 1
    assert len(world.rows.drafts) <= 2
    world.rows.places[POOL] = 1
    world.seconds += 1
    await world.settle()
    assert world.handed() == {1, 2}


async def test_a_broadcast_has_a_run_for_each_and_needs_no_slot_itself() -> None:
    world = World()
    world.definitions.jobs[run(1).job_id] = replace(SHELL, placement=Placement.BROADCAST)
    world.attach(worker(1), grant=2)
    world.attach(worker(2), grant=0)
    world.board.put_runs([of(1, 1)], NOW)

    await world.settle()

    assert world.rows.drafts[0].targets == ("w1", "w2")
    assert [one.key.run_id.int for one in world.board.broadcasts.values()] == [1]
    assert {run.key.run_id.int for run in world.lines["w1"].assigned} == {101}
    assert [one.target for one in world.board.ready] == ["w2"], "it goes to no other"
    assert world.lines["w2"].demanded[-1] != []
    assert not world.lines["w1"].demanded[-1], "w1 has slots that w2's child can't use"


async def test_a_broadcast_waits_until_somebody_is_there_and_leaves_out_where_it_was_done() -> None:
    world = World()
    world.definitions.jobs[run(1).job_id] = replace(SHELL, placement=Placement.BROADCAST)
    world.board.put_runs([of(1, 1)], NOW)
    await world.settle()
    assert (world.rows.drafts, len(world.board.ready)) == ([], 1)

    world.attach(worker(1), grant=1)
    world.attach(worker(2), grant=1)
    world.rows.done_on = frozenset({"w1"})
    world.dispatch._broadcasts._try_at = 0.0
    await world.settle()

    assert world.rows.drafts[0].targets == ("w2",)
    assert {run.key.run_id.int for run in world.lines["w2"].assigned} == {101}


async def test_broadcasts_that_nobody_is_there_for_hide_no_others() -> None:
    world = World()
    many = BROADCASTS_AT_ONCE * BROADCASTS_LOOKS + 100
    alone = replace(SHELL, placement=Placement.BROADCAST)
    for job in range(1, 4):
        asks = (Match("gpu", (f"a{job}",)),)
        world.definitions.jobs[run(job).job_id] = replace(alone, require=asks)
    world.definitions.jobs[run(4).job_id] = alone
    world.attach(worker(1), grant=1)
    world.board.put_runs([of(1 + n % 3, n, waited=90) for n in range(many)], NOW)
    world.board.put_runs([of(4, many, waited=0)], NOW)

    await world.settle()
    if not world.rows.drafts:  # it has its turn in the round after that
        world.dispatch._broadcasts._try_at = 0.0
        await world.settle()

    assert [draft.key.run_id.int for draft in world.rows.drafts if draft.targets] == [many]
    assert len([one for one in world.board.ready if one.target is None]) == many


async def test_slots_that_nothing_waits_for_wake_nobody() -> None:
    """Of a thousand idle workers each tells of a slot with each of its runs."""
    world = World()
    world.dispatch.slots_freed()
    assert not await world.dispatch.loop.waker.wait(0.01)
    world.board.put_runs([of(1, 1)], NOW)
    world.dispatch.slots_freed()
    assert await world.dispatch.loop.waker.wait(PATIENCE)
