"""A stream of messages both ways, in which every wait has a timeout.

Invariants
- Waiting for a message that doesn't arrive leaves the stream intact. The wait ends with None, and
  the next one continues the same read (grpc would end the call with a canceled read).
- Every end of the stream except `close` is raised as `Unavailable`, `AccessDenied` or
  `EtcdRefused`.
"""

import asyncio
from typing import Generic, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message

from schedd.etcd.access import EtcdAccess
from schedd.etcd.errors import judge
from schedkit.errors import Unavailable

RequestT = TypeVar("RequestT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)


class EtcdStream(Generic[RequestT, ReplyT]):
    """An open stream. `position`: of its endpoint, in the connection's targets."""

    def __init__(
        self,
        call: grpc.aio.StreamStreamCall[RequestT, ReplyT],
        deadline: float,
        position: int,
        access: EtcdAccess,
    ) -> None:
        self.position = position
        self._call = call
        self._deadline = deadline
        self._access = access
        self._reading: asyncio.Task[object] | None = None

    async def send(self, request: RequestT) -> None:
        """Send the request within the deadline."""
        try:
            async with asyncio.timeout(self._deadline):
                await self._call.write(request)
        except TimeoutError as error:
            raise Unavailable("etcd: the stream accepts no more messages") from error
        except asyncio.InvalidStateError as error:
            raise Unavailable("etcd: the stream has ended") from error
        except grpc.aio.AioRpcError as error:
            raise _converted(error, self._access) from error

    async def receive(self, timeout: float) -> ReplyT | None:
        """Return the next message, or None if none arrives within `timeout` seconds."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._call.read(), name="etcd stream read")
        await asyncio.wait({self._reading}, timeout=timeout)
        if not self._reading.done():
            return None
        reading, self._reading = self._reading, None
        try:
            message = reading.result()
        except grpc.aio.AioRpcError as error:
            raise _converted(error, self._access) from error
        if message is grpc.aio.EOF:
            raise Unavailable("etcd: the server ended the stream")
        return cast("ReplyT", message)

    async def close(self) -> None:
        """End the stream, and cancel a pending read."""
        self._call.cancel()
        if self._reading is not None:
            self._reading.cancel()
            # The outcome isn't needed any more.
            await asyncio.gather(self._reading, return_exceptions=True)


def _converted(error: grpc.aio.AioRpcError, access: EtcdAccess) -> Exception:
    return judge(error.code(), error.details() or "", writes=False, access=access).error
