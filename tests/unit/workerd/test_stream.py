"""Answers to heartbeats, as a stream handles them."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from schedkit.clock import boottime
from schedproto.v1 import worker_service_pb2 as pb
from workerd import messages
from workerd.core.ids import Address
from workerd.stream.streams import MemberStream, StreamEnd


class Recorded:
    """A host that records refreshes of its lease."""

    def __init__(self) -> None:
        self.refreshed_at: list[float] = []
        self.set: list[MemberStream] = []

    def refreshed(self, sent: float) -> None:
        self.refreshed_at.append(sent)

    def observed(self, trip: object) -> None: ...

    def clock_was_set(self, link: MemberStream) -> None:
        self.set.append(link)

    def trusted(self) -> bool:
        return True

    def heartbeat(self, at: float) -> pb.Heartbeat:
        return pb.Heartbeat()


def answer(sequence: int, *, refreshed: bool = True, lost: bool = False) -> pb.HeartbeatAnswer:
    return pb.HeartbeatAnswer(sequence=sequence, refreshed=refreshed, lost=lost)


async def beating() -> tuple[Recorded, MemberStream, float]:
    host = Recorded()
    link = MemberStream(Address("127.0.0.1:1"), None, cast("Any", host))
    assert link._heartbeat().sequence == 1
    return host, link, boottime()


async def test_trust_runs_from_the_sending_of_the_heartbeat_that_was_answered() -> None:
    """P6.3: the answer may have been in flight for long."""
    host, link, sent = await beating()
    await asyncio.sleep(0.05)  # the time of the way back
    assert not link._answered(answer(1))
    [at] = host.refreshed_at
    assert at <= sent


@pytest.mark.parametrize("response", [answer(1, refreshed=False), answer(1, lost=True), answer(9)])
async def test_an_answer_without_a_refresh_gives_no_trust(
    response: pb.HeartbeatAnswer,
) -> None:
    """P6.3: the member is running, but may be cut off from etcd."""
    host, link, _ = await beating()
    assert link._answered(response) == response.lost
    assert host.refreshed_at == []


async def test_a_contradicting_time_in_an_answer_reports_a_clock_change() -> None:
    host, link, _ = await beating()
    for sequence, at in enumerate((1_000, 1_000, 4_600), 1):
        answered = answer(sequence)
        answered.cluster_time.seconds = at
        link._answered(answered)
        assert host.set == ([link] if at == 4_600 else [])
        link._heartbeat()


class SilentStream:
    """A stream that accepts no frames and delivers none."""

    async def write(self, frame: pb.WorkerFrame) -> None:
        raise asyncio.InvalidStateError("the RPC has finished")

    async def read(self) -> pb.MemberFrame:
        await asyncio.Event().wait()
        raise AssertionError("no frame was expected")


async def test_a_stream_that_accepts_no_frames_ends_while_its_reader_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workerd.stream.streams.STATUS_WITHIN", 0.05)
    _, link, _ = await beating()
    link.beat()
    async with asyncio.timeout(5):
        ending, why = await link._converse(cast("Any", SilentStream()))
    assert (ending, why) == (StreamEnd.AGAIN, "the stream accepts no more messages")


def test_heads_of_a_member_that_sends_no_width_take_one_slot() -> None:
    """Otherwise runs of a member of an older version would wait for ever."""
    demand = pb.Demand(heads=[pb.Demand.Head(slots=6), pb.Demand.Head(slots=6, least=3)])
    assert [head.least for head in messages.heads_of(demand)] == [1, 3]
