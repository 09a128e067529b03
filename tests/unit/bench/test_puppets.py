"""Simulated workers: to a member they are workers like any other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bench.puppets import puppet
from bench.simulated import growing
from schedproto.v1 import worker_service_pb2 as pb
from support.fake_member import FakeMember, Stream
from workerd import messages
from workerd.core.outcome import AttemptOutcome, AttemptVerdict, digest

SLOTS = 3


@pytest.fixture
async def member() -> AsyncIterator[FakeMember]:
    async with FakeMember() as member:
        yield member


@pytest.fixture
async def stream(member: FakeMember) -> AsyncIterator[Stream]:
    """Of a puppet that has all its slots granted."""
    async for stream in attached(member, 0.0):
        yield stream


async def attached(member: FakeMember, lasts: float) -> AsyncIterator[Stream]:
    attach, _ = puppet("p1", [member.address], SLOTS, lasts)
    life = asyncio.create_task(attach.run(), name="p1")
    try:
        stream = await member.attached()
        await stream.granted_at_least(SLOTS)
        yield stream
    finally:
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)


async def test_an_assigned_run_succeeds_under_its_token_and_digest(stream: Stream) -> None:
    result = await stream.result_of(await stream.assign())
    assert result.outcome == pb.Result.OUTCOME_SUCCEEDED
    assert result.worker == "p1"
    assert result.digest == digest(
        messages.key_of(result.key), AttemptOutcome(AttemptVerdict.SUCCEEDED)
    )


async def test_a_run_that_must_wait_is_not_started_early(
    stream: Stream, member: FakeMember
) -> None:
    due = member.now().timestamp() + 0.3
    result = await stream.result_of(await stream.assign(start_in=0.3))
    assert messages.seconds(result.started_at) >= due


async def test_a_result_is_sent_until_a_member_acknowledges_it(stream: Stream) -> None:
    key = await stream.assign()
    await stream.result_of(key)
    await stream.assign(key=key)
    await stream.until(lambda: len(stream.results) >= 2, "the same result again")
    assert stream.results[0] == stream.results[1]


async def test_a_run_that_was_meant_for_another_incarnation_is_refused(stream: Stream) -> None:
    key = await stream.assign(incarnation="d2b0f3f0-0000-4000-8000-000000000000")
    assert (await stream.refusal_of(key)).why == pb.Refusal.WHY_OTHER_INCARNATION


async def test_a_waiting_run_that_is_revoked_never_starts(stream: Stream) -> None:
    answer = await stream.revoke(await stream.assign(start_in=30.0))
    assert answer.outcome == pb.RevokeAnswer.OUTCOME_REVOKED
    assert stream.results == []


@pytest.mark.slow
async def test_a_lasting_run_is_reported_as_running(member: FakeMember) -> None:
    async for stream in attached(member, 1.0):
        key = await stream.assign()
        await stream.holds(key, pb.Holding.STATE_RUNNING)
        result = await stream.result_of(key)
        assert messages.seconds(result.finished_at) - messages.seconds(result.started_at) >= 0.9


def test_fleets_grow_tenfold_up_to_what_is_asked_for() -> None:
    assert [*growing(1_000)] == [10, 100, 1_000]
    assert [*growing(250)] == [10, 100, 250]
    assert [*growing(5)] == [5]
