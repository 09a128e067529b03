"""Changes at other members, received while a caller watches here; and changes that were missed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from schedd.core.ids import Hint, JobId, RunId, new_id
from schedd.rpc.peers import peer_changes
from schedd.rpc.peers.peer_changes import BEAT, BEATS, PeerStreams
from schedd.rpc.peers.peers import Peers
from schedd.watch.change_bus import ChangeBus
from schedproto.v1 import peer_service_pb2
from support.peers import OTHER, Cluster, Peer, a_peer
from support.proxied import proxied
from support.wait import WAIT_TIMEOUT, wait_until_async

SILENT_FOR = 10.0
"""Seconds after which a member that says nothing has been missed."""

JOB = JobId(new_id())


class Watched:
    """A feed that records what it received."""

    def __init__(self) -> None:
        self.jobs: frozenset[JobId] | None = frozenset()
        self.runs: set[RunId] = set()
        self.deafened = 0
        self.on_interest: Callable[[], None] = lambda: None

    def watch(self, jobs: frozenset[JobId] | None) -> None:
        """Watch these jobs from now on."""
        self.jobs = jobs
        self.on_interest()

    def receive_hints(self, hints: Sequence[Hint]) -> None:
        self.runs |= {run for run, _ in hints}

    def deaf(self) -> None:
        self.deafened += 1


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with a_peer() as made:
        yield made


async def test_a_watched_member_receives_what_another_member_stores(peer: Peer) -> None:
    cluster = Cluster()
    cluster.members[OTHER] = peer.endpoint
    peers = Peers(cluster, None)
    feed = Watched()
    async with asyncio.TaskGroup() as group:
        listening = group.create_task(PeerStreams(peers, feed).run(), name="hearing")
        await asyncio.sleep(0.05)
        assert not peer.ears._listeners, "no caller watches"
        feed.watch(frozenset({JOB}))
        await wait_until_async(lambda: peer.ears._listeners, WAIT_TIMEOUT, "a listener")
        ours, others, unknown = (RunId(new_id()) for _ in range(3))
        peer.ears.receive_hints([(ours, JOB), (others, JobId(new_id())), (unknown, None)])
        await wait_until_async(lambda: {ours, unknown} == feed.runs, WAIT_TIMEOUT, "what changed")

        feed.watch(None)
        peer.ears.receive_hints([(others, JobId(new_id()))])
        await wait_until_async(lambda: len(peer.ears._listeners) == 2, WAIT_TIMEOUT, "both streams")
        peer.ears.receive_hints([(others, JobId(new_id()))])
        await wait_until_async(lambda: others in feed.runs, WAIT_TIMEOUT, "what all jobs do")
        assert feed.deafened == 0

        await peer.server.stop(None)
        await wait_until_async(lambda: feed.deafened, WAIT_TIMEOUT, "notice of the silence")
        feed.watch(frozenset())
        await wait_until_async(lambda: not peer.ears._listeners, WAIT_TIMEOUT, "no listener")
        listening.cancel()
    await peers.close()


async def test_a_member_silent_on_an_open_connection_counts_as_not_received(
    peer: Peer, tmp_path: Path
) -> None:
    cluster, feed = Cluster(), Watched()
    async with proxied(tmp_path, ("127.0.0.1", peer.port)) as through, asyncio.TaskGroup() as group:
        cluster.members[OTHER] = f"127.0.0.1:{through.port}"
        peers = Peers(cluster, None)
        listening = group.create_task(PeerStreams(peers, feed).run(), name="hearing")
        feed.watch(None)
        await wait_until_async(lambda: peer.ears._listeners, WAIT_TIMEOUT, "a listener")
        await asyncio.sleep(BEATS * BEAT + 1)
        assert feed.deafened == 0, "who has nothing to say isn't silent"

        await through.order("stall")
        stalled = time.monotonic()
        await wait_until_async(lambda: feed.deafened, WAIT_TIMEOUT, "notice of the silence")
        assert time.monotonic() - stalled < SILENT_FOR

        await through.order("plain")
        late = RunId(new_id())

        def received() -> bool:
            peer.ears.receive_hints([(late, None)])
            return late in feed.runs

        await wait_until_async(received, WAIT_TIMEOUT, "changes after the member is back")
        assert feed.deafened >= 2, "what it said meanwhile is looked for as well"
        listening.cancel()
    await peers.close()


async def test_silence_of_an_older_member_without_beats_isnt_a_fault(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def changes(
        ears: ChangeBus, _request: object
    ) -> AsyncIterator[peer_service_pb2.ChangesResponse]:
        with ears.listening(None):
            yield peer_service_pb2.ChangesResponse()
            await asyncio.Event().wait()

    monkeypatch.setattr(peer_changes, "changes", changes)
    monkeypatch.setattr(peer_changes, "BEAT", 0.1)
    cluster, feed = Cluster(), Watched()
    cluster.members[OTHER] = peer.endpoint
    peers = Peers(cluster, None)
    async with asyncio.TaskGroup() as group:
        listening = group.create_task(PeerStreams(peers, feed).run(), name="hearing")
        feed.watch(None)
        await wait_until_async(lambda: peer.ears._listeners, WAIT_TIMEOUT, "a listener")
        await asyncio.sleep(1)
        assert feed.deafened == 0
        listening.cancel()
    await peers.close()
