"""Timeouts and limits for HTTP connections of a daemon: uvicorn itself waits forever.

    accepted ──head──▶ asked ──body: the app's own limit──▶ answered ──▶ kept for a moment
        │ 10 s: ended                                          │ not read for 20 s: cut off
        └ too many, of all or of one host: 503

docs/operations/connection-limits.md has the limits.
- Single bytes don't prolong the time of a head. The body of an answered request isn't read to its
  end. Data is read in small pieces, so that one client doesn't block the loop for others.

For `HttpServer(uvicorn.Config(http=protocol_of(most, most_of_one_host)))`, which is one daemon's
listener.
"""

import asyncio
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from schedkit.net.https import showing
from schedkit.tasks import Waker

HEAD_WITHIN: Final = 10.0
"""Seconds that the head of a request may take."""
STALLED_FOR: Final = 20.0
"""Seconds that an answer may wait until the client continues to read."""
PIECE: Final = 2 * 1024
"""Bytes read at a time. A body may consist of chunks of one byte, 20 µs each. Other clients wait
while a few such pieces are processed.
"""
UNWANTED: Final = 64 * 1024
"""Bytes of a body that are still accepted after its request was answered."""

MOST_HEAD: Final = 64 * 1024
"""Bytes of a head."""
SPARE: Final = 256
"""Descriptors that a daemon needs besides its clients' connections, with a reserve."""
MOST: Final = 4_096

_BUSY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"retry-after: 1\r\nconnection: close\r\ncontent-length: 21\r\n\r\ntoo many connections\n"
)


def more_descriptors() -> int:
    """Raise the limit on descriptors to the maximum of the process, and return it. Only for daemons
    whose children, if any, tolerate that.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def connections_for(descriptors: int, listeners: int) -> int:
    """Return how many connections each listener may have."""
    return max(16, min(MOST, (descriptors - SPARE) // listeners))


def protocol_of(
    most: int, most_of_one_host: int, many: Callable[[str], bool] = lambda _: False
) -> type[H11Protocol]:
    """Return uvicorn's protocol with these limits. It counts the connections of one server.
    `many`: whether a host represents many clients, as a proxy does, and is exempt from
    `most_of_one_host`.
    """
    doors = _Doors(most, most_of_one_host, many)
    return type("BoundedPatience", (HttpLimits,), {"doors": doors})


class HttpServer(uvicorn.Server):
    """A server in a daemon's event loop. The daemon handles signals. An idle server wakes up once a
    second, for the date of its answers; uvicorn itself wakes up ten times.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._waker = Waker()

    def stop(self) -> None:
        """Accept no more connections; `serve` returns when requests in progress have ended."""
        self.should_exit = True
        self._waker.wake()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            await self._waker.wait(1.0)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers."""
        yield


class _Doors:
    """The connections of one listener, by host."""

    def __init__(self, most: int, most_of_one_host: int, many: Callable[[str], bool]) -> None:
        self._most, self._most_of_one_host, self._many = most, most_of_one_host, many
        self._hosts: Counter[str] = Counter()

    def enter(self, host: str) -> bool:
        """Count a connection of this host. Return whether there is room. Always call `leave`."""
        self._hosts[host] += 1
        few = self._hosts[host] <= self._most_of_one_host or self._many(host)
        return few and self._hosts.total() <= self._most

    def end_request(self, host: str) -> None:
        self._hosts[host] -= 1
        if not self._hosts[host]:
            del self._hosts[host]


class OneLength(h11.Connection):
    """HTTP/1.1 in which a request has one length. `Content-Length` together with
    `Transfer-Encoding` is rejected: a proxy in front may use the other one, and take a body for the
    next request.
    """

    def next_event(self) -> Any:
        """Return the next event, as h11 does. Raises RemoteProtocolError."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if {b"content-length", b"transfer-encoding"} <= names:
                raise h11.RemoteProtocolError(
                    "the request has both Content-Length and Transfer-Encoding: send only one"
                    " of these headers"
                )
        return event


class HttpLimits(H11Protocol):
    """A connection, counted by the `doors` of its class (`protocol_of`)."""

    doors: ClassVar[_Doors]

    _host = ""
    _head: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    _refused = False
    _unwanted = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the accepted connection, and start the timeout of its first head."""
        super().connection_made(transport)
        self.conn = OneLength(h11.SERVER, max_incomplete_event_size=MOST_HEAD)
        cast("Any", transport).max_size = PIECE  # an attribute of asyncio's transports
        self.app = showing(self.app, transport.get_extra_info("ssl_object"))
        self._host = str(self.client[0]) if self.client else ""
        if self.doors.enter(self._host):
            self._await_head()
        else:
            self._refused = True
            transport.write(_BUSY)
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self.doors.end_request(self._host)
        self._head = _disarmed(self._head)
        self._stall = _disarmed(self._stall)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused or self._overdue(data):
            return
        super().data_received(data)
        self._heed_head()

    def on_response_complete(self) -> None:
        """Start the timeout of the next head, which may have arrived already."""
        self._await_head()
        super().on_response_complete()
        self._heed_head()
        if self.transport.is_closing():
            self._end()

    def pause_writing(self) -> None:
        """Start the timeout of a client that doesn't read its answer."""
        super().pause_writing()
        self._stall = self._stall or self._later(STALLED_FOR, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop that timeout, unless the connection is closing: then the rest of the timeout
        applies.
        """
        if not self.transport.is_closing():
            self._stall = _disarmed(self._stall)
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """End a connection that sent no further request."""
        super().timeout_keep_alive_handler()
        self._end()

    def _overdue(self, data: bytes) -> bool:
        """Return whether too much of a body arrives after its request was answered; it is ignored
        then. Some data is accepted: a client that is reset while sending wouldn't have read the
        answer.
        """
        answered = self.cycle is not None and self.cycle.response_complete
        if not answered or not self.cycle.more_body:
            self._unwanted = 0
            return False
        self._unwanted += len(data)
        if self._unwanted > UNWANTED:
            self._end()
        return self._unwanted > UNWANTED

    def _await_head(self) -> None:
        _disarmed(self._head)
        self._head = self._later(HEAD_WITHIN, self._end)

    def _heed_head(self) -> None:
        """Stop the timeout of a complete head: its answer may take any time."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._head = _disarmed(self._head)

    def _end(self) -> None:
        """Close the connection, and abort it if the client doesn't read the answer."""
        self._head = _disarmed(self._head)
        self.transport.close()
        self._stall = self._stall or self._later(STALLED_FOR, self.transport.abort)

    def _later(self, seconds: float, what: Callable[[], None]) -> asyncio.TimerHandle:
        return self.loop.call_later(seconds, what)


def _disarmed(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancel a timer. Return None, to replace it."""
    if timer is not None:
        timer.cancel()
    return None
