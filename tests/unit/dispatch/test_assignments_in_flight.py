"""From choice to push: what becomes of a run whose worker or COMMIT is in doubt meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import pytest

from schedd.core.dispatch.batch_size import LEAST
from schedd.core.ids import JobId, ShardId, Token
from schedd.core.jobs.definition import Match
from schedd.core.runs.model import Assigned, Claim, Draft, LiveRun
from schedd.core.runs.records import Assignments, Unstarted
from schedd.dispatch.workers.remote_workers import NoRemoteWorkers
from schedd.runtime.definition_texts import CachedDefinition
from schedkit.errors import OutcomeUnknown, Unavailable
from support.dispatching import SHELL, World, of
from support.runs import NOW, RecordingLine, run, worker
from support.wait import WAIT_TIMEOUT


async def test_a_row_that_may_not_be_committed_is_pushed_to_no_worker() -> None:
    """P1.4: its worker would start under a token that the row may lack."""
    world = World()
    line = world.attach(worker(), grant=4)
    world.run_index.put_runs([of(1, 1)], NOW)
    world.rows.fails.append(OutcomeUnknown("no answer to COMMIT"))

    with pytest.raises(Unavailable):
        await world.dispatch.step()

    assert line.assigned == []
    assert world.run_index.running == {}
    assert len(world.rows.drafts) == 1


@pytest.mark.slow
async def test_a_batch_that_takes_too_long_is_retried_in_smaller_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same batch would fail for ever, and nothing of this member's start."""
    world = World()
    world.attach(worker(), grant=2_000)
    world.run_index.put_runs([of(n, n) for n in range(1, 2_001)], NOW)
    now = 1_000.0
    monkeypatch.setattr("schedd.dispatch.dispatch.boottime", lambda: now)
    for _ in range(4):
        await world.dispatch.step()

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


async def test_a_run_being_written_when_a_worker_grants_less_is_reported_and_pushed() -> None:
    world, one = World(), worker()
    line = world.attach(one, grant=4)
    world.run_index.put_runs([of(1, 1), of(2, 2)], NOW)
    world.rows.meanwhile = lambda: world.grant(one, 1, serial=3)
    await world.dispatch.step()
    assert line.reached == [(3, 2)]
    assert world.handed() == {1, 2}
    assert not world.workers.offers()


async def test_an_uncommitted_choice_is_released_after_a_smaller_grant() -> None:
    """Otherwise its slots would be kept for no member."""
    world, one = World(), worker()
    line = world.attach(one, grant=4)
    world.run_index.put_runs([of(1, 1), of(2, 2)], NOW)
    world.rows.meanwhile = lambda: world.grant(one, 1, serial=3)
    world.rows.fails.append(OutcomeUnknown("no answer to COMMIT"))
    with pytest.raises(Unavailable):
        await world.dispatch.step()
    assert line.reached == [(3, 2), (3, 0)]
    assert [offer.slots for offer in world.workers.offers()] == [1]


async def test_a_canceled_dispatch_step_releases_its_slots() -> None:
    world, one = World(), worker()
    world.attach(one, grant=4)
    world.run_index.put_runs([of(1, 1)], NOW)
    writing = asyncio.Event()

    async def stuck(*_: object) -> Assignments:
        writing.set()
        await asyncio.Event().wait()
        raise AssertionError("it is never done")

    world.rows.assign = stuck  # type: ignore[method-assign]  # a database that hangs
    step = asyncio.create_task(world.dispatch.step(), name="step")
    await asyncio.wait_for(writing.wait(), WAIT_TIMEOUT)
    assert [offer.slots for offer in world.workers.offers()] == [3]
    step.cancel()
    await asyncio.gather(step, return_exceptions=True)
    assert [offer.slots for offer in world.workers.offers()] == [4]


async def test_a_slot_withdrawn_while_definitions_are_read_isnt_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker learned that nothing is under way, and has given the slot to another member."""
    world, one = World(), worker()
    line = world.attach(one, grant=4)
    read = world.definitions.newest

    async def withdrawn(jobs: Collection[JobId]) -> dict[JobId, CachedDefinition]:
        world.grant(one, 0, serial=3)
        return await read(jobs)

    monkeypatch.setattr(world.definitions, "newest", withdrawn)
    world.run_index.put_runs([of(1, 1)], NOW)
    await world.run_until_idle()
    assert line.reached == [(3, 0)]
    assert world.rows.drafts == []
    world.grant(one, 4)
    monkeypatch.undo()
    await world.run_until_idle()
    assert world.handed() == {1}


async def test_a_slot_granted_while_definitions_are_read_isnt_given_to_a_newer_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that waits for just that worker goes first; other slots have tried the fresh one."""
    world = World()
    picky = replace(SHELL, require=(Match("disk", ("ssd",)),))
    world.definitions.jobs = {run(1).job_id: picky, run(2).job_id: picky}
    world.attach(worker(1), grant=1)
    wanted = replace(worker(2), labels={"disk": "ssd"})
    world.attach(wanted, grant=0)
    world.run_index.put_runs([of(1, 1, waited=9)], NOW)
    await world.run_until_idle()
    read = world.definitions.newest

    async def granted(jobs: Collection[JobId]) -> dict[JobId, CachedDefinition]:
        world.grant(wanted, 1)
        return await read(jobs)

    monkeypatch.setattr(world.definitions, "newest", granted)
    world.run_index.put_runs([of(2, 2)], NOW)
    await world.run_until_idle()
    assert world.handed() == {1}


async def test_a_run_of_a_worker_that_left_meanwhile_is_relayed_or_returned() -> None:
    """P4.5"""
    world = World()
    given_back: list[Unstarted] = []
    passed_on: list[LiveRun] = []

    class OtherMember(NoRemoteWorkers):
        async def assign(
            self, handed: Sequence[tuple[Assigned, CachedDefinition]]
        ) -> list[Assigned]:
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
    world.run_index.put_runs([of(1, 1), of(2, 2)], NOW)

    await world.dispatch.step()

    assert len(passed_on) == len(given_back) == 1
    assert given_back[0].key != passed_on[0].key
