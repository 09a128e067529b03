"""The queue of messages for one member: all waiting messages become one frame.

Invariants
- An idle stream sends at once. Messages that arrive while a frame is being written go together in
  the next frame. So frames grow with load, and their number doesn't.
- A frame holds at most `MAX_ITEMS` items and about `MAX_BYTES` bytes.
- Followed output is sent last, and dropped if there is no room; offsets show the gap.
- Only the newest grant, heartbeat, and progress of each attempt is kept. A heartbeat is created
  with its frame: its time and holdings must be those of the sending.
"""

from __future__ import annotations

import asyncio
from collections import deque

from schedkit.bounds.tables import MOST_BATCHES
from schedproto.v1 import worker_service_pb2 as pb
from workerd.core.ids import Address

MAX_ITEMS = 500
MAX_BYTES = 1024 * 1024
CHUNK = 500
"""Bytes of overhead of a piece of output."""


class MemberFrameQueue:
    """The queue of one stream, with one reader. Used on the event loop only. A closed stream drops
    what is queued; the member then notices it anyway.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._results: deque[pb.Result] = deque()
        self._batches: deque[pb.ResultBatch] = deque()
        self._refusals: deque[pb.Refusal] = deque()
        self._answers: deque[pb.RevokeAnswer] = deque()
        self._logs: deque[pb.LogChunk] = deque()
        self._log_bytes = 0
        self._progress: dict[tuple[str, int], pb.Progress] = {}
        self._granted: pb.Granted | None = None
        self._last: pb.WorkerFrame | None = None
        self.heartbeat_due = False
        self._something = asyncio.Event()

    def send_result(self, result: pb.Result) -> None:
        self._results.append(result)
        self._something.set()

    def send_result_batch(self, batch: pb.ResultBatch) -> None:
        self._batches.append(batch)
        self._something.set()

    def send_refusal(self, refusal: pb.Refusal) -> None:
        self._refusals.append(refusal)
        self._something.set()

    def send_revoke_answer(self, answer: pb.RevokeAnswer) -> None:
        self._answers.append(answer)
        self._something.set()

    def send_log(self, chunk: pb.LogChunk) -> None:
        """Queue a piece of output for a follower, if there is room."""
        size = len(chunk.piece.data) + CHUNK
        if self._log_bytes + size <= MAX_BYTES:
            self._logs.append(chunk)
            self._log_bytes += size
            self._something.set()

    def send_progress(self, progress: pb.Progress) -> None:
        """Queue the progress of an attempt; it replaces one that wasn't sent yet."""
        key = progress.key
        self._progress[key.run_id, key.fencing_token] = progress
        self._something.set()

    def send_grant(self, granted: pb.Granted) -> None:
        """Queue a grant; it replaces one that wasn't sent yet."""
        self._granted = granted
        self._something.set()

    def beat(self) -> None:
        self.heartbeat_due = True
        self._something.set()

    def end(self, last: pb.WorkerFrame) -> None:
        """End the stream after all waiting messages. `last` is merged into the last frame."""
        self._last = last
        self._something.set()

    @property
    def over(self) -> bool:
        """Whether all messages were sent, and no more will follow."""
        return self._last is not None and not self._something.is_set()

    async def wait(self) -> None:
        await self._something.wait()

    def take_frame(self) -> pb.WorkerFrame:
        """Return the next frame without heartbeat; the caller adds one if it is due."""
        frame = pb.WorkerFrame()
        room, weight = MAX_ITEMS, 0
        while self._refusals and room:
            frame.refusals.append(self._refusals.popleft())
            room -= 1
        while self._answers and room:
            frame.revoke_answers.append(self._answers.popleft())
            room -= 1
        while self._results and room and weight < MAX_BYTES:
            result = self._results.popleft()
            frame.results.append(result)
            weight += result.ByteSize()
            room -= 1
        while self._batches and len(frame.result_batches) < MOST_BATCHES and weight < MAX_BYTES:
            batch = self._batches.popleft()
            frame.result_batches.append(batch)
            weight += batch.ByteSize()
        while self._progress and room:
            frame.progress.append(self._progress.pop(next(iter(self._progress))))
            room -= 1
        while self._logs and room and weight < MAX_BYTES:
            chunk = self._logs.popleft()
            frame.log_chunks.append(chunk)
            weight += len(chunk.piece.data)
            self._log_bytes -= len(chunk.piece.data) + CHUNK
            room -= 1
        if self._granted is not None:
            frame.granted.CopyFrom(self._granted)
            self._granted = None
        results = self._results or self._batches
        if not any((self._refusals, self._answers, results, self._progress, self._logs)):
            if self._last is not None:
                frame.MergeFrom(self._last)
            self._something.clear()
        return frame
