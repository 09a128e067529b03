"""Run a stream to a member: hello, welcome, then frames both ways until it breaks.

    connect → hello ↑ → welcome ↓ → [ frames ↓ read | frames ↑ written | heartbeats due ] → ended

Invariants
- The first frame up holds the hello, the first down the welcome; nothing else is sent before it.
- Frames of members are checked against their bounds (`schedkit.bounds`). A welcome, an answer or a
  demand out of bounds ends the stream; an item (`Attach.received`) is set aside alone.
- `run` returns how the stream ended: `AGAIN` (connect again after a backoff) or `LOST` (this
  incarnation is lost: a new one is needed).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NoReturn, cast

import grpc
import grpc.aio
from google.protobuf.timestamp_pb2 import Timestamp

from schedkit.bounds import FRAME, problem
from schedkit.clock import boottime
from schedkit.errors import Misconfigured
from schedkit.net.channel import TLS, connect
from schedproto.v1 import worker_service_pb2 as pb
from schedproto.v1.worker_service_pb2_grpc import WorkerServiceStub
from workerd import messages
from workerd.core.cluster_time import MemberTime, RoundTrip
from workerd.core.credit import Credit
from workerd.core.ids import Address, Incarnation
from workerd.core.slot_split import NOTHING, DemandHead, Share
from workerd.frame_queue import MemberFrameQueue

if TYPE_CHECKING:
    from workerd.stream.streams import Attach

log = logging.getLogger(__name__)

WELCOME_WITHIN = 10.0
"""Seconds for a member to send its welcome."""
STATUS_WITHIN = 1.0
"""Seconds to wait for the status of a stream that accepts no more frames."""
EAGER = 0.5
"""Maximum seconds between heartbeats while there is no trust."""
SHORTEST_INTERVAL = 0.05
"""Minimum seconds between heartbeats."""
_UNANSWERED = 64
_LOST = frozenset({grpc.StatusCode.ABORTED, grpc.StatusCode.FAILED_PRECONDITION})


class StreamEnd(Enum):
    AGAIN = auto()
    LOST = auto()


class MemberStream(MemberFrameQueue):
    """A stream to a member. Each connection has a new one."""

    def __init__(self, address: Address, tls: TLS | None, host: Attach) -> None:
        super().__init__(address)
        self.member = ""
        self.tenure = ""
        self.time = MemberTime()
        self.demand: Sequence[DemandHead] = ()
        self.credit = Credit()
        self._share = NOTHING
        self.incarnation: Incarnation | None = None
        self._tls = tls
        self._host = host
        self._interval = EAGER
        self._sequence = 0
        self._sent: OrderedDict[int, float] = OrderedDict()
        self._dropped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def silent(self) -> bool:
        """Whether heartbeats stay unanswered: slots reserved for this member would be idle."""
        oldest = next(iter(self._sent.values()), None)
        return oldest is not None and boottime() - oldest > 2 * self._interval + 1

    def grant(self, share: Share, at: float) -> None:
        limit = self.credit.limit
        self.credit.grant(share.slots, at)
        if self.credit.limit != limit or (share.slots and not self._share.like(share)):
            self._share = share
            self.send_grant(messages.granted(share, self.credit))

    def drop(self) -> None:
        if not self._dropped.done():
            self._dropped.set_result(None)

    # -- Connection --

    async def run(self) -> tuple[StreamEnd, str]:
        try:
            channel = connect(self.address, tls=self._tls)
        except Misconfigured as error:  # such as a certificate during its rotation
            return StreamEnd.AGAIN, str(error)
        async with channel:
            # The generated types know only the calls of a blocking channel.
            attach = cast("_Method", WorkerServiceStub(channel).Attach)
            call = attach()
            try:
                welcome = await self._greet(call)
                if welcome is None:
                    return StreamEnd.AGAIN, "the member sent no valid answer to the registration"
                if refusal := await self._host.refusal(welcome):
                    return StreamEnd.AGAIN, refusal
                self._host.welcomed(self, welcome)
                try:
                    return await self._converse(call)
                finally:
                    self._host.closed(self)
            except grpc.aio.AioRpcError as error:
                ending = StreamEnd.LOST if error.code() in _LOST else StreamEnd.AGAIN
                return ending, f"{error.code().name}: {error.details()}"
            finally:
                call.cancel()

    async def _greet(self, call: _Call) -> pb.Welcome | None:
        hello = self._host.hello()
        self.incarnation = Incarnation(hello.incarnation)
        try:
            async with asyncio.timeout(WELCOME_WITHIN):
                await call.wait_for_connection()
                sent = boottime()
                await call.write(pb.WorkerFrame(hello=hello))
                frame = await call.read()
        except TimeoutError:
            return None
        if not isinstance(frame, pb.MemberFrame) or not frame.HasField("welcome"):
            return None
        if found := FRAME.violations(frame):
            log.warning(
                "registration failed: the answer of %s isn't valid: %s",
                self.address,
                problem(found),
            )
            return None
        welcome = frame.welcome
        self._observe(sent, welcome.cluster_time)
        self.member, self.tenure = welcome.member, welcome.tenure
        interval = welcome.heartbeat_interval.ToTimedelta().total_seconds()
        self._interval = max(interval, SHORTEST_INTERVAL) if interval else EAGER
        return welcome

    async def _converse(self, call: _Call) -> tuple[StreamEnd, str]:
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(self._read(call), name=f"read {self.address}")
            writing = group.create_task(self._write(call), name=f"write {self.address}")
            pacing = group.create_task(self._pace(), name=f"pace {self.address}")
            either: set[asyncio.Future[Any]] = {reading, self._dropped}
            await asyncio.wait({*either, writing}, return_when=asyncio.FIRST_COMPLETED)
            timeout = None if writing.done() and writing.result() else STATUS_WITHIN
            await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for each in (reading, writing, pacing):
                each.cancel()
        if not reading.cancelled():
            return reading.result()
        return (
            StreamEnd.AGAIN,
            "dropped" if self._dropped.done() else "the stream accepts no more messages",
        )

    async def _read(self, call: _Call) -> tuple[StreamEnd, str]:
        while True:
            try:
                frame = await call.read()
            except grpc.aio.AioRpcError as error:
                ending = StreamEnd.LOST if error.code() in _LOST else StreamEnd.AGAIN
                return ending, f"{error.code().name}: {error.details()}"
            if not isinstance(frame, pb.MemberFrame):
                return StreamEnd.AGAIN, "the member closed the stream"
            if found := FRAME.violations(frame):
                return StreamEnd.AGAIN, f"a message of the member isn't valid: {problem(found)}"
            if frame.HasField("heartbeat_answer") and self._answered(frame.heartbeat_answer):
                return StreamEnd.LOST, "the member reported this worker as lost"
            await self._host.received(self, frame)

    def _answered(self, answer: pb.HeartbeatAnswer) -> bool:
        """Handle a heartbeat answer. Return whether this incarnation is lost."""
        sent = self._sent.get(answer.sequence)
        if sent is not None:
            while self._sent and next(iter(self._sent)) <= answer.sequence:
                self._sent.popitem(last=False)
            self._observe(sent, answer.cluster_time)
            if answer.refreshed and not answer.lost:
                self._host.refreshed(sent)
        return answer.lost

    def _observe(self, sent: float, cluster_time: Timestamp) -> None:
        trip = RoundTrip(sent, boottime(), messages.seconds(cluster_time))
        was_set = self.time.observe(trip)
        self._host.observed(trip)
        if was_set:
            self._host.clock_was_set(self)

    async def _write(self, call: _Call) -> bool:
        """Send frames up to the goodbye. Return False if the stream accepts no more frames; the
        reader gets the cause.
        """
        while True:
            await self.wait()
            await asyncio.sleep(0)  # a result and its free slot are sent together
            frame = self.take_frame()
            if self.heartbeat_due:
                self.heartbeat_due = False
                frame.heartbeat.CopyFrom(self._heartbeat())
            try:
                await call.write(frame)
                if self.over:
                    await call.done_writing()
                    return True
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return False

    def _heartbeat(self) -> pb.Heartbeat:
        now = boottime()
        self._sequence += 1
        self._sent[self._sequence] = now
        if len(self._sent) > _UNANSWERED:
            self._sent.popitem(last=False)
        heartbeat = self._host.heartbeat(now)
        heartbeat.sequence = self._sequence
        heartbeat.worker_time_ns = int(now * 1e9)
        return heartbeat

    async def _pace(self) -> NoReturn:
        while True:
            self.beat()
            pause = self._interval if self._host.trusted() else min(EAGER, self._interval)
            await asyncio.sleep(pause)


_Call = grpc.aio.StreamStreamCall[pb.WorkerFrame, pb.MemberFrame]
_Method = grpc.aio.StreamStreamMultiCallable[pb.WorkerFrame, pb.MemberFrame]
