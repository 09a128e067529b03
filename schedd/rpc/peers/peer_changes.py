"""Receive changes of runs from the other members, while this member has subscribers.

    Feed ──which jobs?──▶ PeerStreams ──PeerService.Changes, a stream to each peer──▶ its ChangeBus
      ◀──────────────── hints ──────────────────────────────────────────────────────────┘

Invariants
- When a stream breaks, or couldn't be opened, the feed is marked deaf and reads the rows instead.
- A silent stream counts as broken: the peer answers at once, then at least every BEAT seconds. So a
  half-open connection is detected after BEATS intervals.
- When the jobs change, the new stream opens before the old one ends, so that no change is lost.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final, NoReturn, TypeAlias

from schedd.core.ids import Id, JobId, RunId
from schedd.rpc.peers.peers import Peers
from schedd.watch.change_bus import ChangeBus
from schedd.watch.subscriptions import Subscriptions
from schedkit.errors import Unavailable
from schedkit.tasks import Waker
from schedproto.v1 import peer_service_pb2 as wire

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 10.0
AGAIN_AFTER: Final = 1.0
"""Seconds until the next try after a stream broke."""
GATHERS: Final = 0.05
"""Seconds in which new subscriptions are batched into one change of the streams."""
MOST_JOBS: Final = 10_000
"""Jobs in one request; with more, the request is for all jobs."""
BOTH: Final = 1.0
"""Seconds that a stream overlaps with its successor."""
BEAT: Final = 2.0
"""Seconds after which an empty answer is sent."""
BEAT_MS: Final = round(BEAT * 1000)
BEATS: Final = 3
"""Beats without an answer after which a peer counts as unavailable."""
EVERY: Final = 0.02
"""Seconds in which changes are batched into one answer."""
MOST: Final = 10_000
"""Runs in one answer."""

_Jobs: TypeAlias = "frozenset[JobId] | None"


class PeerStreams:
    """Streams from the other members."""

    def __init__(self, peers: Peers, feed: Subscriptions) -> None:
        self._peers = peers
        self._feed = feed
        self._waker = Waker()
        self._streams: dict[str, tuple[_Jobs, asyncio.Task[None]]] = {}
        feed.on_interest = self._waker.wake

    def members_changed(self) -> None:
        """Check soon for new members."""
        self._waker.wake()

    async def run(self) -> NoReturn:
        """Keep a stream to each peer while there are subscribers, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                jobs = self._feed.jobs
                watched = jobs is None or bool(jobs)
                wanted = set(self._peers.endpoints()) if watched else set()
                for endpoint in [*self._streams]:
                    if endpoint not in wanted:
                        self._streams.pop(endpoint)[1].cancel()
                for endpoint in wanted:
                    known = self._streams.get(endpoint)
                    if known is None or known[0] != jobs:
                        if known is not None:
                            asyncio.get_running_loop().call_later(BOTH, known[1].cancel)
                        task = group.create_task(
                            self._receive(endpoint, jobs), name=f"changes of {endpoint}"
                        )
                        self._streams[endpoint] = jobs, task
                await self._waker.wait(LOOK_EVERY)
                await asyncio.sleep(GATHERS)

    async def _receive(self, endpoint: str, jobs: _Jobs) -> None:
        """Forward the peer's changes to the feed, until cancelled."""
        named = sorted(jobs) if jobs is not None and len(jobs) <= MOST_JOBS else ()
        request = wire.ChangesRequest(jobs=named)
        connected = True
        while True:
            try:
                async for answer in _timely(self._peers.changes(endpoint, request)):
                    if answer.lost or not connected:
                        self._feed.deaf()
                    connected = True
                    self._feed.receive_hints([(RunId(Id(run)), None) for run in answer.runs])
            except Unavailable as away:
                log.debug("%s", away)
            if connected:
                self._feed.deaf()
            connected = False
            await asyncio.sleep(AGAIN_AFTER)


async def _timely(
    answers: AsyncGenerator[wire.ChangesResponse, None],
) -> AsyncIterator[wire.ChangesResponse]:
    """Yield the answers while they arrive at the announced interval. Members of older versions
    announce none.

    Raises:
        Unavailable: the stream broke, or timed out.
    """
    within: float | None = BEATS * BEAT
    async with aclosing(answers):
        while True:
            try:
                async with asyncio.timeout(within):
                    answer = await anext(answers, None)
            except TimeoutError:
                raise Unavailable(
                    "the change stream from another member timed out: no message for"
                    f" {within:g} s; this member opens it again"
                ) from None
            if answer is None:
                return
            within = BEATS * answer.max_interval_ms / 1000 or None
            yield answer


async def changes(
    bus: ChangeBus, request: wire.ChangesRequest
) -> AsyncIterator[wire.ChangesResponse]:
    """Yield the changes of this member, for a peer that subscribes. The first answer is empty: it
    confirms the subscription. An empty answer also follows BEAT seconds without a change.
    """
    jobs = frozenset(JobId(Id(job)) for job in request.jobs) or None
    with bus.listening(jobs) as ear:
        yield wire.ChangesResponse(max_interval_ms=BEAT_MS)
        while True:
            if await ear.wait(BEAT):
                await asyncio.sleep(EVERY)
            runs, lost = ear.take_runs(MOST)
            yield wire.ChangesResponse(runs=runs, lost=lost, max_interval_ms=BEAT_MS)
