"""Calls to the other members: one channel each, closed when the member has left.

    view ──endpoints──→ channels ──call──→ PeerService at the other member

Invariants
- Each call to a peer has a deadline. A peer that hangs delays no other call.
- An answer out of its bounds (`schedkit.bounds`) is discarded: the call raises Unavailable.
- A channel to an endpoint without a member is closed. After the certificate changes on disk, the
  old channels are closed when their calls have ended.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from schedd.cluster.observer import Observer
from schedkit.bounds import FRAME, problem
from schedkit.errors import Misconfigured, Unavailable
from schedkit.net.channel import TLS, Rotation, connect
from schedkit.tasks import Waker
from schedproto.v1 import peer_service_pb2 as wire

log = logging.getLogger(__name__)

DEADLINE: Final = 1.0
"""Seconds for a call to a peer."""
LOOK_EVERY: Final = 10.0


A = TypeVar("A", bound=Message)


class Peers:
    def __init__(self, cluster: Observer, tls: TLS | None) -> None:
        self._cluster = cluster
        self._tls = tls
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._rotation, self._retired = Rotation(tls), list[grpc.aio.Channel]()
        self._waker = Waker()

    def endpoints(self) -> list[str]:
        view, own = self._cluster.view(), self._cluster.tenure
        return [member.grpc for member in view.members if member.tenure != own]

    def members_changed(self) -> None:
        """Check soon for members that have left."""
        self._waker.wake()

    async def call(self, endpoint: str, request: Message, answer: type[A]) -> A:
        """Make the call of this request to a member. Raises Unavailable."""
        method = request.DESCRIPTOR.name.removesuffix("Request")
        call: grpc.aio.UnaryUnaryMultiCallable[Any, A] = self._channel(endpoint).unary_unary(
            f"/schedd.v1.PeerService/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        what = f"the call {method} to member {endpoint} failed"
        with _as_unavailable(what, "check the network, and the log of that member", what):
            response: A = await call(request, timeout=DEADLINE)
        return _within_bounds(response, endpoint, method)

    async def call_all(self, requests: Sequence[Message], answer: type[A]) -> list[list[A | None]]:
        """Make these calls to every other member, all at once. Return the answers to each request;
        None for a member that didn't answer.
        """

        async def one(endpoint: str, request: Message) -> A | None:
            try:
                return await self.call(endpoint, request, answer)
            except Unavailable as away:
                log.debug("%s", away)
                return None

        async with asyncio.TaskGroup() as group:
            calls = [
                [group.create_task(one(to, each), name=f"call to {to}") for to in self.endpoints()]
                for each in requests
            ]
        return [[task.result() for task in each] for each in calls]

    async def changes(
        self, endpoint: str, request: wire.ChangesRequest
    ) -> AsyncGenerator[wire.ChangesResponse, None]:
        """Yield the changes of that member, until the stream breaks. Raises Unavailable."""
        call: grpc.aio.UnaryStreamMultiCallable[wire.ChangesRequest, wire.ChangesResponse] = (
            self._channel(endpoint).unary_stream(
                "/schedd.v1.PeerService/Changes",
                request_serializer=wire.ChangesRequest.SerializeToString,
                response_deserializer=wire.ChangesResponse.FromString,
            )
        )
        what = f"the change stream of member {endpoint}"
        stream = call(request)
        try:
            with _as_unavailable(f"{what} failed", "this member opens it again", f"{what} ended"):
                async for answer in stream:
                    yield _within_bounds(answer, endpoint, "Changes")
        finally:
            stream.cancel()

    async def run(self) -> NoReturn:
        """Close the channels of members that have left, until cancelled."""
        while True:
            await self._waker.wait(LOOK_EVERY)
            gone = self._channels.keys() - set(self.endpoints())
            for endpoint in gone:
                await self._channels.pop(endpoint).close()
            while self._retired:
                await self._retired.pop().close(DEADLINE)

    async def close(self) -> None:
        while self._retired:
            await self._retired.pop().close()
        while self._channels:
            _, channel = self._channels.popitem()
            await channel.close()

    def _channel(self, endpoint: str) -> grpc.aio.Channel:
        if self._rotation.turned():
            self._retired += self._channels.values()
            self._channels.clear()
            self._waker.wake()
        channel = self._channels.get(endpoint)
        if channel is None:
            try:
                channel = self._channels[endpoint] = connect(endpoint, tls=self._tls)
            except Misconfigured as error:  # a certificate in the middle of its rotation
                raise Unavailable(str(error)) from error
        return channel


@contextmanager
def _as_unavailable(failed: str, advice: str, left: str) -> Iterator[None]:
    """Raise Unavailable for a call that failed, or whose channel was closed: the member left."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise Unavailable(f"{failed}: {error.code().name}; {advice}") from error
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        raise Unavailable(f"{left}: the member has left the cluster") from None


def _within_bounds(answer: A, endpoint: str, call: str) -> A:
    if found := FRAME.violations(answer):
        raise Unavailable(f"member {endpoint} sent an invalid answer to {call}: {problem(found)}")
    return answer
