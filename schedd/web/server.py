"""The HTTP server inside the daemon's event loop: bound first, served until cancelled.

    async with bound("127.0.0.1:7421") as http:    connections queue from here
        group.create_task(http.serve(app))         until cancelled; finishes requests in progress

Signals are handled by the daemon, not by uvicorn.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, NoReturn, cast

import uvicorn
from starlette.applications import Starlette

from schedkit.daemon.log_rate_limit import LimitedLine
from schedkit.errors import Fault, Misconfigured
from schedkit.net.channel import listening
from schedkit.net.http_limits import MOST, HttpServer, protocol_of
from schedkit.net.https import Handshake
from schedkit.net.proxies import NO_PROXIES, Proxies

GRACE: Final = 3
"""Seconds for requests in progress at shutdown."""

MOST_OF_ONE_HOST: Final = 256
"""The least limit of connections of one host, within the limit of all hosts."""

BACKLOG: Final = 512


class Bound:
    """A bound address: connections queue until `serve` accepts them."""

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
        """Serve until cancelled. Then event streams end at once (`app.state.closing`), and requests
        in progress get GRACE seconds. `connections`: limit of all hosts. One host gets an eighth of
        it, or MOST_OF_ONE_HOST if that is more; `proxies` have no limit. `tls` None: without TLS.
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
            server.stop()
            await asyncio.wait([running])
            raise
        raise Fault("the HTTP server stopped unexpectedly")

    def close(self) -> None:
        self._listener.close()


@asynccontextmanager
async def bound(address: str) -> AsyncIterator[Bound]:
    """Listen on host:port (port 0: any free port) during the block.

    Raises:
        Misconfigured: the address is invalid, or can't be bound.
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
        raise Misconfigured(
            f"listen.http: can't listen on {address}: {error}; use a free port, and an address"
            " of this host"
        ) from error


class _Server(HttpServer):
    """With a short handshake timeout."""

    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._tls = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. Uvicorn itself would wait a minute for each handshake."""
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
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return Handshake(inner, lambda: inner.transport is not None, tls, lines)
