"""The HTTP server inside the daemon's own loop: bound first, served until cancelled.

    async with bound("127.0.0.1:7421") as http:    connections queue from here on
        group.create_task(http.serve(app))         until cancelled; finishes what is being answered

Signals are the daemon's; uvicorn gets none of them.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final, NoReturn, cast

import uvicorn
from starlette.applications import Starlette

from schedkit.daemon.log_rate_limit import LimitedLine
from schedkit.errors import Fault, Misconfigured
from schedkit.net.http_limits import MOST, protocol_of
from schedkit.net.https import Handshake
from schedkit.net.listening import listening
from schedkit.net.proxies import NO_PROXIES, Proxies

GRACE: Final = 3
"""Seconds for requests that are being answered when the server is told to end."""

MOST_OF_ONE_HOST: Final = 256
"""Connections that one host may have, if there may be as many."""

BACKLOG: Final = 512


class Bound:
    """An address that is had: connections queue until `serve` takes them."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        host, port = listener.getsockname()[:2]
        self.host: Final[str] = host
        self.port: Final[int] = port

    @property
    def address(self) -> str:
        """host:port"""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def serve(
        self,
        app: Starlette,
        connections: int = MOST,
        tls: ssl.SSLContext | None = None,
        proxies: Proxies = NO_PROXIES,
    ) -> NoReturn:
        """Serve until cancelled. Then event streams end at once, and what is being answered gets
        GRACE seconds. `app.state.closing` is the event that ends the streams. `connections`: how
        many there may be at a time; an eighth of them of one host, or MOST_OF_ONE_HOST, but for
        `proxies`, which have them for others. `tls` None: in the clear.
        """
        server = _Server(
            uvicorn.Config(
                app,
                access_log=False,
                log_config=None,
                lifespan="off",
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=GRACE,
                http=protocol_of(
                    connections, max(MOST_OF_ONE_HOST, connections // 8), proxies.trusts
                ),
                ws="none",
            ),
            tls,
        )
        running = asyncio.create_task(server.serve(sockets=[self._listener]), name="http server")
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            app.state.closing.set()
            server.should_exit = True
            await asyncio.wait([running])
            raise
        raise Fault("the HTTP server ended by itself")

    def close(self) -> None:
        """Give the address back."""
        self._listener.close()


@asynccontextmanager
async def bound(address: str) -> AsyncIterator[Bound]:
    """Listen at host:port (port 0: any that is free) for the time of the block.

    Raises:
        Misconfigured: the address can't be read, or can't be had.
    """
    found = Bound(_listener(address))
    try:
        yield found
    finally:
        found.close()


def _listener(address: str) -> socket.socket:
    try:
        return listening(address, BACKLOG)
    except ValueError as error:
        raise Misconfigured(f"listen.http: {error}") from error
    except OSError as error:
        raise Misconfigured(f"listen.http: can't listen at {address}: {error}") from error


class _Server(uvicorn.Server):
    """Without signal handlers, for the daemon's own decide; and impatient of slow handshakes."""

    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._tls = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. Uvicorn itself would wait for a minute for each handshake."""
        if self._tls is None:
            await super().startup(sockets)
            return
        await super().startup([])
        lines = LimitedLine()
        for listener in sockets or ():
            serving = await asyncio.get_running_loop().create_server(
                partial(self._connection, self._tls, lines), sock=listener, backlog=BACKLOG
            )
            self.servers.append(serving)

    def _connection(self, tls: ssl.SSLContext, lines: LimitedLine) -> asyncio.BaseProtocol:
        make = cast("Any", self.config.http_protocol_class)
        inner = make(
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        return Handshake(inner, lambda: inner.transport is not None, tls, lines)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take none."""
        yield
