"""Relay frames to workers that are attached to another member, over one hop (P4.5).

    Workers ──not attached here──→ Relay ──PeerService.Relay, to all peers at once──→ pass_on
                                     └── absent everywhere │ relayed │ unknown

A relayed frame is the frame that the worker's own stream would carry. The member with the stream
handles what the worker sends back.

Invariants
- One hop: a relayed frame is never relayed again.
- A peer that hangs costs one call's deadline, for any number of workers.
- "Absent" needs the answer of every peer; a peer without an answer may have relayed the frame.
- A frame is no larger than those of a stream (`frame_queue`). Larger requests are split into
  several frames, sent at the same time.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, NoReturn, TypeAlias, TypeVar

from schedd.api.views import set_stamp
from schedd.cluster.observer import Observer
from schedd.core.ids import Id, IncarnationId, JobId, RunId, ShardId, Token
from schedd.core.runs.model import Assigned, Incarnation, LiveRun, RunKey
from schedd.core.runs.records import WorkerView
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.dispatch.workers.remote_workers import LastHeartbeat
from schedd.rpc.peers.peers import Peers
from schedd.rpc.workers import frames
from schedd.rpc.workers.frame_queue import MOST_IN_FRAME, WorkerFrameQueue, one_frame
from schedd.runtime.definition_texts import CachedDefinition
from schedkit.errors import Unavailable
from schedkit.tasks import Waker
from schedproto.v1 import peer_service_pb2 as wire
from schedproto.v1 import worker_service_pb2 as down

log = logging.getLogger(__name__)

T = TypeVar("T")

ANSWER_WITHIN: Final = 0.7
"""Seconds that a worker has to answer a relayed revoke; less than a peer's deadline."""
MOST_CANCELS: Final = 1000


class Relay:
    """`RemoteWorkers` over the peers."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._cancels: dict[tuple[RunKey, Token], tuple[LiveRun, bool]] = {}
        self._waker = Waker()

    async def assign(self, handed: Sequence[tuple[Assigned, CachedDefinition]]) -> list[Assigned]:
        """Relay these. Return those whose workers are certainly not attached to any member."""
        by_worker: dict[IncarnationId, list[tuple[Assigned, CachedDefinition]]] = {}
        for each in handed:
            if (incarnation := each[0].run.incarnation) is not None:
                by_worker.setdefault(incarnation, []).append(each)
        async with asyncio.TaskGroup() as group:
            asked = [
                group.create_task(self._relay(incarnation, theirs), name=f"relay to {incarnation}")
                for incarnation, theirs in by_worker.items()
            ]
        return [assigned for task in asked for assigned in task.result()]

    async def revoke(
        self, incarnation: IncarnationId, runs: Sequence[LiveRun]
    ) -> set[tuple[RunId, Token]]:
        """Revoke these assignments; return those that their worker has answered."""
        keys = [frames.key_message(run.key, run.token) for run in runs]
        named = {
            (key.run_id, key.fencing_token): (run.key.run_id, run.token)
            for key, run in zip(keys, runs, strict=True)
        }
        revokes = [
            down.MemberFrame(revokes=[down.Revoke(key=key) for key in some]) for some in _cut(keys)
        ]
        answered = [
            (answer.key.run_id, answer.key.fencing_token)
            for answers in await self._ask_each(incarnation, revokes)
            for response in answers
            if response is not None
            for answer in response.revoke_answers
        ]
        return {named[at] for at in answered if at in named}

    def cancel(self, run: LiveRun, *, kill: bool) -> None:
        """Queue a cancel for its worker; the scan retries. A queued cancel may become a kill, also
        when the queue is full.
        """
        at = run.key, run.token
        if at in self._cancels or len(self._cancels) < MOST_CANCELS:
            _, already = self._cancels.get(at, (run, False))
            self._cancels[at] = (run, kill or already)
            self._waker.wake()

    async def last_heartbeat(self, incarnation: IncarnationId) -> LastHeartbeat | None:
        """Return its newest heartbeat to another member."""
        [answers] = await self._ask_each(incarnation, [down.MemberFrame()])
        found = [
            last
            for answer in answers
            if answer is not None and (last := _last_heartbeat(answer)) is not None
        ]
        return max(found, key=lambda each: each.at, default=None)

    async def views(self, away: Sequence[Incarnation]) -> Sequence[WorkerView]:
        """Return the state of these, as the members report that receive their heartbeats."""
        return await peer_views(self._peers, away)

    async def run(self) -> NoReturn:
        """Send queued cancels, until cancelled."""
        while True:
            await self._waker.wait(60.0)
            cancels, self._cancels = self._cancels, {}
            by_worker: dict[IncarnationId, list[down.Cancel]] = {}
            for run, kill in cancels.values():
                if run.incarnation is not None:
                    cancel = down.Cancel(key=frames.key_message(run.key, run.token), kill=kill)
                    by_worker.setdefault(run.incarnation, []).append(cancel)
            async with asyncio.TaskGroup() as group:
                for incarnation, theirs in by_worker.items():
                    batches = [down.MemberFrame(cancels=some) for some in _cut(theirs)]
                    asking = self._ask_each(incarnation, batches)
                    group.create_task(asking, name=f"cancels for {incarnation}")

    async def _relay(
        self, incarnation: IncarnationId, theirs: Sequence[tuple[Assigned, CachedDefinition]]
    ) -> list[Assigned]:
        waiting = deque(frames.assignment(assigned, known) for assigned, known in theirs)
        unsent = iter(theirs)
        batches = []
        while some := one_frame(waiting):
            batches.append((some, [assigned for assigned, _ in islice(unsent, len(some))]))
        requests = [down.MemberFrame(assignments=some) for some, _ in batches]
        answers = await self._ask_each(incarnation, requests)
        return [
            assigned
            for (_, sent), responses in zip(batches, answers, strict=True)
            if all(answer is not None and answer.not_attached for answer in responses)
            for assigned in sent
        ]

    async def _ask_each(
        self, incarnation: IncarnationId, requests: Sequence[down.MemberFrame]
    ) -> list[list[wire.RelayResponse | None]]:
        of = str(incarnation)
        asked = [wire.RelayRequest(incarnation=of, frame=frame) for frame in requests]
        return await self._peers.call_all(asked, wire.RelayResponse)


async def pass_on(
    workers: WorkerRegistry, incarnation: IncarnationId, frame: down.MemberFrame
) -> wire.RelayResponse:
    """Send a frame to a worker attached here, and wait for its answers to the revokes in it.

    Raises:
        BadFrame: an item of the frame is out of its bounds.
    """
    for name in ("assignments", "revokes", "cancels"):
        for item in getattr(frame, name):
            frames.check(item, f"frame.{name}")
    attached = workers.attached(incarnation)
    if attached is None or not isinstance(attached.line, WorkerFrameQueue):
        return wire.RelayResponse(not_attached=True)
    if not all(attached.incarnation.may_work_for(each.namespace) for each in frame.assignments):
        return wire.RelayResponse(not_attached=True)
    attached.pushed += sum(max(each.slots, 1) for each in frame.assignments)
    asked = {}
    for each in frame.revokes:
        run, token = frames.key_of(each.key)
        asked[run.run_id, token] = each.key
    with workers.answers_to(asked, ANSWER_WITHIN) as question:
        attached.line.pass_on(frame)
        await question.resolved()
    answered = [down.RevokeAnswer(key=key) for at, key in asked.items() if at not in question.open]
    response = wire.RelayResponse(revoke_answers=answered)
    if attached.last_heartbeat is not None and not frame.ListFields():
        last = attached.last_heartbeat
        set_stamp(response.heartbeat.worker_cluster_time, last.at)
        for run_id, token in last.holding:
            key = down.AssignmentKey(run_id=str(run_id), fencing_token=token)
            response.heartbeat.holdings.append(down.Holding(key=key))
    return response


def _cut(whole: Sequence[T]) -> list[Sequence[T]]:
    return [whole[at : at + MOST_IN_FRAME] for at in range(0, len(whole), MOST_IN_FRAME)]


def _last_heartbeat(answer: wire.RelayResponse) -> LastHeartbeat | None:
    if not answer.HasField("heartbeat"):
        return None
    beat = answer.heartbeat
    try:
        return LastHeartbeat(frames.instant(beat.worker_cluster_time), frames.holdings(beat))
    except frames.BadFrame as bad:
        log.warning("answer of a member rejected: error=%s", bad)
        return None


# The state of workers whose heartbeats only other members receive, for the CLI and pages.
#
# One call to each peer for up to `MOST_ASKED` workers; no call if all are attached here. A peer
# that hangs, or doesn't know the call, costs one deadline; the state it has is missing.

MOST_ASKED: Final = 5_000
"""Workers in one call; for more, several calls run at the same time."""

_Reported: TypeAlias = wire.WorkersResponse.Received


async def peer_views(peers: Peers, away: Sequence[Incarnation]) -> list[WorkerView]:
    """Return the state of workers that a peer has attached; of several states, the newest."""
    requests = [
        wire.WorkersRequest(incarnations=[one.id for one in away[at : at + MOST_ASKED]])
        for at in range(0, len(away), MOST_ASKED)
    ]
    newest: dict[bytes, _Reported] = {}
    for answers in await peers.call_all(requests, wire.WorkersResponse):
        for found in (one for answer in answers if answer is not None for one in answer.received):
            before = newest.get(found.incarnation)
            if before is None or found.seconds_since_heartbeat < before.seconds_since_heartbeat:
                newest[found.incarnation] = found
    return [_view(one, newest[one.id]) for one in away if one.id in newest]


def reported(view: WorkerView) -> _Reported:
    return _Reported(
        incarnation=view.incarnation.id,
        draining=view.draining,
        free=view.free,
        running=view.running,
        unstored_results=view.unstored_results,
        lease_age=view.lease_age,
        seconds_since_heartbeat=view.silent,
        spool_bytes=view.spool,
        disk_free_bytes=view.disk_free,
        refusal_reason=view.refusal_reason,
    )


def _view(one: Incarnation, reported: _Reported) -> WorkerView:
    return WorkerView(
        one,
        draining=reported.draining,
        free=reported.free,
        running=reported.running,
        lease_age=reported.lease_age,
        spool=reported.spool_bytes,
        disk_free=reported.disk_free_bytes,
        refusal_reason=reported.refusal_reason,
        unstored_results=reported.unstored_results,
        silent=reported.seconds_since_heartbeat,
    )


# Return which workers have refused a job, from the member that dispatches its runs.
#
# A worker sends a refusal to the member that dispatched the run, and that member remembers it. So
# any other member asks the owner of the job's shard. If the owner is unavailable, or of an older
# version, this member returns the refusals that it knows itself.


class AskedRefusals:
    def __init__(self, cluster: Observer, workers: WorkerRegistry, peers: Peers) -> None:
        self._cluster = cluster
        self._workers = workers
        self._peers = peers

    async def refusals_of_job(
        self, shard: ShardId, job: JobId, generation: int
    ) -> Mapping[IncarnationId, str]:
        """Return the reason of each worker that has refused the job."""
        view = self._cluster.view()
        owner = view.member(view.assigned.get(shard))
        here = self._workers.refusals(job, generation)
        if owner is None or owner.tenure == self._cluster.tenure:
            return here
        request = wire.RefusalsRequest(job_id=str(job), generation=generation)
        try:
            answer = await self._peers.call(owner.grpc, request, wire.RefusalsResponse)
            return {IncarnationId(Id.parse(one.incarnation)): one.why for one in answer.refused}
        except Unavailable as away:
            log.debug("%s", away)
        return here
