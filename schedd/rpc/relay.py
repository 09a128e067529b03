"""Passing things on to workers that are attached to another member, over one hop (PROTOCOL 4).

    Workers ──not attached here──→ Relay ──PeerService.Relay, to all peers at once──→ pass_on
                                     └── absent everywhere │ passed on │ nobody knows

What is passed on is a frame as it would have gone down the worker's own stream. What comes up
again is taken in by the member that has the stream.

Invariants
- One hop: what was relayed is never relayed again.
- A peer that hangs costs one call's deadline, however many workers it is asked about.
- "Absent" needs the word of every peer; a peer that doesn't answer may have passed it on.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final, NoReturn

from schedd.core.ids import IncarnationId, Token
from schedd.core.model import Assigned, LiveRun, RunKey
from schedd.owner.catalogue import Known
from schedd.owner.elsewhere import Heard
from schedd.owner.workers import Workers
from schedd.rpc import frames
from schedd.rpc.outbox import Outbox
from schedd.rpc.peers import Peers
from schedkit.errors import Unavailable
from schedkit.tasks import Waker
from schedproto.v1 import peer_service_pb2 as wire
from schedproto.v1 import worker_service_pb2 as down

log = logging.getLogger(__name__)

ANSWER_WITHIN: Final = 0.7
"""Seconds that a worker has to answer a relayed revoke; less than a peer's deadline."""
MOST_CANCELS: Final = 1000


class Relay:
    """`Elsewhere` over the peers."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._cancels: dict[tuple[RunKey, Token], tuple[LiveRun, bool]] = {}
        self._waker = Waker()

    async def assign(self, handed: Sequence[tuple[Assigned, Known]]) -> list[Assigned]:
        """Pass these on; gives those whose workers are surely attached nowhere."""
        by_worker: dict[IncarnationId, list[tuple[Assigned, Known]]] = {}
        for each in handed:
            if (incarnation := each[0].run.incarnation) is not None:
                by_worker.setdefault(incarnation, []).append(each)
        async with asyncio.TaskGroup() as group:
            asked = [
                group.create_task(self._hand_on(incarnation, theirs), name=f"hand on {incarnation}")
                for incarnation, theirs in by_worker.items()
            ]
        return [assigned for task in asked for assigned in task.result()]

    async def revoke(self, run: LiveRun) -> bool:
        """Ask for it back; True: its worker has answered."""
        if run.incarnation is None:
            return False
        message = frames.key_message(run.key, run.token)
        frame = down.MemberFrame(revokes=[down.Revoke(key=message)])
        answers = await self._ask(run.incarnation, frame)
        return any(
            (told.key.run_id, told.key.fencing_token) == (message.run_id, message.fencing_token)
            for answer in answers
            if answer is not None
            for told in answer.revoke_answers
        )

    def cancel(self, run: LiveRun, *, kill: bool) -> None:
        """Have it ended, if its worker is to be found; the scan asks again."""
        if len(self._cancels) < MOST_CANCELS:
            self._cancels[run.key, run.token] = (run, kill)
            self._waker.wake()

    async def heard(self, incarnation: IncarnationId) -> Heard | None:
        """Its newest heartbeat to one of them."""
        found = [
            heard
            for answer in await self._ask(incarnation, down.MemberFrame())
            if answer is not None and (heard := _heard(answer)) is not None
        ]
        return max(found, key=lambda each: each.at, default=None)

    async def run(self) -> NoReturn:
        """Send cancels, for ever."""
        while True:
            await self._waker.wait(60.0)
            cancels, self._cancels = self._cancels, {}
            async with asyncio.TaskGroup() as group:
                for run, kill in cancels.values():
                    if run.incarnation is not None:
                        told = down.Cancel(key=frames.key_message(run.key, run.token), kill=kill)
                        frame = down.MemberFrame(cancels=[told])
                        group.create_task(
                            self._ask(run.incarnation, frame), name=f"cancel {run.key.run_id}"
                        )

    async def _hand_on(
        self, incarnation: IncarnationId, theirs: Sequence[tuple[Assigned, Known]]
    ) -> list[Assigned]:
        """All of them if their worker is surely attached nowhere."""
        assignments = [frames.assignment(assigned, known) for assigned, known in theirs]
        answers = await self._ask(incarnation, down.MemberFrame(assignments=assignments))
        if all(answer is not None and answer.absent for answer in answers):
            return [assigned for assigned, _ in theirs]
        return []

    async def _ask(
        self, incarnation: IncarnationId, frame: down.MemberFrame
    ) -> list[wire.RelayResponse | None]:
        """Ask all peers at once; None for one that didn't answer."""
        request = wire.RelayRequest(incarnation=str(incarnation), frame=frame)
        async with asyncio.TaskGroup() as group:
            asked = [
                group.create_task(self._one(endpoint, request), name=f"relay to {endpoint}")
                for endpoint in self._peers.endpoints()
            ]
        return [task.result() for task in asked]

    async def _one(self, endpoint: str, request: wire.RelayRequest) -> wire.RelayResponse | None:
        try:
            return await self._peers.relay(endpoint, request)
        except Unavailable as away:
            log.debug("%s", away)
            return None


async def pass_on(
    workers: Workers, incarnation: IncarnationId, frame: down.MemberFrame
) -> wire.RelayResponse:
    """Pass a frame on to a worker attached here, and wait for its answers to the revokes in it.

    Raises:
        BadFrame: one of the revokes names nothing.
    """
    attached = workers.attached(incarnation)
    if attached is None or not isinstance(attached.line, Outbox):
        return wire.RelayResponse(absent=True)
    attached.pushed += sum(max(each.slots, 1) for each in frame.assignments)
    keys = [(each.key, frames.key_of(each.key)) for each in frame.revokes]
    async with asyncio.TaskGroup() as group:
        answers = [
            (
                message,
                group.create_task(
                    workers.revoke_settled(run.run_id, token, ANSWER_WITHIN),
                    name=f"relayed revoke {run.run_id}",
                ),
            )
            for message, (run, token) in keys
        ]
        await asyncio.sleep(0)  # each waits by now: no answer is missed
        attached.line.pass_on(frame)
    settled = [down.RevokeAnswer(key=message) for message, task in answers if task.result()]
    response = wire.RelayResponse(revoke_answers=settled)
    if attached.heard is not None and not frame.ListFields():
        response.heartbeat.CopyFrom(_heartbeat(attached.heard))
    return response


def _heartbeat(heard: Heard) -> down.Heartbeat:
    beat = down.Heartbeat(judged_time=frames.stamp(heard.at))
    beat.holdings.extend(_holdings(heard))
    return beat


def _holdings(heard: Heard) -> Iterable[down.Holding]:
    for run_id, token in heard.holding:
        yield down.Holding(key=down.AssignmentKey(run_id=str(run_id), fencing_token=token))


def _heard(answer: wire.RelayResponse) -> Heard | None:
    if not answer.HasField("heartbeat"):
        return None
    try:
        keys = [frames.key_of(each.key) for each in answer.heartbeat.holdings]
        at = frames.instant(answer.heartbeat.judged_time)
    except frames.BadFrame as bad:
        log.warning("a peer's answer can't be read: %s", bad)
        return None
    return Heard(at, frozenset((run.run_id, token) for run, token in keys))
