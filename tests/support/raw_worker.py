"""A worker that sends frames as a test writes them, over the real wire, and keeps what comes back.

async with RawWorker(endpoint) as worker:
await worker.send(pb.WorkerFrame(results=[…]))
status, message = await worker.ended()
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from time import monotonic
from types import TracebackType
from typing import Any, Self, cast
from uuid import uuid4

import grpc
import grpc.aio

from schedkit.clock import utcnow
from schedkit.net.channel import TLS, connect
from schedproto.v1 import worker_service_pb2 as pb
from schedproto.v1.worker_service_pb2_grpc import WorkerServiceStub
from support.wait import WAIT_TIMEOUT, wait_until_async

BEAT = 0.5
"""Seconds between two heartbeats."""


def hello(name: str, **changes: Any) -> pb.Hello:
    """Return a hello that every member accepts, with these changes."""
    plain = {
        "worker": name,
        "spool_id": name,
        "incarnation": str(uuid4()),
        "slots": 1,
        "host": "test",
        "version": "1",
    }
    message = pb.Hello(**{**plain, **changes})
    if "started_at" not in changes:
        message.started_at.FromDatetime(utcnow())
    return message


class RawWorker:
    """A stream to a member."""

    def __init__(
        self, endpoint: str, first: pb.Hello | None = None, *, tls: TLS | None = None
    ) -> None:
        self.hello = first or hello(f"raw-{uuid4().hex[:8]}")
        self.frames: list[pb.MemberFrame] = []
        self.status: tuple[str, str] | None = None
        self._channel = connect(endpoint, tls=tls)
        self._call: Any = None
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        stub = WorkerServiceStub(self._channel)
        self._call = cast("Any", stub.Attach)()
        await self.send(pb.WorkerFrame(hello=self.hello))
        self._reader = asyncio.create_task(self._read(), name="frames down")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._call.cancel()
        assert self._reader is not None
        await self._reader
        await self._channel.close()

    async def send(self, frame: pb.WorkerFrame) -> None:
        """Write a frame; nothing if the member has ended the stream."""
        try:
            await self._call.write(frame)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return

    async def beat(self, number: int, free: int) -> None:
        """Send a heartbeat that holds nothing, and grant so many slots."""
        beat = pb.Heartbeat(sequence=number, free=free)
        beat.worker_cluster_time.FromDatetime(utcnow())
        beat.since_refresh.FromTimedelta(timedelta(seconds=0 if number == 1 else 1))
        received = sum(len(frame.assignments) for frame in self.frames)
        granted = pb.Granted(slots=free, received=received, serial=number)
        await self.send(pb.WorkerFrame(heartbeat=beat, granted=granted))

    async def welcomed(self) -> pb.Welcome:
        """Return the member's first frame."""
        await wait_until_async(lambda: self.frames or self.status, WAIT_TIMEOUT, "a welcome")
        assert self.frames, f"the stream ended: {self.status}"
        return self.frames[0].welcome

    async def ended(self) -> tuple[str, str]:
        """Return the status with which the member ended the stream, and its message."""
        await wait_until_async(lambda: self.status, WAIT_TIMEOUT, "the end of the stream")
        assert self.status is not None
        return self.status

    async def answered(self, key: pb.AssignmentKey) -> pb.Acknowledgement:
        """Return the acknowledgement of this result."""

        def found() -> pb.Acknowledgement | None:
            all_ = [one for frame in self.frames for one in frame.acknowledgements]
            return next((one for one in all_ if one.key == key), None)

        await wait_until_async(lambda: found() or self.status, WAIT_TIMEOUT, f"an answer to {key}")
        answer = found()
        assert answer is not None, f"the stream ended: {self.status}"
        return answer

    async def _read(self) -> None:
        try:
            while isinstance(frame := await self._call.read(), pb.MemberFrame):
                self.frames.append(frame)
            self.status = (await self._call.code()).name, str(await self._call.details())
        except grpc.aio.AioRpcError as error:
            self.status = error.code().name, str(error.details())
        except asyncio.CancelledError:
            self.status = "CANCELLED", ""


async def first_assigned(streams: Sequence[RawWorker]) -> tuple[RawWorker, pb.Assignment]:
    """Have a slot free at each member until one assigns a run; give its stream, too."""
    deadline, number = monotonic() + WAIT_TIMEOUT, 0
    while monotonic() < deadline:
        number += 1
        for stream in streams:
            assert stream.status is None, f"the stream ended: {stream.status}"
            for frame in stream.frames:
                for assignment in frame.assignments:
                    return stream, assignment
            await stream.beat(number, free=1)
        await asyncio.sleep(BEAT)
    raise AssertionError("no assignment came")
