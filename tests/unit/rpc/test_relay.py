"""Messages that wait for the relay; `test_peers` shows their delivery over the wire."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from schedd.rpc.peers.peers import Peers
from schedd.rpc.workers.relay import Relay
from schedproto.v1 import peer_service_pb2 as wire
from schedproto.v1 import worker_service_pb2 as down
from support.runs import running, worker
from support.wait import wait_until_async


class OnePeer:
    """Another member, which takes whatever it is sent."""

    def __init__(self) -> None:
        self.cancels: list[down.Cancel] = []

    async def call_all(
        self, requests: list[wire.RelayRequest], answer: type[wire.RelayResponse]
    ) -> list[list[wire.RelayResponse | None]]:
        for request in requests:
            self.cancels += request.frame.cancels
        return [[answer()] for _ in requests]


async def test_a_cancel_becomes_a_kill_also_while_as_many_wait_as_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The grace period has passed: the run would continue until a scan asks again."""
    monkeypatch.setattr("schedd.rpc.workers.relay.MOST_CANCELS", 1)
    peer = OnePeer()
    relay = Relay(cast("Peers", peer))
    first, second = running(1, worker()), running(2, worker())
    relay.cancel(first, kill=False)
    relay.cancel(second, kill=True)
    relay.cancel(first, kill=True)

    sending = asyncio.create_task(relay.run(), name="relay")
    await wait_until_async(lambda: peer.cancels, 5, "the cancel to be passed on")
    sending.cancel()

    [passed] = peer.cancels
    assert (passed.key.run_id, passed.kill) == (str(first.key.run_id), True)
