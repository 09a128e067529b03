"""The HTTP server inside the daemon's own loop: bound first, served until cancelled.

    listener = bind("127.0.0.1:7421")          connections queue from here on
    group.create_task(serve(app, listener))    until cancelled; then finishes what is being answered

Signals are the daemon's; uvicorn gets none of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator
from typing import Final, NoReturn

import uvicorn
from starlette.applications import Starlette

from schedkit.errors import Fault, Misconfigured

GRACE: Final = 3
"""Seconds for requests that are being answered when the server is told to end."""

BACKLOG: Final = 512


def bind(address: str) -> socket.socket:
    """A listening socket at host:port (port 0: any that is free).

    Raises:
        Misconfigured: the address can't be read, or can't be had.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise Misconfigured(f"listen.http: {address!r} is no host:port")
    try:
        family, kind, _, _, where = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise Misconfigured(f"listen.http: can't listen at {address}: {error}") from error
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """Where it listens, as host:port."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def serve(app: Starlette, listener: socket.socket) -> NoReturn:
    """Serve until cancelled. Then event streams end at once, and what is being answered gets
    GRACE seconds. `app.state.closing` is the event that ends the streams.
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
            h11_max_incomplete_event_size=64 * 1024,
        )
    )
    running = asyncio.create_task(server.serve(sockets=[listener]), name="http server")
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        app.state.closing.set()
        server.should_exit = True
        await asyncio.wait([running])
        raise
    raise Fault("the HTTP server ended by itself")


class _Server(uvicorn.Server):
    """Without signal handlers: the daemon's own decide."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
