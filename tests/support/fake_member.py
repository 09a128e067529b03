"""A member that does only what a test tells it: the real wire, served by a real gRPC server.

    async with FakeMember() as member:
        stream = await member.attached()
        key = await stream.assign(argv=["true"])
        result = await stream.result_of(key)

It welcomes each hello, refreshes the lease at each heartbeat and acknowledges nothing, unless a
test changes that. It keeps all that a stream received, in order.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import grpc.aio

from schedkit.net.channel import SERVER_OPTIONS, TLS, listen
from schedproto.v1 import common_pb2, job_pb2
from schedproto.v1 import worker_service_pb2 as pb
from schedproto.v1.worker_service_pb2_grpc import (
    WorkerServiceServicer,
    add_WorkerServiceServicer_to_server,
)
from support.wait import WAIT_TIMEOUT, wait_until_async

T = TypeVar("T")


@dataclass
class Stream:
    """A worker's stream to this member."""

    member: FakeMember
    hello: pb.Hello
    frames: list[pb.WorkerFrame] = field(default_factory=list)
    results: list[pb.Result] = field(default_factory=list)
    result_batches: list[pb.ResultBatch] = field(default_factory=list)
    refusals: list[pb.Refusal] = field(default_factory=list)
    answers: list[pb.RevokeAnswer] = field(default_factory=list)
    chunks: list[pb.LogChunk] = field(default_factory=list)
    progress: list[pb.Progress] = field(default_factory=list)
    heartbeats: list[pb.Heartbeat] = field(default_factory=list)
    granted: pb.Granted = field(default_factory=pb.Granted)
    goodbye: bool = False
    ended: bool = False
    _down: asyncio.Queue[pb.MemberFrame | None] = field(default_factory=asyncio.Queue)

    async def send(self, **fields: Any) -> None:
        """Send a frame to the worker, with these fields."""
        await self._down.put(pb.MemberFrame(**fields))

    def end(self) -> None:
        """Close the stream in good order."""
        self._down.put_nowait(None)

    async def assign(self, *, key: pb.AssignmentKey | None = None, **how: Any) -> pb.AssignmentKey:
        """Send one assignment made by `FakeMember.assignment`; its key."""
        assignment = self.member.assignment(
            key=key, **{"incarnation": self.hello.incarnation} | how
        )
        await self.send(assignments=[assignment])
        return assignment.key

    async def assign_batch(self, count: int, **how: Any) -> list[pb.AssignmentKey]:
        """Send a batch of so many runs, made by `FakeMember.run_batch`; their keys."""
        keys = [self.member.key() for _ in range(count)]
        how = {"incarnation": self.hello.incarnation} | how
        await self.send(run_batches=[self.member.run_batch(keys, **how)])
        return keys

    async def succeeded(self, keys: Sequence[pb.AssignmentKey]) -> None:
        """Return when batches of results have reported these runs."""
        wanted = {_short(key) for key in keys}

        def seen() -> bool:
            return wanted <= {key for batch in self.result_batches for key in runs_of(batch)}

        await self.until(lambda: seen() or None, f"{len(keys)} results in batches")

    async def result_of(self, key: pb.AssignmentKey, timeout: float = WAIT_TIMEOUT) -> pb.Result:
        """The result of this assignment, once it has come by this stream."""

        def seen() -> pb.Result | None:
            return _of(self.results, key) or self._success(key)

        return await self.until(seen, f"the result of {key}", timeout)

    def _success(self, key: pb.AssignmentKey) -> pb.Result | None:
        for batch in self.result_batches:
            if _short(key) in runs_of(batch):
                return pb.Result(
                    key=key, incarnation=batch.incarnation, outcome=pb.Result.OUTCOME_SUCCEEDED
                )
        return None

    async def refusal_of(self, key: pb.AssignmentKey, timeout: float = WAIT_TIMEOUT) -> pb.Refusal:
        """The refusal of this assignment."""
        return await self.until(lambda: _of(self.refusals, key), f"a refusal of {key}", timeout)

    async def revoke(self, key: pb.AssignmentKey) -> pb.RevokeAnswer:
        """Ask for it back; the answer."""
        await self.send(revokes=[pb.Revoke(key=key)])
        return await self.until(lambda: _of(self.answers, key), f"an answer about {key}")

    async def acknowledge(
        self,
        key: pb.AssignmentKey,
        verdict: pb.Acknowledgement.Verdict = pb.Acknowledgement.VERDICT_ACCEPTED,
    ) -> None:
        """Answer a result."""
        await self.send(acknowledgements=[pb.Acknowledgement(key=key, verdict=verdict)])

    async def holds(self, key: pb.AssignmentKey, state: pb.Holding.State) -> None:
        """Return when a heartbeat says that the worker has it in this state. Runs that wait for
        their start are in one: STATE_HELD.
        """

        def seen() -> bool | None:
            return (_short(key), state) in [*self.held()] or None

        await self.until(seen, f"{key} in state {state}")

    def held(self) -> Iterator[tuple[tuple[str, int], pb.Holding.State]]:
        """The runs with their tokens, and their states, in the last heartbeat."""
        for beat in self.heartbeats[-1:]:
            for state, entries, size in (
                (pb.Holding.STATE_HELD, beat.held.waiting, 24),
                (pb.Holding.STATE_RUNNING, beat.held.running, 32),
                (pb.Holding.STATE_SPOOLED, beat.held.spooled, 24),
            ):
                for at in range(0, len(entries), size):
                    run, token = entries[at : at + 16], entries[at + 16 : at + 24]
                    yield (str(uuid.UUID(bytes=run)), int.from_bytes(token, "big")), state

    async def closed(self) -> None:
        """Return when all that the worker sent before its end has been received."""
        await self.until(lambda: self.ended or None, "the stream's end")

    async def granted_at_least(self, slots: int) -> None:
        """Return when so many slots are granted beyond what was received."""
        await self.until(lambda: self.granted.slots >= slots, f"{slots} slots granted")

    async def until(
        self, seen: Callable[[], T | None], what: str, timeout: float = WAIT_TIMEOUT
    ) -> T:
        """Wait for something to have come up."""
        found = await wait_until_async(seen, timeout, what)
        assert found is not None
        return found

    def forget(self) -> None:
        """Empty the record of what was received, except heartbeats and grants."""
        for received in (self.frames, self.results, self.refusals, self.answers, self.chunks):
            received.clear()
        self.progress.clear()

    def _hear(self, frame: pb.WorkerFrame) -> None:
        self.frames.append(frame)
        self.results.extend(frame.results)
        self.result_batches.extend(frame.result_batches)
        self.refusals.extend(frame.refusals)
        self.answers.extend(frame.revoke_answers)
        self.chunks.extend(frame.log_chunks)
        self.progress.extend(frame.progress)
        if frame.HasField("granted"):
            self.granted = frame.granted
            if self.member.answers_grants and frame.granted.serial:
                reach = pb.Reach(serial=frame.granted.serial)
                self._down.put_nowait(pb.MemberFrame(reach=reach))
        if frame.HasField("goodbye"):
            self.goodbye = True
        if frame.HasField("heartbeat"):
            self.heartbeats.append(frame.heartbeat)
            if self.member.answer_heartbeats:
                self._down.put_nowait(self.member.answer(frame.heartbeat))
        if self.member.acknowledge_results and frame.result_batches:
            acks = [
                pb.AckBatch(run_ids=each.run_ids, fencing_tokens=each.fencing_tokens)
                for each in frame.result_batches
            ]
            self._down.put_nowait(pb.MemberFrame(ack_batches=acks))
        if self.member.acknowledge_results and frame.results:
            self._down.put_nowait(
                pb.MemberFrame(
                    acknowledgements=[
                        pb.Acknowledgement(
                            key=each.key, verdict=pb.Acknowledgement.VERDICT_ACCEPTED
                        )
                        for each in frame.results
                    ]
                )
            )


class FakeMember(WorkerServiceServicer):
    """Serves `WorkerService` on a free port of loopback."""

    def __init__(self, name: str = "m1", *, ttl: float = 15.0, interval: float = 0.2) -> None:
        self.name = name
        self.tenure = str(uuid.uuid4())
        self.ttl = ttl
        self.interval = interval
        self.ahead = timedelta()
        """By which its time is ahead of this host's clock."""
        self.streams: list[Stream] = []
        self.answer_heartbeats = True
        self.refresh = True
        self.lost: set[str] = set()
        """Incarnations that are written off."""
        self.acknowledge_results = False
        self.answers_grants = True
        """Answer each lowered grant at once; otherwise the test sends each `reach`."""
        self.abort: tuple[grpc.StatusCode, str] | None = None
        """Answer each hello with this status."""
        self.peers: Sequence[FakeMember] = (self,)
        self.revision = 1
        self.port = 0
        self.tls: TLS | None = None
        self._tokens = itertools.count(1 << 32)
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Serve; on the port it had before, if any."""
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        add_WorkerServiceServicer_to_server(self, self._server)
        self.port = listen(self._server, self.address, self.tls)
        await self._server.start()

    async def stop(self) -> None:
        """Reset all streams and stop listening."""
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None

    async def attached(
        self, count: int = 1, timeout: float = WAIT_TIMEOUT, *, grants: bool = True
    ) -> Stream:
        """Return the newest stream, after `count` streams were opened. `grants`: wait until the
        worker grants slots, too. A worker that doesn't trust its lease yet refuses assignments.
        """

        def find() -> Stream | None:
            if len(self.streams) < count or (newest := self.streams[-1]).ended:
                return None
            waits = grants and self.answer_heartbeats and self.refresh
            return None if waits and not newest.granted.slots else newest

        return await wait_until_async(find, timeout, f"stream {count} at {self.name}")

    def now(self) -> datetime:
        """The cluster's time, as this member tells it."""
        return datetime.now(UTC) + self.ahead

    def assignment(
        self,
        *,
        incarnation: str,
        key: pb.AssignmentKey | None = None,
        argv: Sequence[str] | None = None,
        start_in: float | None = None,
        start_within: float = WAIT_TIMEOUT,
        timeout: float | None = None,
        heartbeat_timeout: float | None = None,
        kill_after: float | None = None,
        payload: str | bytes | None = None,
        **fields: Any,
    ) -> pb.Assignment:
        """An assignment to start now, or pre-dispatched to start in `start_in` seconds."""
        message = pb.Assignment(
            key=key or self.key(), incarnation=incarnation, namespace="default", job="probe",
            generation=1, attempt=1, slots=1, **fields,
        )  # fmt: skip
        now = self.now()
        begin = now + timedelta(seconds=start_in or 0.0)
        if start_in is not None:
            message.not_before.FromDatetime(begin)
        message.start_by.FromDatetime(begin + timedelta(seconds=start_within))
        if argv is not None:
            message.shell.CopyFrom(job_pb2.ShellAction(argv=argv))
        if heartbeat_timeout is not None:
            message.heartbeat_timeout.FromTimedelta(timedelta(seconds=heartbeat_timeout))
        if timeout is not None:
            message.timeout.FromTimedelta(timedelta(seconds=timeout))
        if kill_after is not None:
            message.kill_after.FromTimedelta(timedelta(seconds=kill_after))
        if isinstance(payload, bytes):
            message.payload.raw = payload
        elif payload is not None:
            message.payload.CopyFrom(common_pb2.Payload(json=payload))
        return message

    def run_batch(self, keys: Sequence[pb.AssignmentKey], **how: Any) -> pb.RunBatch:
        """A batch of these runs; `how`: as for `assignment`."""
        common = self.assignment(**how)
        common.ClearField("key")
        return pb.RunBatch(
            common=common,
            run_ids=b"".join(uuid.UUID(key.run_id).bytes for key in keys),
            fencing_tokens=[key.fencing_token for key in keys],
            scheduled_at=[key.scheduled_at.ToMicroseconds() for key in keys],
        )

    def key(self, run: str = "", token: int | None = None) -> pb.AssignmentKey:
        """A new run with the next token, or what is asked for."""
        key = pb.AssignmentKey(
            run_id=str(uuid.uuid5(uuid.NAMESPACE_OID, run) if run else uuid.uuid4()),
            fencing_token=next(self._tokens) if token is None else token,
        )
        key.scheduled_at.FromDatetime(self.now())
        return key

    def answer(self, heartbeat: pb.Heartbeat) -> pb.MemberFrame:
        """Return the answer to a heartbeat."""
        hello = self.streams[-1].hello
        answer = pb.HeartbeatAnswer(
            sequence=heartbeat.sequence,
            refreshed=self.refresh,
            lost=hello.incarnation in self.lost,
        )
        answer.cluster_time.FromDatetime(self.now())
        return pb.MemberFrame(heartbeat_answer=answer)

    def members(self) -> pb.Members:
        """This member and its peers."""
        return pb.Members(
            revision=self.revision,
            endpoints=[pb.Members.Endpoint(name=p.name, grpc=p.address) for p in self.peers],
        )

    def welcome(self) -> pb.Welcome:
        """Return the answer to a hello."""
        welcome = pb.Welcome(
            member=self.name,
            tenure=self.tenure,
            cluster_id="test",
            members=self.members(),
            answers_grants=True,
            reads_held=True,
            reads_batches=True,
        )
        welcome.worker_ttl.FromTimedelta(timedelta(seconds=self.ttl))
        welcome.heartbeat_interval.FromTimedelta(timedelta(seconds=self.interval))
        welcome.cluster_time.FromDatetime(self.now())
        return welcome

    async def Attach(  # noqa: N802 - the name on the wire
        self, request_iterator: AsyncIterator[pb.WorkerFrame], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.MemberFrame]:
        first = await anext(request_iterator)
        if self.abort is not None:
            await context.abort(*self.abort)
        stream = Stream(self, first.hello)
        self.streams.append(stream)
        yield pb.MemberFrame(welcome=self.welcome())
        hearing = asyncio.create_task(self._hear(request_iterator, stream), name="hear")
        try:
            while (frame := await stream._down.get()) is not None:
                yield frame
        finally:
            stream.ended = True
            hearing.cancel()

    async def _hear(self, frames: AsyncIterator[pb.WorkerFrame], stream: Stream) -> None:
        async for frame in frames:
            stream._hear(frame)
        stream.end()


def runs_of(batch: pb.ResultBatch | pb.AckBatch) -> list[tuple[str, int]]:
    """The runs and tokens of a batch."""
    packed = batch.run_ids
    ids = [uuid.UUID(bytes=packed[at : at + 16]) for at in range(0, len(packed), 16)]
    return [*zip(map(str, ids), batch.fencing_tokens, strict=True)]


def _short(key: pb.AssignmentKey) -> tuple[str, int]:
    return key.run_id, key.fencing_token


def _of(messages: Sequence[T], key: pb.AssignmentKey) -> T | None:
    return next((each for each in messages if each.key == key), None)


async def within(waiting: Awaitable[T], seconds: float = WAIT_TIMEOUT) -> T:
    """Await with a deadline."""
    async with asyncio.timeout(seconds):
        return await waiting
