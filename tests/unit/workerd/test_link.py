"""What a stream makes of the answers to heartbeats."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from schedkit.clock import boottime
from schedproto.v1 import worker_service_pb2 as pb
from workerd import messages
from workerd.core.ids import Address
from workerd.stream.stream import Host, MemberStream, StreamEnd


class Recorded:
    """A host that notes when it is told that its lease was refreshed."""

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

    def heartbeat(self, at: float, *, reads_held: bool) -> pb.Heartbeat:
        return pb.Heartbeat()


def answer(sequence: int, *, refreshed: bool = True, lost: bool = False) -> pb.HeartbeatAnswer:
    return pb.HeartbeatAnswer(sequence=sequence, refreshed=refreshed, lost=lost)


async def beating() -> tuple[Recorded, MemberStream, float]:
    host = Recorded()
    link = MemberStream(Address("127.0.0.1:1"), None, cast("Host", host))
    assert link._heartbeat().sequence == 1
    return host, link, boottime()


async def test_trust_runs_from_the_sending_of_the_heartbeat_that_was_answered() -> None:
    """P6.3: the answer may have been long on its way."""
    host, link, sent = await beating()
    await asyncio.sleep(0.05)  # the time of the way back
    assert not link._answered(answer(1))
    [at] = host.refreshed_at
    assert at <= sent


@pytest.mark.parametrize("told", [answer(1, refreshed=False), answer(1, lost=True), answer(9)])
async def test_an_answer_that_doesnt_say_refreshed_gives_no_trust(
    told: pb.HeartbeatAnswer,
) -> None:
    """P6.3: the member lives, but may be cut off from etcd."""
    host, link, _ = await beating()
    assert link._answered(told) == told.lost
    assert host.refreshed_at == []


async def test_an_answer_whose_time_contradicts_those_before_tells_that_the_clock_was_set() -> None:
    host, link, _ = await beating()
    for sequence, at in enumerate((1_000, 1_000, 4_600), 1):
        answered = answer(sequence)
        answered.cluster_time.seconds = at
        link._answered(answered)
        assert host.set == ([link] if at == 4_600 else [])
        link._heartbeat()


class Deaf:
    """A stream that takes no frames and tells nothing."""

    async def write(self, frame: pb.WorkerFrame) -> None:
        raise asyncio.InvalidStateError("the RPC has finished")

    async def read(self) -> pb.MemberFrame:
        await asyncio.Event().wait()
        raise AssertionError("it is never told anything")


async def test_a_stream_that_takes_no_more_frames_ends_though_its_reader_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workerd.stream.stream.STATUS_WITHIN", 0.05)
    _, link, _ = await beating()
    link.beat()
    async with asyncio.timeout(5):
        ending, why = await link._converse(cast("Any", Deaf()))
    assert (ending, why) == (StreamEnd.AGAIN, "stream accepts no more frames")


def test_heads_of_a_member_that_doesnt_tell_how_wide_its_runs_are_take_one_slot() -> None:
    """It is of an older version; what it has would else be passed over, or never."""
    demand = pb.Demand(heads=[pb.Demand.Head(slots=6), pb.Demand.Head(slots=6, least=3)])
    assert [head.least for head in messages.heads_of(demand)] == [1, 3]
