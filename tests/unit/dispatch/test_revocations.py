"""Assignments that an earlier owner may never have pushed are revoked, not awaited (P4.8)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from schedd.cluster.ownership import Ownership
from schedd.core.dispatch.packed_runs import Holdings
from schedd.core.ids import Epoch, ShardId, Token, token_of
from schedd.core.runs.model import LiveRun
from schedd.dispatch.workers.attached_worker import Attached
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.reconcile.rescue import ANSWER_WITHIN, GRACE, IDLE, UnconfirmedAssignments
from support.runs import NOW, RecordingLine, SetClock, owning, running, worker
from support.wait import WAIT_TIMEOUT

EPOCH = 5
BEFORE = token_of(Epoch(EPOCH - 1), 9)
OURS = token_of(Epoch(EPOCH), 1)
W1 = worker()


class Member:
    """A member that has just taken shard 0, with a worker attached."""

    def __init__(self) -> None:
        self.clock = SetClock(NOW + GRACE)
        self.workers = WorkerRegistry(self.clock, lambda _event: None)
        self.line = RecordingLine()
        self.stream: Attached = self.workers.attach(W1, self.line)
        self.ownership: Ownership = owning(0, epoch=EPOCH)
        self.asking = UnconfirmedAssignments(self.ownership, self.workers, self.clock)

    async def scan(self, *runs: LiveRun, answered: Sequence[LiveRun] = ()) -> float:
        """A scan has found these; the worker answers for `answered`."""
        self.asking.set_found(runs)
        step = asyncio.create_task(self.asking.step(), name="step")
        for _ in range(5):
            await asyncio.sleep(0)
        for run in answered:
            self.workers.revoke_answered(run.key.run_id, run.token)
        async with asyncio.timeout(ANSWER_WITHIN + WAIT_TIMEOUT):
            return await step

    def record_heartbeat(self, *holding: LiveRun, at: datetime = NOW) -> None:
        held = [(run.key.run_id, run.token) for run in holding]
        self.workers.record_heartbeat(
            self.stream, at, Holdings.from_keys(held), free=1, since_refresh=0, draining=False
        )

    @property
    def asked(self) -> list[Token]:
        return [token for _, token in self.line.revoked]


@pytest.fixture
def member() -> Member:
    return Member()


def dispatched(token: Token, *, number: int = 1, shard: int = 0) -> LiveRun:
    return running(number, W1, token=token, shard=shard)


async def test_an_earlier_owners_assignment_that_no_worker_has_is_revoked(
    member: Member,
) -> None:
    """P4.8: that owner may have died before its push."""
    out = dispatched(BEFORE)
    assert await member.scan(out, answered=[out]) == IDLE
    assert member.asked == [BEFORE]


async def test_an_own_assignment_isnt_revoked_before_a_heartbeat_of_its_worker(
    member: Member,
) -> None:
    await member.scan(dispatched(OURS))
    member.record_heartbeat(at=NOW + GRACE)
    await member.scan(dispatched(OURS))
    assert member.asked == []


async def test_an_assignment_that_a_heartbeat_lacks_is_revoked(member: Member) -> None:
    """P4.8: its COMMIT was in doubt, or its stream broke."""
    out = dispatched(OURS)
    member.record_heartbeat(out, at=NOW + 2 * GRACE)
    await member.scan(out)
    assert member.asked == []
    member.record_heartbeat(at=NOW + 2 * GRACE)
    await member.scan(out, answered=[out])
    assert member.asked == [OURS]


async def test_an_assignment_on_a_slow_line_is_not_revoked(member: Member) -> None:
    """Its worker hasn't received all that was pushed: what it lacks may be there soon."""
    out = dispatched(OURS)
    member.stream.pushed, member.stream.received = 2, 1
    member.record_heartbeat(at=NOW + 2 * GRACE)
    await member.scan(out)
    assert member.asked == []
    member.stream.received = 2
    await member.scan(out, answered=[out])
    assert member.asked == [OURS]


async def test_an_assignment_of_a_dropped_shard_is_not_revoked(member: Member) -> None:
    pre_dispatched = replace(dispatched(BEFORE), start_by=NOW + timedelta(seconds=25))
    await member.scan(pre_dispatched)
    member.ownership.drop([ShardId(0)])
    member.clock.time = NOW + timedelta(seconds=21)
    assert await member.asking.step() == IDLE
    assert member.asked == []


async def test_an_assignment_that_its_worker_reported_is_not_revoked(member: Member) -> None:
    out = dispatched(BEFORE)
    member.record_heartbeat(out)
    await member.scan(out)
    assert member.asked == []
    member.record_heartbeat()
    await member.scan(dispatched(BEFORE, number=2), answered=[dispatched(BEFORE, number=2)])
    assert member.asked == [BEFORE]


async def test_an_assignment_is_revoked_only_after_a_grace_period(member: Member) -> None:
    member.clock.time = NOW + GRACE - timedelta(milliseconds=100)
    out = dispatched(BEFORE)
    assert await member.scan(out) == pytest.approx(0.1)
    assert member.asked == []
    member.clock.time = NOW + GRACE
    member.asking.set_found([out])
    await member.scan(out, answered=[out])
    assert member.asked == [BEFORE]


async def test_a_pre_dispatched_run_is_revoked_only_once_it_is_due(member: Member) -> None:
    """P4.8: its worker may have it, and wait for its instant."""
    pre_dispatched = replace(dispatched(BEFORE), start_by=NOW + timedelta(seconds=25))
    wait = await member.scan(pre_dispatched)
    assert wait == pytest.approx(20.0)
    assert member.asked == []


async def test_an_assignment_past_its_start_by_is_not_revoked(member: Member) -> None:
    out = dispatched(BEFORE)
    assert out.start_by is not None
    member.clock.time = out.start_by
    await member.scan(out)
    assert member.asked == []


@pytest.mark.slow
async def test_a_revoke_is_repeated_only_to_workers_that_havent_answered(member: Member) -> None:
    """A run that has started is found by each scan as long as it runs."""
    started, unanswered = dispatched(BEFORE), dispatched(BEFORE, number=2)
    await member.scan(started, unanswered, answered=[started])
    member.line.revoked.clear()
    await member.scan(started, unanswered, answered=[unanswered])
    assert member.line.revoked == [(unanswered.key.run_id, BEFORE)]


@pytest.mark.slow
async def test_a_worker_that_does_not_answer_keeps_the_others_waiting_for_a_second_at_most(
    member: Member,
) -> None:
    out = dispatched(BEFORE)
    began = asyncio.get_running_loop().time()
    await member.scan(out)
    waited = asyncio.get_running_loop().time() - began
    assert ANSWER_WITHIN <= waited < ANSWER_WITHIN + WAIT_TIMEOUT
