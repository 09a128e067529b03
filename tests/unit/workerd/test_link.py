"""What a stream makes of the answers to heartbeats."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from schedkit.clock import boottime
from schedproto.v1 import worker_service_pb2 as pb
from workerd.core.ids import Address
from workerd.link import Host, Link


class Recorded:
    """A host that notes when it is told that its lease was refreshed."""

    def __init__(self) -> None:
        self.refreshed_at: list[float] = []

    def refreshed(self, sent: float) -> None:
        self.refreshed_at.append(sent)

    def observed(self, trip: object) -> None: ...

    def heartbeat(self, at: float) -> pb.Heartbeat:
        return pb.Heartbeat()


def answer(sequence: int, *, refreshed: bool = True, lost: bool = False) -> pb.HeartbeatAnswer:
    return pb.HeartbeatAnswer(sequence=sequence, refreshed=refreshed, lost=lost)


async def beating() -> tuple[Recorded, Link, float]:
    host = Recorded()
    link = Link(Address("127.0.0.1:1"), None, cast("Host", host))
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
    host, link, _ = await beating()
    assert link._answered(told) == told.lost
    assert host.refreshed_at == []
