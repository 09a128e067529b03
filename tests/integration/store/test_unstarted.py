"""Attempts that may start though their run was taken from its worker (P3.8, model: ok-asks-ended).

A worker whose lease was lost may live, with the assignment in its socket: until `start_by` it may
start it, whatever its run has become since.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

import pytest

from schedd.core.ids import JobId, Token
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import Incarnation, LiveRun, Loss
from support.store import MINUTE, START, Member, World, draft, firing, incarnation, ok, report

Since = Callable[[World, Member, LiveRun], Awaitable[None]]


async def leave_unchanged(_world: World, _me: Member, _lost: LiveRun) -> None: ...


async def dispatched_again(_world: World, me: Member, lost: LiveRun) -> None:
    await me.assigned(draft(lost))


async def succeeded_elsewhere(_world: World, me: Member, lost: LiveRun) -> None:
    [again] = await me.assigned(draft(lost))
    await me.store.results.accept([report(again)])


async def cancelled(_world: World, me: Member, lost: LiveRun) -> None:
    await me.store.users.cancel_run(lost.key.run_id, ok("cancel"))


async def deleted_with_its_job(_world: World, me: Member, lost: LiveRun) -> None:
    await me.store.users.delete_job(lost.job_id, ok("delete"))


async def lost_attempt(
    world: World, me: Member, state: State = State.RETRYING
) -> tuple[Incarnation, LiveRun]:
    """Return a run that was dispatched to a worker which is lost since."""
    worker = await me.store.workers.register(incarnation())
    [run] = (await me.fire(firing(await world.job()))).runs
    [out] = await me.assigned(draft(run, incarnation=worker.id))
    loss = Loss(out.key, out.shard, out.token, worker.id, state, Reason.WORKER_LOST)
    assert await me.store.owner.rescue(me.claim(0), [loss]) == [out.key]
    return worker, out


async def may_start(me: Member, job: JobId | None, at: datetime) -> Mapping[Token, LiveRun]:
    return {run.token: run for run in await me.store.users.unstarted_attempts(job, at)}


def before(out: LiveRun) -> datetime:
    assert out.start_by is not None
    return out.start_by - MINUTE


@pytest.mark.parametrize(
    ("state", "since"),
    [
        (State.RETRYING, leave_unchanged),
        (State.RETRYING, dispatched_again),
        (State.RETRYING, succeeded_elsewhere),
        (State.RETRYING, cancelled),
        (State.RETRYING, deleted_with_its_job),
        (State.FAILED, leave_unchanged),  # delivery: at_most_once
    ],
)
@pytest.mark.parametrize("of", ["the job", "the cluster"])
async def test_a_pause_waits_for_starts_of_a_lost_worker_in_any_state_of_the_run(
    world: World, state: State, since: Since, of: str
) -> None:
    """P3.8: it doesn't know of its loss, and `start_by` hasn't passed."""
    me = await world.member()
    worker, out = await lost_attempt(world, me, state)
    await since(world, me, out)

    found = await may_start(me, out.job_id if of == "the job" else None, before(out))

    assert found[out.token].key == out.key
    assert found[out.token].start_by == out.start_by
    assert (found[out.token].worker, found[out.token].incarnation) == (worker.worker, worker.id)


async def test_an_attempt_lost_with_its_worker_is_waited_for_until_start_by(world: World) -> None:
    me = await world.member()
    _, out = await lost_attempt(world, me)
    assert out.start_by is not None
    assert await may_start(me, None, out.start_by) == {}


async def test_an_attempt_that_started_before_its_worker_was_lost_is_not_waited_for(
    world: World,
) -> None:
    me = await world.member()
    worker = await me.store.workers.register(incarnation())
    [run] = (await me.fire(firing(await world.job()))).runs
    [out] = await me.assigned(draft(run, incarnation=worker.id))
    await me.store.results.started([(out.key, out.token, START)])
    loss = Loss(out.key, out.shard, out.token, worker.id, State.RETRYING, Reason.WORKER_LOST)
    await me.store.owner.rescue(me.claim(0), [loss])
    assert await may_start(me, None, before(out)) == {}


async def test_a_jobs_ok_waits_for_no_other_job(world: World) -> None:
    me = await world.member()
    await lost_attempt(world, me)
    _, other = await lost_attempt(world, me)
    assert [*await may_start(me, other.job_id, before(other))] == [other.token]


async def test_lost_assignments_are_forgotten_when_they_cant_start_any_more(world: World) -> None:
    me = await world.member()
    _, old = await lost_attempt(world, me)
    _, new = await lost_attempt(world, me)
    await world.sql(
        "UPDATE lost_assignments SET start_by = start_by - interval '2 min' WHERE token = %s",
        old.token,
    )
    await me.store.keep_house()
    assert await world.sql("SELECT token FROM lost_assignments") == [(new.token,)]
