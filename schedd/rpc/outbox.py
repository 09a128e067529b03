"""What waits to go down a worker's stream: everything that is there becomes one frame.

Downwards everything goes through one outbox that a single writer empties: idle, a frame leaves at
once; busy, what has gathered meanwhile leaves in one frame (a stream carries thousands of frames a
second, whatever they hold).
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from google.protobuf.message import Message

from schedd.core.ids import Token
from schedd.core.model import Assigned, RunKey
from schedd.core.ready_queue import Head
from schedd.owner.catalogue import Known
from schedd.rpc import frames
from schedproto.v1 import worker_service_pb2 as wire

MOST_IN_FRAME: Final = 500
BYTES_IN_FRAME: Final = 1024 * 1024
"""About how many bytes of assignments go into one frame: a worker takes none over 4 MiB."""


def one_frame(waiting: deque[wire.Assignment]) -> list[wire.Assignment]:
    """Take as many as go into one frame, from the left; at least one, if there is any."""
    taken: list[wire.Assignment] = []
    size = 0
    while waiting and len(taken) < MOST_IN_FRAME:
        size += waiting[0].ByteSize()
        if size > BYTES_IN_FRAME and taken:
            break
        taken.append(waiting.popleft())
    return taken


class Outbox:
    """What waits to go down one stream; `Line` for the loops."""

    def __init__(self) -> None:
        self._frame = wire.MemberFrame()
        self._assignments: deque[wire.Assignment] = deque()
        self._waiting = asyncio.Event()

    def put(self, frame: wire.MemberFrame) -> None:
        """Add to the next frame: lists grow, a newer single field takes an unsent one's place."""
        for field, _ in frame.ListFields():
            if not field.is_repeated:
                plain: Message = self._frame
                plain.ClearField(field.name)
        self._frame.MergeFrom(frame)
        self._waiting.set()

    async def next(self) -> wire.MemberFrame:
        """The next frame, as soon as there is anything to send."""
        await self._waiting.wait()
        self._waiting.clear()
        frame, self._frame = self._frame, wire.MemberFrame()
        frame.assignments.extend(one_frame(self._assignments))
        if self._assignments:
            self._waiting.set()
        return frame

    def assign(self, assigned: Assigned, known: Known) -> None:
        """Hand a run out."""
        self._assignments.append(frames.assignment(assigned, known))
        self._waiting.set()

    def pass_on(self, frame: wire.MemberFrame) -> None:
        """Send the assignments, revokes and cancels of a frame that another member made."""
        self._assignments.extend(frame.assignments)
        self.put(wire.MemberFrame(revokes=frame.revokes, cancels=frame.cancels))

    def revoke(self, key: RunKey, token: Token) -> None:
        """Ask for an assignment back."""
        self.put(wire.MemberFrame(revokes=[wire.Revoke(key=frames.key_message(key, token))]))

    def cancel(self, key: RunKey, token: Token, *, kill: bool) -> None:
        """Have a run ended."""
        told = wire.Cancel(key=frames.key_message(key, token), kill=kill)
        self.put(wire.MemberFrame(cancels=[told]))

    def demand(self, heads: Sequence[Head]) -> None:
        """Tell what waits."""
        self.put(wire.MemberFrame(demand=frames.demand(heads)))

    def acknowledge(self, key: RunKey, token: Token, *, stale: bool) -> None:
        """Say what became of a result."""
        verdict = (
            wire.Acknowledgement.VERDICT_STALE if stale else wire.Acknowledgement.VERDICT_ACCEPTED
        )
        told = wire.Acknowledgement(key=frames.key_message(key, token), verdict=verdict)
        self.put(wire.MemberFrame(acknowledgements=[told]))
