"""The queue of messages to one worker: all that is queued goes out as one frame.

Invariants
- One writer empties the outbox. On an idle stream a frame is sent at once. On a busy one, queued
  messages are batched, because a stream is limited by its number of frames.
- Each message is queued once: a cancel is repeated at every scan, and a result that wasn't
  acknowledged is retried.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final, TypeAlias, TypeVar

from google.protobuf.message import Message

from schedd.core.dispatch.ready_queue import QueueHead
from schedd.core.ids import RunId, Token
from schedd.core.runs.model import DispatchedBatch, RunKey
from schedd.rpc.workers import frames
from schedd.runtime.definition_texts import CachedDefinition
from schedkit.bounds.tables import MOST_IN_BATCH
from schedproto.v1 import worker_service_pb2 as wire

M = TypeVar("M", wire.Assignment, wire.RunBatch)
T = TypeVar("T")
_Attempt: TypeAlias = tuple[str, int]
"""A run's id and token, as on the wire."""

MOST_IN_FRAME: Final = 500
BYTES_IN_FRAME: Final = 1024 * 1024
"""Bytes of assignments in one frame, approximately: a worker rejects frames over 4 MiB."""


def one_frame(waiting: deque[M]) -> list[M]:
    """Remove and return as many as fit into one frame, from the left; at least one, if any."""
    taken: list[M] = []
    size = 0
    while waiting and len(taken) < MOST_IN_FRAME:
        size += waiting[0].ByteSize()
        if size > BYTES_IN_FRAME and taken:
            break
        taken.append(waiting.popleft())
    return taken


class WorkerFrameQueue:
    """The outbox of one stream; `AttachedStream` for the loops. `reads_batches`,
    `reads_payloads`: the worker's.
    """

    def __init__(self, *, reads_batches: bool = False, reads_payloads: bool = False) -> None:
        self._reads_batches = reads_batches
        self._reads_payloads = reads_payloads
        self._frame = wire.MemberFrame()
        self._assignments: deque[wire.Assignment] = deque()
        self._run_batches: deque[wire.RunBatch] = deque()
        self._cancels: dict[_Attempt, wire.Cancel] = {}
        self._revokes: dict[_Attempt, wire.Revoke] = {}
        self._follows: dict[_Attempt, wire.Follow] = {}
        self._acknowledgements: dict[_Attempt, wire.Acknowledgement] = {}
        self._stored: dict[RunId, Token] = {}
        """Runs whose success is acknowledged by `AckBatch`."""
        self._waiting = asyncio.Event()

    def put(self, frame: wire.MemberFrame) -> None:
        """Set these single fields of the next frame; unsent values are replaced."""
        for field, _ in frame.ListFields():
            plain: Message = self._frame
            plain.ClearField(field.name)
        self._frame.MergeFrom(frame)
        self._waiting.set()

    async def next(self) -> wire.MemberFrame:
        """Return the next frame, as soon as there is anything to send."""
        await self._waiting.wait()
        self._waiting.clear()
        frame, self._frame = self._frame, wire.MemberFrame()
        frame.assignments.extend(one_frame(self._assignments))
        if not frame.assignments:  # only relayed ones: the two don't share a frame
            frame.run_batches.extend(one_frame(self._run_batches))
        frame.cancels.extend(_first(self._cancels))
        frame.revokes.extend(_first(self._revokes))
        frame.acknowledgements.extend(_first(self._acknowledgements))
        frame.follows.extend(_first(self._follows))
        if self._stored:
            stored = [*islice(self._stored, MOST_IN_BATCH)]
            tokens = [*map(self._stored.pop, stored)]
            frame.ack_batches.add(run_ids=b"".join(stored), fencing_tokens=tokens)
        named = (self._cancels, self._revokes, self._acknowledgements, self._follows)
        if self._assignments or self._run_batches or self._stored or any(named):
            self._waiting.set()
        return frame

    def assign(self, batch: DispatchedBatch, known: Sequence[CachedDefinition]) -> None:
        """Queue assignments. `known`: the definition of each."""
        if self._reads_batches and (self._reads_payloads or not batch.payloads):
            self._run_batches.append(frames.run_batch(batch, known))
        else:
            self._assignments.extend(map(frames.assignment, batch.single(), known))
        self._waiting.set()

    def pass_on(self, frame: wire.MemberFrame) -> None:
        """Queue the assignments, revokes and cancels of a relayed frame."""
        self._assignments.extend(frame.assignments)
        for revoke in frame.revokes:
            self._revokes[_attempt(revoke.key)] = revoke
        for cancel in frame.cancels:
            self._cancel(cancel)
        self._waiting.set()

    def revoke(self, key: RunKey, token: Token) -> None:
        self._revokes[str(key.run_id), token] = wire.Revoke(key=frames.key_message(key, token))
        self._waiting.set()

    def cancel(self, key: RunKey, token: Token, *, kill: bool) -> None:
        self._cancel(wire.Cancel(key=frames.key_message(key, token), kill=kill))
        self._waiting.set()

    def demand(self, heads: Sequence[QueueHead]) -> None:
        self.put(wire.MemberFrame(demand=frames.demand(heads)))

    def reach(self, serial: int, slots: int) -> None:
        """Queue how many slots this member uses of grants before the one of this serial."""
        self.put(wire.MemberFrame(reach=wire.Reach(serial=serial, slots=slots)))

    def follow(self, key: RunKey, token: Token, *, on: bool) -> None:
        """Queue a request to stream the output of an attempt, or to stop."""
        follow = wire.Follow(key=frames.key_message(key, token), stop=not on)
        self._follows[_attempt(follow.key)] = follow
        self._waiting.set()

    def drain(self, *, on: bool) -> None:
        self.put(wire.MemberFrame(drain=wire.Drain(undrain=not on)))

    def acknowledge(self, key: RunKey, token: Token, *, stale: bool) -> None:
        verdict = (
            wire.Acknowledgement.VERDICT_STALE if stale else wire.Acknowledgement.VERDICT_ACCEPTED
        )
        answer = wire.Acknowledgement(key=frames.key_message(key, token), verdict=verdict)
        self._acknowledgements[str(key.run_id), token] = answer
        self._waiting.set()

    def acknowledge_all(self, run_ids: Sequence[RunId], tokens: Sequence[Token]) -> None:
        """Queue the acknowledgement of stored successes, which the worker sent as a batch."""
        self._stored.update(zip(run_ids, tokens, strict=True))
        self._waiting.set()

    def dismiss(self, key: wire.AssignmentKey) -> None:
        """Queue STALE for a result that can't be decoded, so that the worker deletes it."""
        answer = wire.Acknowledgement(key=key, verdict=wire.Acknowledgement.VERDICT_STALE)
        self._acknowledgements[_attempt(key)] = answer
        self._waiting.set()

    def _cancel(self, cancel: wire.Cancel) -> None:
        """Queue a cancel once; a queued kill stays a kill."""
        at = _attempt(cancel.key)
        cancel.kill = cancel.kill or (at in self._cancels and self._cancels[at].kill)
        self._cancels[at] = cancel


def _attempt(key: wire.AssignmentKey) -> _Attempt:
    return key.run_id, key.fencing_token


def _first(waiting: dict[_Attempt, T]) -> list[T]:
    """Remove and return as many as fit into one frame, oldest first."""
    return [waiting.pop(at) for at in list(islice(waiting, MOST_IN_FRAME))]
