"""Calls to etcd over several endpoints: one deadline a call, rotation on failure.

    call ─→ current endpoint connected? ─no──────────────→ next endpoint
              │ yes: send, with what is left of the deadline
              ├─ answered ─────────────────────────────→ the reply
              ├─ stale token ─→ authenticate, send again, once
              ├─ unavailable, safe to repeat ──────────→ next endpoint
              └─ unavailable, a write ─→ OutcomeUnknown; later calls begin with the next endpoint

Invariants
- A request is sent only over an open connection. A failed connection has sent nothing, so that
  trying the next endpoint is safe for writes too.
- A TLS channel that can't connect is closed. The next one reads the files again, so new
  certificates need no restart.
- No call outlasts its deadline, connecting and authenticating included.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message
from grpc import ChannelConnectivity

from schedd.core.events import Emit, discard
from schedd.etcd import wire_pb2 as wire
from schedd.etcd.access import EtcdAccess, Login, metadata
from schedd.etcd.codec import AUTHENTICATE, EtcdMethod
from schedd.etcd.errors import (
    EtcdCallFailed,
    EtcdFailure,
    EtcdRemedy,
    LoginBackoff,
    RightsOff,
    judge,
)
from schedd.etcd.last_answer import Silence
from schedkit.errors import Rejected, ScheddError, Unavailable
from schedkit.records import dataclass

# A stream of messages both ways, in which every wait has a timeout.
#
# Invariants
# - Waiting for a message that doesn't arrive leaves the stream intact. The wait ends with None, and
#   the next one continues the same read (grpc would end the call with a canceled read).
# - Every end of the stream except `close` is raised as `Unavailable`, `AccessDenied` or
#   `EtcdRefused`.

SentT = TypeVar("SentT", bound=Message)
ReceivedT = TypeVar("ReceivedT", bound=Message)


class EtcdStream(Generic[SentT, ReceivedT]):
    """An open stream. `position`: of its endpoint, in the connection's targets."""

    def __init__(
        self,
        call: grpc.aio.StreamStreamCall[SentT, ReceivedT],
        deadline: float,
        position: int,
        access: EtcdAccess,
    ) -> None:
        self.position = position
        self._call = call
        self._deadline = deadline
        self._access = access
        self._reading: asyncio.Task[object] | None = None

    async def send(self, request: SentT) -> None:
        try:
            async with asyncio.timeout(self._deadline):
                await self._call.write(request)
        except TimeoutError as error:
            raise Unavailable(
                "etcd: a stream (of watches or of keepalives) accepts no more messages; schedd"
                " opens another stream"
            ) from error
        except asyncio.InvalidStateError as error:
            raise Unavailable(
                "etcd: a stream (of watches or of keepalives) has ended; schedd opens another"
                " stream"
            ) from error
        except grpc.aio.AioRpcError as error:
            raise _converted(error, self._access) from error

    async def receive(self, timeout: float) -> ReceivedT | None:
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
            raise Unavailable(
                "etcd: the server ended a stream (of watches or of keepalives); schedd opens"
                " another stream"
            )
        return cast("ReceivedT", message)

    async def close(self) -> None:
        self._call.cancel()
        if self._reading is not None:
            self._reading.cancel()
            # The outcome isn't needed any more.
            await asyncio.gather(self._reading, return_exceptions=True)


def _converted(error: grpc.aio.AioRpcError, access: EtcdAccess) -> Exception:
    return judge(error.code(), error.details() or "", writes=False, access=access).error


# Which endpoint is next: the one that last worked, until it fails.
#
# Invariants
# - All calls share one current endpoint. A failure advances it only if the failed endpoint is still
#   the current one. So a hundred calls that fail at once advance it by one.
# - A round visits each endpoint once, beginning with the current one.


class Ring:
    """Positions 0 to `size` - 1, one of them current. Used by one thread."""

    def __init__(self, size: int, start: int = 0) -> None:
        self._size = size
        self.current = start % size

    def round(self) -> Iterator[int]:
        """Yield every position once, beginning with the current one."""
        first = self.current
        return ((first + step) % self._size for step in range(self._size))

    def failed(self, position: int) -> None:
        """Let calls begin with the next endpoint, because the one at `position` failed."""
        if position == self.current:
            self.current = (position + 1) % self._size


log = logging.getLogger(__name__)

RequestT = TypeVar("RequestT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)
T = TypeVar("T")
_Metadata: TypeAlias = tuple[tuple[str, str], ...]

_HOPELESS: Final = (ChannelConnectivity.TRANSIENT_FAILURE, ChannelConnectivity.SHUTDOWN)


class EtcdConnection:
    """Channels to all endpoints, opened when first used. Belongs to one event loop. `deadline`:
    seconds for each call. `emit` receives the duration of each.
    """

    def __init__(self, access: EtcdAccess, *, deadline: float, emit: Emit = discard) -> None:
        self.deadline = deadline
        self.silence = Silence()
        self.on_rejected: Callable[[Rejected], None] = lambda _: None
        """Called for each rejection by etcd, but once for a login failure that is only repeated."""
        self._reported: Rejected | None = None
        self._emit = emit
        self.targets = access.targets
        self._access = access
        self._ring = Ring(len(self.targets), start=random.randrange(len(self.targets)))
        self._channels: dict[int, grpc.aio.Channel] = {}
        self._token: str | None = None
        self._backoff = LoginBackoff()
        self._authenticating = asyncio.Lock()

    @property
    def current(self) -> int:
        return self._ring.current

    async def close(self) -> None:
        """Close all channels. Calls in progress end as canceled: end them first."""
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            await channel.close()

    async def call(self, method: EtcdMethod[RequestT, ReplyT], request: RequestT) -> ReplyT:
        """Send the request to an endpoint that works; return the reply.

        Raises:
            Unavailable: and its kinds, see `errors`; `OutcomeUnknown` only for writes.
            AccessDenied: the user, the password or a permission is wrong.
            EtcdRefused: etcd reports that the request is invalid.
        """
        return await self._over(_one(method, request))

    async def call_each(
        self, method: EtcdMethod[RequestT, ReplyT], requests: Sequence[RequestT]
    ) -> list[ReplyT]:
        """Send many requests like `call`, on one stream. Return the replies in their order."""

        async def send(
            channel: grpc.aio.Channel, timeout: float, metadata: _Metadata
        ) -> list[ReplyT]:
            stub = channel.stream_stream(method.path, **method.form)
            call = stub(iter(requests), timeout=timeout, metadata=metadata)
            return [reply async for reply in call]

        return await self._over(_Call(method, send))

    async def _over(self, what: _Call[T]) -> T:
        try:
            with self.silence.around(what.method.name, self._emit):
                return await self._anywhere(what)
        except Rejected as rejected:
            if rejected is not self._reported:
                self._reported = rejected
                self.on_rejected(rejected)
            raise

    async def _anywhere(self, what: _Call[T]) -> T:
        clock = _Clock(self.deadline)
        last: ScheddError | None = None
        for position, share in self._round(clock):
            if not await self._connected(position, share):
                last = self._unreachable(position)
                continue
            try:
                return await self._send(position, what, clock)
            except EtcdCallFailed as failed:
                last = self._note(position, failed.failure)
                if failed.failure.remedy is not EtcdRemedy.ELSEWHERE:
                    raise last from failed.__cause__
        raise last or Unavailable(
            "etcd: none of the servers in etcd.endpoints answers; check that etcd is running"
        )

    async def call_one(
        self, position: int, method: EtcdMethod[RequestT, ReplyT], request: RequestT
    ) -> ReplyT:
        clock = _Clock(self.deadline)
        if not await self._connected(position, clock.remaining_seconds()):
            raise self._unreachable(position)
        try:
            return await self._send(position, _one(method, request), clock)
        except EtcdCallFailed as failed:
            raise failed.failure.error from failed.__cause__

    async def open(self, method: EtcdMethod[RequestT, ReplyT]) -> EtcdStream[RequestT, ReplyT]:
        """Return a stream to the first endpoint that connects; the caller closes it. Raises
        Unavailable: no endpoint connects within the deadline. Raises AccessDenied: user or
        password is wrong.
        """
        clock = _Clock(self.deadline)
        for position, share in self._round(clock):
            if not await self._connected(position, share):
                self._unreachable(position)
                continue
            try:
                token = await self._current_token(position, clock)
            except EtcdCallFailed as failed:
                raise self._note(position, failed.failure) from failed.__cause__
            stub = self._channel(position).stream_stream(method.path, **method.form)
            call = stub(metadata=metadata(token))
            return EtcdStream(call, self.deadline, position, self._access)
        raise Unavailable(
            "etcd: none of the servers in etcd.endpoints accepted a connection before the"
            " deadline; check that etcd is running"
        )

    def distrust(self, stream: EtcdStream[RequestT, ReplyT]) -> None:
        """Start later calls with the next endpoint and a new token: this endpoint doesn't serve."""
        self._ring.failed(stream.position)
        self._token = None

    # ── one endpoint ─────────────────────────────────────────────────────────────────────────

    def _round(self, clock: _Clock) -> Iterator[tuple[int, float]]:
        """Yield each endpoint once, with an equal share of the remaining time."""
        for done, position in enumerate(self._ring.round()):
            yield position, clock.remaining_seconds() / (len(self.targets) - done)

    def _unreachable(self, position: int) -> Unavailable:
        self._ring.failed(position)
        if self._access.tls is not None:
            self._channels.pop(position, None)  # not closed: other calls may still wait on it
        return Unavailable(
            f"etcd: the connection to {self.targets[position]} failed; check that etcd is"
            " running there"
        )

    def _note(self, position: int, failure: EtcdFailure) -> ScheddError:
        if failure.distrust:
            log.info(
                "etcd endpoint %s failed, using another: %s", self.targets[position], failure.error
            )
            self._ring.failed(position)
        return failure.error

    def _channel(self, position: int) -> grpc.aio.Channel:
        if position not in self._channels:
            self._channels[position] = self._access.open_channel(grpc.aio, position)
        return self._channels[position]

    async def _connected(self, position: int, timeout: float) -> bool:
        """Return whether a connection is open, or becomes open within `timeout` seconds."""
        channel = self._channel(position)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    state = channel.get_state(try_to_connect=True)
                    if state is ChannelConnectivity.READY:
                        return True
                    if state in _HOPELESS:
                        return False
                    await channel.wait_for_state_change(state)
        except TimeoutError:
            return False

    async def _send(self, position: int, what: _Call[T], clock: _Clock) -> T:
        token = await self._current_token(position, clock)
        try:
            return await self._send_once(position, what, clock, token)
        except EtcdCallFailed as failed:
            if token is None or failed.failure.remedy is not EtcdRemedy.TOKEN:
                raise
        token = await self._current_token(position, clock, stale=token)
        return await self._send_once(position, what, clock, token)

    async def _send_once(
        self, position: int, what: _Call[T], clock: _Clock, token: str | None
    ) -> T:
        try:
            return await what.send(
                self._channel(position), clock.remaining_seconds(), metadata(token)
            )
        except grpc.aio.AioRpcError as error:
            failure = judge(
                error.code(), error.details() or "", writes=what.method.writes, access=self._access
            )
            raise EtcdCallFailed(failure) from error

    # ── tokens ───────────────────────────────────────────────────────────────────────────────

    async def _current_token(
        self, position: int, clock: _Clock, stale: str | None = None
    ) -> str | None:
        """Return the token to send: a new one if there is none, or if the current one is stale.
        None: no user is configured. Empty: a user is configured, but etcd's authentication is off.
        """
        if (login := self._access.login) is None:
            return None
        try:
            async with asyncio.timeout(clock.remaining_seconds()), self._authenticating:
                if self._token is None or self._token == stale:
                    self._token = await self._authenticate(login, position, clock)
                return self._token
        except TimeoutError as error:
            self._backoff.timed_out(login)
            raise Unavailable(
                "etcd: the login timed out, because etcd sent no token; schedd retries the"
                " login after 2 s"
            ) from error

    async def _authenticate(self, login: Login, position: int, clock: _Clock) -> str:
        self._backoff.check(login)
        request = wire.AuthenticateRequest(name=login.user, password=login.password)
        try:
            reply: wire.AuthenticateResponse = await self._send_once(
                position, _one(AUTHENTICATE, request), clock, token=None
            )
        except EtcdCallFailed as failed:
            if not isinstance(failed.failure.error, RightsOff):
                self._backoff.failed(failed, login)
                raise
            log.warning(
                "etcd's authentication is off: the setting etcd.user, %r, has no effect",
                request.name,
            )
            return ""
        return reply.token


@dataclass(frozen=True, slots=True)
class _Call(Generic[T]):
    """A call, which sends its requests over a channel, within seconds, and receives the replies."""

    method: EtcdMethod[Any, Any]
    send: Callable[[grpc.aio.Channel, float, _Metadata], Awaitable[T]]


def _one(method: EtcdMethod[RequestT, ReplyT], request: RequestT) -> _Call[ReplyT]:
    async def send(channel: grpc.aio.Channel, timeout: float, metadata: _Metadata) -> ReplyT:
        stub = channel.unary_unary(method.path, **method.form)
        reply: ReplyT = await stub(request, timeout=timeout, metadata=metadata)
        return reply

    return _Call(method, send)


class _Clock:
    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends = self._loop.time() + seconds

    def remaining_seconds(self) -> float:
        return max(0.001, self._ends - self._loop.time())
