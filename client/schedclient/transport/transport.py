"""Calls over any of several members: endpoints that are down are skipped, safe calls are retried.

    call ──▶ an endpoint that is connected ──▶ a place ──▶ answer
                │ none is yet: try the next               │ UNAVAILABLE, or timed out:
                │                                         │ back off, retry
                ╰──────────── until the deadline of the call ─────────╯

Invariants
- Each call has a deadline, which no wait or try exceeds. Streams have one only if asked for.
- A call that isn't safe to repeat (`repeatable`) is begun at most once. It is retried only before
  a connection is open, or if the stream was refused (`errors.REFUSED`).
- A change that one try may have made ends in `DeadlineExceeded`, whatever later tries return.
- The endpoint that answered last is tried first.
- At most AT_ONCE calls are in progress; the others queue here, first in, first out. The timeout of
  a try counts from when it is sent.
- Calls that begin LOOK_EVERY after a change of the certificate files use the new ones.
- Each event loop has its own channels. A fork closes them first, and breaks off the streams that
  their caller resumes (`fork`).
- Streams have their own connection, so they never delay a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from operator import methodcaller
from typing import Any, Final, NoReturn, cast
from weakref import WeakKeyDictionary

import grpc
import grpc.aio
from google.protobuf.message import Message

from schedclient.errors import (
    BROKEN,
    CANCELLED,
    NO_ANSWER,
    REFUSED,
    ApiError,
    ClusterUnavailable,
    DeadlineExceeded,
    from_rpc,
)
from schedclient.transport import fork, methods
from schedclient.transport.methods import Method
from schedkit.backoff import Backoff
from schedkit.errors import Misconfigured
from schedkit.net.channel import MAX_STREAMS, TLS, Rotation, against_each, check_plaintext, connect
from schedkit.net.handshake import is_tls, why_not
from schedkit.records import dataclass

# The outcome of the tries of one call: a rejection, or a change that may have been made.
#
# Invariant: a change that one try may have made ends in `DeadlineExceeded`, whatever later tries
# return.

NO_TIME: Final = "NO_TIME"
"""The try wasn't sent: the call's timeout had expired."""
ON_ITS_WAY: Final = frozenset({BROKEN, CANCELLED})
"""A member may have begun the call, but no answer arrived."""
UNANSWERED: Final = ON_ITS_WAY | {NO_ANSWER}
"""The reasons of ON_ITS_WAY, and a timeout."""


class Tries:
    """The outcome of the tries of one call, and the error that the call ends with."""

    def __init__(self, *, reads: bool) -> None:
        self._reads = reads
        self._last: ApiError | None = None
        self._refusal: ClusterUnavailable | None = None
        self._unclear: DeadlineExceeded | None = None

    def add(self, failure: ApiError) -> None:
        self._last = failure
        if failure.reason in ON_ITS_WAY:
            failure = _may_have_happened(failure)
        if isinstance(failure, ClusterUnavailable):
            self._refusal = failure
        elif isinstance(failure, DeadlineExceeded) and not (
            self._unclear and failure.reason in UNANSWERED  # a member's own error says more
        ):
            self._unclear = failure

    def outcome(self, end: ClusterUnavailable | DeadlineExceeded) -> ApiError:
        """Return the error of the call: its end, with the last rejection."""
        failure: ApiError = self._last if end.reason == NO_TIME and self._last else end
        if self._unclear is not None and not self._reads:
            failure = self._unclear
        refusal = self._refusal
        if isinstance(end, ClusterUnavailable) and end.reason not in ON_ITS_WAY:
            refusal = end
        if isinstance(failure, DeadlineExceeded) and refusal is not None:
            failure = failure.after(refusal)
        return with_remedy(failure, reads=self._reads)


def _may_have_happened(failure: ApiError) -> DeadlineExceeded:
    return DeadlineExceeded(
        failure.what,
        reason=failure.reason,
        remedy="check whether the change was made, then call again if not; a call with an"
        " idempotency key can be repeated at once, because it takes effect only once",
        endpoint=failure.endpoint,
    )


def with_remedy(failure: ApiError, *, reads: bool) -> ApiError:
    if isinstance(failure, DeadlineExceeded) and reads and not failure.remedy:
        failure.remedy = "call again, or give a longer timeout"
    return failure


UNREACHABLE: Final = frozenset({"NO_ENDPOINT", "TLS_WANTED"})
"""The call was never sent: no endpoint answered before the timeout."""
SILENT: Final = "DATABASE_SILENT"
"""Reason of a read that PostgreSQL didn't answer."""
NO_DATABASE: Final = frozenset({SILENT, "DATABASE_UNAVAILABLE", "DEPENDENCY_REJECTED"})
"""Reasons of a member that can't reach PostgreSQL, gets no answer from it, or is rejected by it."""
DATABASE_TRIES: Final = 1.5
"""Seconds after which such a call isn't tried again, unless its caller chose a timeout. So callers
get an answer within 3 s.
"""
TIMEOUT: Final = 20.0
"""Default timeout of a call in seconds."""
ENOUGH: Final = 1.0
"""Minimum seconds left for a try at another member after a failure."""
CONNECTING: Final = 1.5
"""Timeout in seconds of connecting to an endpoint before the next one is tried."""
AT_ONCE: Final = MAX_STREAMS // 2
"""Calls in progress of one client. Half of the limit of a connection: members of earlier versions
also count calls that have just ended, and other clients of this process share the connection.
"""
RETIRES_WITHIN: Final = 60.0
"""Seconds after a change of certificate in which calls of the old one may end."""
GRPC_LATE: Final = 1.0
"""Seconds after its deadline by which gRPC must have ended a call."""
CALLS: Final = ""
STREAMS: Final = "streams"
"""The uses of a connection."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Endpoints and options of a client. `timeout`: default timeout of a call, in seconds."""

    endpoints: tuple[str, ...]
    tls: TLS | None = None
    token: str | None = None
    timeout: float = TIMEOUT
    connect_timeout: float | None = None
    """Timeout of the first connection, to any endpoint, in seconds; None: the call's timeout."""

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise Misconfigured(
                "no endpoint is given: give addresses of members, host:port,host:port"
            )
        for why in against_each(self.endpoints, self._against):
            raise Misconfigured(why)

    def _against(self, endpoint: str) -> str:
        try:
            check_plaintext(endpoint, insecure=self.tls is not None or not self.token)
        except (Misconfigured, ValueError) as error:
            return str(error)
        return ""


def split_endpoints(endpoints: str | Sequence[str]) -> tuple[str, ...]:
    """Return endpoints, given as `host:port,host:port` or as a sequence, as a tuple without
    duplicates.
    """
    written = [endpoints] if isinstance(endpoints, str) else endpoints
    parts = [part.strip() for one in written for part in one.split(",")]
    return tuple(dict.fromkeys(part for part in parts if part))


def refuse_pickle() -> NoReturn:
    raise TypeError(
        "a client can't be pickled: it holds connections and may hold a token;"
        " pass its endpoints to the other process and make a client there"
    )


class Transport:
    """Makes calls to a cluster from any event loop. Each loop has its own channels, because a
    channel of `grpc.aio` belongs to the loop that created it.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Channels] = WeakKeyDictionary()

    def __reduce__(self) -> NoReturn:
        refuse_pickle()

    async def close(self) -> None:
        """Close every channel. Calls in progress end."""
        loop = asyncio.get_running_loop()
        here = self._by_loop.pop(loop, None)
        for channels in self._by_loop.values():
            channels.drop()
        self._by_loop.clear()
        if here is not None:
            await here.close()

    async def call(self, request: Message, timeout: float | None = None) -> Any:
        """Make a call and return its answer. Raises ApiError: see `schedclient.errors`."""
        channels, use = await self._channels_in_use()
        try:
            return await channels.call(request, timeout)
        finally:
            channels.uses.discard(use)

    async def stream(self, request: Message, timeout: float | None = None) -> AsyncIterator[Any]:
        """Yield the messages of one stream, from one endpoint. The caller resumes it if it breaks.
        `timeout` seconds cover all of it, including the connection. Raises ApiError: see
        `schedclient.errors`; `ClusterUnavailable` when the stream broke.
        """
        channels, use = await self._channels_in_use()
        try:
            messages = channels.stream(request, timeout, use)
            async with contextlib.aclosing(messages):
                async for message in messages:
                    yield message
        finally:
            channels.uses.discard(use)

    async def _channels_in_use(self) -> tuple[Channels, _Use]:
        """Return the channels of the running loop, and a use that prevents a fork from closing
        them. Waits until no thread forks.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise Misconfigured(
                "Client needs a running asyncio event loop;"
                " with trio or another library, call SyncClient in a thread"
            ) from None
        while True:
            with fork.state.lock:
                fork.check()
                if not fork.state.forks:
                    channels = self._by_loop.get(loop)
                    if channels is None:
                        channels = self._by_loop[loop] = Channels(self.settings, loop)
                        fork.register(channels)
                    use = _Use()
                    channels.uses.add(use)
                    return channels, use
            await asyncio.sleep(fork.LOOK_EVERY)


class _Use:
    """A call or stream in flight."""

    def __init__(self) -> None:
        self.stream: grpc.aio.UnaryStreamCall[Any, Any] | None = None
        """Set for a stream that its caller resumes."""
        self.broken_off = False

    def break_off(self) -> bool:
        """End the stream because of a fork. Return False if it must not be ended."""
        if self.stream is None:
            return False
        self.stream.cancel()
        self.stream, self.broken_off = None, True
        return True


class Channels:
    """Channels of one event loop to all endpoints, opened when first needed."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        self.settings = settings
        self.uses = set[_Use]()
        self._process = os.getpid()
        self._loop = weakref.ref(loop)
        self._order = list(settings.endpoints)
        random.shuffle(self._order)  # many clients with one list spread over its members
        self._channels: dict[tuple[str, str], grpc.aio.Channel] = {}
        self._callables: dict[tuple[str, str], Any] = {}
        token = settings.token
        self._rotation, self._retiring = Rotation(settings.tls), set[asyncio.Task[None]]()
        self._met = False
        self._places = asyncio.Semaphore(AT_ONCE)
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()

    async def close(self) -> None:
        channels, self._channels = list(self._channels.values()), {}
        self._callables.clear()
        await asyncio.gather(*(channel.close() for channel in channels), *self._retiring)

    def drop(self) -> None:
        """Close idle channels: gRPC closes a channel that nothing refers to."""
        if not self.uses and self._process == os.getpid():
            self._callables.clear()
            self._channels.clear()

    def _break_off(self) -> None:
        """End the streams that their callers resume, and close the channels if nothing is left."""
        if self._process == os.getpid():
            self.uses -= {use for use in self.uses if use.break_off()}
            self.drop()

    def release(self) -> fork.Open:
        """Close the channels in the thread of their loop; return what is open."""
        loop = self._running()
        here = loop is not None and _runs_here(loop)
        if loop is None or here:
            self.drop()
        elif self._channels:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._break_off)
        if not self.is_open():
            return fork.Open.NO
        return fork.Open.FOR_THIS_THREAD if here else fork.Open.SHORTLY

    def pass_through(self, seconds: float) -> None:
        """Wait until the event loop has finished its current work, at most that long."""
        loop = self._running()
        if loop is None or _runs_here(loop):
            return
        passed = threading.Event()
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(passed.set)
            passed.wait(seconds)

    def _running(self) -> asyncio.AbstractEventLoop | None:
        loop = self._loop()
        return None if loop is None or loop.is_closed() or not loop.is_running() else loop

    def is_open(self) -> bool:
        """Return whether a connection is open or a call is in flight."""
        return bool(self._channels or self._retiring or self.uses)

    async def call(self, request: Message, timeout: float | None) -> Any:
        method = methods.method_of(request.DESCRIPTOR)
        tries = Tries(reads=method.reads(request))
        try:
            return await self._call(method, request, timeout, tries)
        except (ClusterUnavailable, DeadlineExceeded) as error:
            if isinstance(error, ClusterUnavailable):
                outcome = tries.outcome(await self._explained(error))
            else:
                outcome = tries.outcome(error)
            if outcome is error:
                raise  # keep its cause
            raise outcome from error

    async def _call(
        self, method: Method, request: Message, timeout: float | None, tries: Tries
    ) -> Any:
        deadline = _Deadline(self.settings.timeout if timeout is None else timeout)
        chosen = timeout is not None or self.settings.timeout != TIMEOUT
        backoff = Backoff(0.05, 1.0)
        answer: grpc.aio.UnaryUnaryCall[Message, Any] | None = None
        while True:
            await self._connected(deadline)
            if not await self._placed(deadline):
                raise DeadlineExceeded(
                    f"timed out in the client's queue: {AT_ONCE} calls run at a time",
                    reason=NO_TIME,
                    remedy="give a longer timeout, or make fewer calls at a time; nothing was sent",
                )
            try:
                endpoint = await self._connected(deadline)  # the first endpoint may be down by now
                seconds = self._try_for(method, deadline)
                answer = self._callable(endpoint, method)(
                    request, timeout=seconds, metadata=self._metadata
                )
                async with asyncio.timeout(seconds + GRPC_LATE):
                    return await answer
            except TimeoutError:  # gRPC's own timer doesn't run
                raise DeadlineExceeded(
                    f"the call to {endpoint} hangs: gRPC didn't end it at its deadline",
                    reason=NO_ANSWER,
                    remedy="check whether the call took effect, and restart this process",
                    endpoint=endpoint,
                ) from None
            except grpc.aio.AioRpcError as error:
                failure = from_rpc(error, endpoint)
                tries.add(failure)
                self._demote(endpoint, failure)
                wait = backoff.next()
                late = not chosen and deadline.passed() + wait > DATABASE_TRIES
                if late and failure.reason in NO_DATABASE:
                    raise failure from error.with_traceback(None)
                if not self._worth_another(failure, method, deadline.remaining_seconds() - wait):
                    raise failure from error.with_traceback(None)
            finally:
                answer = None  # no traceback keeps its channel open over a fork
                self._places.release()
            await asyncio.sleep(wait)

    async def stream(
        self, request: Message, timeout: float | None, use: _Use
    ) -> AsyncGenerator[Any, None]:
        method = methods.method_of(request.DESCRIPTOR)
        connect_within = (
            self.settings.timeout if timeout is None else min(timeout, self.settings.timeout)
        )
        ends = None if timeout is None else _Deadline(timeout)
        try:
            endpoint = await self._connected(_Deadline(connect_within), STREAMS)
        except ClusterUnavailable as error:
            raise await self._explained(error) from error
        pieces: grpc.aio.UnaryStreamCall[Message, Any] | None = self._callable(
            endpoint, method, stream=True
        )(
            request,
            timeout=None if ends is None else ends.remaining_seconds(),
            metadata=self._metadata,
        )
        use.stream = pieces if method.resumed else None
        try:
            while pieces is not None:
                piece = await pieces.read()
                if piece is grpc.aio.EOF:
                    return
                if method.resumed:
                    pieces = None  # a suspended frame keeps no channel open over a fork
                yield piece
                pieces = use.stream if method.resumed else pieces
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not use.broken_off or (task is not None and task.cancelling()):
                raise
        except grpc.aio.AioRpcError as error:
            failure = from_rpc(error, endpoint)
            self._demote(endpoint, failure)
            error = error.with_traceback(None)
            raise with_remedy(failure, reads=method.reads(request)) from error
        finally:
            pieces = pieces or use.stream
            if pieces is not None:
                pieces.cancel()
            pieces = use.stream = None  # no traceback keeps its channel open over a fork
        raise ClusterUnavailable(
            f"the stream from {endpoint} ended, because this process was forked",
            reason=BROKEN,
            remedy="start the call again: it continues a watch, or reads a run's output",
            endpoint=endpoint,
        )

    # -- Endpoints --

    async def _connected(self, deadline: _Deadline, use: str = CALLS) -> str:
        """Return an endpoint with an open connection of this use: the first that connects."""
        backoff = Backoff(0.05, 1.0)
        tried = False  # whether an endpoint refused, or connecting timed out
        if not self._met and self.settings.connect_timeout is not None:
            deadline = _Deadline(min(self.settings.connect_timeout, deadline.remaining_seconds()))
        while True:
            for endpoint in tuple(self._order):
                within = min(CONNECTING, deadline.remaining_seconds())
                ready = await self._connects(endpoint, use, within)
                if ready:
                    self._met = True
                    return endpoint
                tried = tried or ready is not None or within == CONNECTING
                self._to_the_end(endpoint)
            wait = backoff.next()
            if deadline.remaining_seconds() <= wait:
                endpoints = ", ".join(self.settings.endpoints)
                if not tried:
                    raise DeadlineExceeded(
                        f"the call timed out before a connection was open: {endpoints}",
                        reason=NO_TIME,
                        remedy="give a longer timeout; nothing was sent",
                    )
                raise ClusterUnavailable(
                    f"no member answered at the endpoints {endpoints}",
                    reason="NO_ENDPOINT",
                    remedy="check the addresses, and that members are running there",
                )
            await asyncio.sleep(wait)

    async def _connects(self, endpoint: str, use: str, within: float) -> bool | None:
        """Return whether a connection is open; None: timed out after `within` seconds."""
        channel = self._channel(endpoint, use)
        state = channel.get_state(try_to_connect=True)
        if state is grpc.ChannelConnectivity.READY:
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(within, 0.0)):
                while state is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        return False
                    await channel.wait_for_state_change(state)
                    state = channel.get_state(try_to_connect=True)
                return True
        return None

    async def _placed(self, deadline: _Deadline) -> bool:
        """Wait for a place; return whether it was free in time. The caller releases it."""
        if not self._places.locked():
            return await self._places.acquire()
        try:
            async with asyncio.timeout(deadline.remaining_seconds()):
                return await self._places.acquire()
        except TimeoutError:
            return False

    def _worth_another(self, failure: ApiError, method: Method, left: float) -> bool:
        if failure.reason == REFUSED:
            return left > 0
        if not method.repeatable or left <= 0:
            return False
        if failure.reason == SILENT and (len(self._order) == 1 or left < ENOUGH):
            return False  # the member has waited for PostgreSQL already
        return isinstance(failure, ClusterUnavailable | DeadlineExceeded)

    def _demote(self, endpoint: str, failure: ApiError) -> None:
        """Try another endpoint first the next time, if this one can't answer."""
        if isinstance(failure, ClusterUnavailable | DeadlineExceeded):
            self._to_the_end(endpoint)

    def _to_the_end(self, endpoint: str) -> None:
        self._order.remove(endpoint)
        self._order.append(endpoint)

    def _try_for(self, method: Method, deadline: _Deadline) -> float:
        """Return the seconds for one try. With other endpoints, one that hangs doesn't get all."""
        left = deadline.remaining_seconds()
        if not method.repeatable or len(self._order) == 1:
            return left
        return min(left, method.try_timeout)

    # -- Channels --

    async def _explained(self, error: ClusterUnavailable) -> ClusterUnavailable:
        """Return the failure, with the cause if a TLS handshake failed."""
        if self.settings.tls is None:
            return await self._unspoken(error)
        for endpoint in self.settings.endpoints:
            why = await asyncio.to_thread(why_not, endpoint, self.settings.tls)
            if why is not None:
                return ClusterUnavailable(
                    f"TLS with {endpoint} failed: {why.what}",
                    reason="TLS_REFUSED",
                    remedy=why.remedy,
                )
        return error

    async def _unspoken(self, error: ClusterUnavailable) -> ClusterUnavailable:
        """Return the failure of a plaintext client, with the cause if members require TLS."""
        if error.reason != "NO_ENDPOINT":
            return error
        looks = (asyncio.to_thread(is_tls, endpoint) for endpoint in self.settings.endpoints)
        for endpoint, speaks in zip(
            self.settings.endpoints, await asyncio.gather(*looks), strict=True
        ):
            if speaks:
                return ClusterUnavailable(
                    f"{endpoint} requires TLS, but this client uses plaintext",
                    reason="TLS_WANTED",
                    remedy="give tls (ca, with cert and key or a token); for schedctl:"
                    f" schedctl config set NAME --at {endpoint} --ca FILE --cert FILE --key FILE,"
                    " or, at the port for tokens, --ca FILE --token-file FILE",
                )
        return error

    def _retire(self) -> None:
        """Use the changed certificate for new calls."""
        for channel in self._channels.values():
            task = asyncio.create_task(channel.close(RETIRES_WITHIN), name="retired channel")
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)
        self._channels.clear()
        self._callables.clear()

    def _channel(self, endpoint: str, use: str) -> grpc.aio.Channel:
        if self._rotation.turned():
            self._retire()
        channel = self._channels.get((endpoint, use))
        if channel is None:
            channel = connect(endpoint, tls=self.settings.tls, use=use)
            self._channels[endpoint, use] = channel
        return channel

    def _callable(self, endpoint: str, method: Method, *, stream: bool = False) -> Any:
        key = (endpoint, method.path)
        if key not in self._callables:
            channel = self._channel(endpoint, STREAMS if stream else CALLS)
            make = channel.unary_stream if stream else channel.unary_unary
            self._callables[key] = cast("Any", make)(
                method.path,
                request_serializer=methodcaller("SerializeToString"),
                response_deserializer=method.answer.FromString,
            )
        return self._callables[key]


class _Deadline:
    """When a call must have ended, on the event loop's clock."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._at = self._began + seconds

    def passed(self) -> float:
        return self._loop.time() - self._began

    def remaining_seconds(self) -> float:
        return max(0.0, self._at - self._loop.time())


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
