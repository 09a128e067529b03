"""What changes at the other members, heard for as long as somebody watches here.

    Feed ──which jobs?──▶ Hearing ──PeerService.Changes, a stream to each peer──▶ Ear over there
      ◀──────────────── hints ────────────────────────────────────────────────────┘

Invariants
- Where a stream breaks, or wasn't there, the feed is told that it was deaf: it looks at the rows.
- A stream that says nothing has broken: the other member promises an answer each BEAT, and the
  first one at once. So a connection that is half open is found within BEATS of them.
- Of other jobs than before is asked before the stream of before ends: nothing is lost between.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Final, NoReturn, Protocol, TypeAlias
from uuid import UUID

from schedd.core.ids import Hint, JobId, RunId
from schedd.rpc.peers.peers import Peers
from schedd.watch.change_bus import ChangeBus
from schedkit.errors import Unavailable
from schedkit.tasks import Waker
from schedproto.v1 import peer_service_pb2 as wire

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 10.0
AGAIN_AFTER: Final = 1.0
"""Seconds after which a peer that couldn't be heard is asked again."""
GATHERS: Final = 0.05
"""Seconds in which many begin to watch for one change of the streams."""
MOST_JOBS: Final = 10_000
"""Jobs in one request; of more, all are asked for."""
BOTH: Final = 1.0
"""Seconds in which a stream goes on whose successor has begun."""
BEAT: Final = 2.0
"""Seconds after which an answer is given, if an empty one."""
BEAT_MS: Final = round(BEAT * 1000)
BEATS: Final = 3
"""Beats without an answer after which a member has fallen silent."""
EVERY: Final = 0.02
"""Seconds in which what changes gathers for one answer."""
MOST: Final = 10_000
"""Runs in one answer."""

_Jobs: TypeAlias = "frozenset[JobId] | None"


class Watched(Protocol):
    """The feed of this member, as far as it matters here."""

    on_interest: Callable[[], None]

    @property
    def jobs(self) -> frozenset[JobId] | None: ...
    def hear(self, hints: Sequence[Hint]) -> None: ...
    def deaf(self) -> None: ...


class PeerStreams:
    """Streams from the other members."""

    def __init__(self, peers: Peers, feed: Watched) -> None:
        self._peers = peers
        self._feed = feed
        self._waker = Waker()
        self._streams: dict[str, tuple[_Jobs, asyncio.Task[None]]] = {}
        feed.on_interest = self._waker.wake

    def members_changed(self) -> None:
        """Some may have come."""
        self._waker.wake()

    async def run(self) -> NoReturn:
        """Keep a stream to each, for ever, while somebody watches."""
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
                            self._hear(endpoint, jobs), name=f"changes of {endpoint}"
                        )
                        self._streams[endpoint] = jobs, task
                await self._waker.wait(LOOK_EVERY)
                await asyncio.sleep(GATHERS)

    async def _hear(self, endpoint: str, jobs: _Jobs) -> None:
        """Pass on what changes there, until nobody wants it."""
        named = sorted(jobs) if jobs is not None and len(jobs) <= MOST_JOBS else ()
        request = wire.ChangesRequest(jobs=[job.bytes for job in named])
        hears = True
        while True:
            try:
                async for answer in _heard(self._peers.changes(endpoint, request)):
                    if answer.lost or not hears:
                        self._feed.deaf()
                    hears = True
                    self._feed.hear([(RunId(UUID(bytes=run)), None) for run in answer.runs])
            except Unavailable as away:
                log.debug("%s", away)
            if hears:
                self._feed.deaf()
            hears = False
            await asyncio.sleep(AGAIN_AFTER)


async def _heard(
    answers: AsyncGenerator[wire.ChangesResponse, None],
) -> AsyncIterator[wire.ChangesResponse]:
    """These, while they come as often as was promised. Members of before promise nothing.

    Raises:
        Unavailable: it broke, or the other member has fallen silent.
    """
    within: float | None = BEATS * BEAT
    async with aclosing(answers):
        while True:
            try:
                async with asyncio.timeout(within):
                    answer = await anext(answers, None)
            except TimeoutError:
                raise Unavailable(f"nothing was heard for {within:g} s") from None
            if answer is None:
                return
            within = BEATS * answer.beat_ms / 1000 or None
            yield answer


async def told(
    ears: ChangeBus, request: wire.ChangesRequest
) -> AsyncIterator[wire.ChangesResponse]:
    """What changes here, for a member that listens. The first answer is empty: it stands; and one
    that comes after BEAT without a change.
    """
    jobs = frozenset(JobId(UUID(bytes=job)) for job in request.jobs) or None
    with ears.listening(jobs) as ear:
        yield wire.ChangesResponse(beat_ms=BEAT_MS)
        while True:
            if await ear.wait(BEAT):
                await asyncio.sleep(EVERY)
            runs, lost = ear.take(MOST)
            yield wire.ChangesResponse(runs=[run.bytes for run in runs], lost=lost, beat_ms=BEAT_MS)
