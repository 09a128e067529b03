"""What waits to go up one stream: everything that is there becomes one frame.

Invariants
- An idle stream sends at once; while a frame is being written, what comes in waits and goes
  together in the next. So frames grow with load, and their number doesn't.
- A frame holds at most `MAX_ITEMS` items and about `MAX_BYTES` bytes.
- Output that is read along goes last, and what there is no room for is left out: offsets tell.
- Of grants and heartbeats, and of each attempt's progress, only the newest is kept; a heartbeat is
  made when its frame is, for the time and the holdings in it must be those of the sending.
"""

from __future__ import annotations

import asyncio
from collections import deque

from schedproto.v1 import worker_service_pb2 as pb

MAX_ITEMS = 500
MAX_BYTES = 1024 * 1024
CHUNK = 500
"""Bytes that a piece of output takes besides what is in it."""


class MemberOutbox:
    """One stream's queue. One writer takes; anybody on the loop puts."""

    def __init__(self) -> None:
        self._results: deque[pb.Result] = deque()
        self._refusals: deque[pb.Refusal] = deque()
        self._answers: deque[pb.RevokeAnswer] = deque()
        self._logs: deque[pb.LogChunk] = deque()
        self._log_bytes = 0
        self._progress: dict[tuple[str, int], pb.Progress] = {}
        self._granted: pb.Granted | None = None
        self._last: pb.WorkerFrame | None = None
        self.heartbeat_due = False
        self._something = asyncio.Event()

    def result(self, result: pb.Result) -> None:
        """Send a result that is in the spool."""
        self._results.append(result)
        self._something.set()

    def refuse(self, refusal: pb.Refusal) -> None:
        """Say that an assignment isn't taken."""
        self._refusals.append(refusal)
        self._something.set()

    def answer(self, answer: pb.RevokeAnswer) -> None:
        """Answer a revoke."""
        self._answers.append(answer)
        self._something.set()

    def log(self, chunk: pb.LogChunk) -> None:
        """Tell somebody who reads along what an attempt writes, as far as there is room."""
        size = len(chunk.piece.data) + CHUNK
        if self._log_bytes + size <= MAX_BYTES:
            self._logs.append(chunk)
            self._log_bytes += size
            self._something.set()

    def progress(self, progress: pb.Progress) -> None:
        """Tell how far an attempt is; replaces what wasn't sent yet of it."""
        key = progress.key
        self._progress[key.run_id, key.fencing_token] = progress
        self._something.set()

    def grant(self, granted: pb.Granted) -> None:
        """Tell how many slots the member may use; replaces what wasn't sent yet."""
        self._granted = granted
        self._something.set()

    def beat(self) -> None:
        """Have the next frame carry a heartbeat."""
        self.heartbeat_due = True
        self._something.set()

    def end(self, last: pb.WorkerFrame) -> None:
        """Have the stream end after everything else that waits; `last` is merged into its end."""
        self._last = last
        self._something.set()

    @property
    def over(self) -> bool:
        """Nothing is left to take, nor ever will be."""
        return self._last is not None and not self._something.is_set()

    async def wait(self) -> None:
        """Return when there is something to take."""
        await self._something.wait()

    def take(self) -> pb.WorkerFrame:
        """The next frame, but for its heartbeat; the caller adds that when it is due."""
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
        if not any((self._refusals, self._answers, self._results, self._progress, self._logs)):
            if self._last is not None:
                frame.MergeFrom(self._last)
            self._something.clear()
        return frame
