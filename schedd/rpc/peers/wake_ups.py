"""Wake-ups between members: hints that save waiting for a scan, batched while one is being sent.

calls, loops ──→ Nudger ──own shard──→ this member's loops
└──another's────→ PeerService.WakeUp at its owner, one call at a time to each
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Final, NoReturn, Protocol

from schedd.cluster.observer import Observer
from schedd.core.ids import Hint, JobId, ShardId
from schedd.core.runs.model import LiveRun
from schedd.core.runs.records import StoredDefinition
from schedd.rpc.peers.peers import Peers
from schedkit.errors import Unavailable
from schedkit.records import dataclass
from schedkit.tasks import Waker
from schedproto.v1 import peer_service_pb2 as wire

log = logging.getLogger(__name__)

MOST: Final = 1000
"""Jobs in one wake-up; the scan finds the others."""


class WakeUpTargets(Protocol):
    """This member's loops, which a wake-up wakes."""

    def jobs_changed(self, jobs: Iterable[JobId]) -> None: ...
    def runs_ready(self, shards: Iterable[ShardId]) -> None: ...
    def runs_created(
        self, runs: Iterable[LiveRun], definitions: Sequence[StoredDefinition]
    ) -> None: ...
    def runs_changed(self, hints: Sequence[Hint]) -> None: ...
    def cluster_changed(self) -> None: ...


@dataclass(slots=True)
class _Gathered:
    jobs: set[JobId] = field(default_factory=set)
    shards: set[ShardId] = field(default_factory=set)
    cluster: bool = False


class WakeUpSender:
    """Sends and receives wake-ups. `WakeUps` for calls and loops."""

    def __init__(self, cluster: Observer, peers: Peers) -> None:
        self._cluster = cluster
        self._peers = peers
        self._here: WakeUpTargets | None = None
        self._waker = Waker()
        self._gathered: dict[str, _Gathered] = defaultdict(_Gathered)
        self._sending: set[str] = set()

    def move(self, here: WakeUpTargets) -> None:
        """Set the loops that wake-ups for this member wake."""
        self._here = here

    # -- Nudges --

    def jobs_changed(self, changed: Sequence[tuple[JobId, ShardId]]) -> None:
        """Wake the owners of these jobs' timers, which were written."""
        own = self._cluster.owned()
        if self._here is not None:
            self._here.jobs_changed([job for job, shard in changed if shard in own])
        for job, shard in changed:
            gathered = self._for(shard)
            if gathered is not None and len(gathered.jobs) < MOST:
                gathered.jobs.add(job)

    def runs_ready(self, shards: Sequence[ShardId]) -> None:
        """Wake the owners of these shards: runs became ready."""
        own = self._cluster.owned()
        if self._here is not None:
            self._here.runs_ready([shard for shard in shards if shard in own])
        for shard in shards:
            if shard not in own and (gathered := self._for(shard)) is not None:
                gathered.shards.add(shard)

    def runs_created(
        self, runs: Sequence[LiveRun], definitions: Sequence[StoredDefinition] = ()
    ) -> None:
        """Pass runs that were just inserted to this member's loops, with the definitions that were
        stored with them, and wake the other owners. Runs that were dispatched need neither.
        """
        runs = [run for run in runs if not run.token]
        self.runs_changed([run.hint for run in runs])
        own = self._cluster.owned()
        here = [run for run in runs if run.shard in own]
        if here and self._here is not None:
            jobs = {run.job_id for run in here}
            self._here.runs_created(here, [one for one in definitions if one.job_id in jobs])
        if elsewhere := [run.shard for run in runs if run.shard not in own]:
            self.runs_ready(elsewhere)

    def runs_changed(self, hints: Sequence[Hint]) -> None:
        """Publish that these runs changed, for subscribers only. Other members subscribe to this
        one (`peer_changes`).
        """
        if self._here is not None:
            self._here.runs_changed(hints)

    def cluster_changed(self) -> None:
        """Publish that the cluster was paused or resumed, or that the shard map has changed."""
        if self._here is not None:
            self._here.cluster_changed()
        for endpoint in self._peers.endpoints():
            self._gathered[endpoint].cluster = True
        self._waker.wake()

    # -- sending --

    async def run(self) -> NoReturn:
        async with asyncio.TaskGroup() as group:
            while True:
                await self._waker.wait(60.0)
                for endpoint in self._gathered.keys() - self._sending:
                    self._sending.add(endpoint)
                    group.create_task(self._send(endpoint), name=f"nudge {endpoint}")

    def _for(self, shard: ShardId) -> _Gathered | None:
        """Return the queue for the shard's owner; None if this member or no member owns it."""
        view = self._cluster.view()
        member = view.member(view.assigned.get(shard))
        if member is None or member.tenure == self._cluster.tenure:
            return None
        self._waker.wake()
        return self._gathered[member.grpc]

    async def _send(self, endpoint: str) -> None:
        try:
            while (what := self._gathered.pop(endpoint, None)) is not None:
                request = wire.WakeUpRequest(
                    job_ids=[str(job) for job in what.jobs],
                    shards=sorted(what.shards),
                    cluster=what.cluster,
                )
                await self._peers.call(endpoint, request, wire.WakeUpResponse)
        except Unavailable as away:
            log.debug("%s", away)
        finally:
            self._sending.discard(endpoint)
            self._waker.wake()
