"""Where a member is asked: its addresses, and how many may come at a time.

    gRPC   listen.grpc (certificates), listen.grpc_tokens (tokens)   calls, workers, members
    HTTP   listen.http                                               pages, REST, metrics, health

An address is bound before anything runs: callers that connect early wait until it is served.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NoReturn

import grpc.aio
from starlette.applications import Starlette

from schedd.config import Config
from schedd.rpc.connection_limit import ConnectionLimit, most_of_all, most_of_one
from schedd.rpc.server import make_server, served
from schedd.web import server as web_server
from schedkit.net.channel import listen
from schedkit.net.http_limits import connections_for, more_descriptors
from schedkit.net.https import context_of
from schedkit.net.proxies import Proxies


@dataclass(frozen=True, slots=True)
class Doors:
    """The two servers of a member, with their addresses. `connections`, `streams`: how many HTTP
    and gRPC may have open.
    """

    grpc: grpc.aio.Server
    ports: tuple[int, ...]
    """Of gRPC: the first is the one that is advertised."""
    http: web_server.Bound
    https: ssl.SSLContext | None
    connections: int
    streams: int
    proxies: Proxies
    """Before HTTP."""

    def watched(self) -> list[tuple[str, Callable[[], Awaitable[object]]]]:
        """What runs as long as gRPC is served, by name."""
        most = most_of_one(self.streams)
        crowds = [(f"crowds at {port}", ConnectionLimit(port, most).run) for port in self.ports]
        return [("grpc", lambda: served(self.grpc)), *crowds]

    async def serve_http(self, page: Starlette) -> NoReturn:
        """Until cancelled."""
        await self.http.serve(page, self.connections, self.https, self.proxies)


@asynccontextmanager
async def opened(config: Config) -> AsyncIterator[Doors]:
    """Have the addresses for the time of the block.

    Raises:
        Misconfigured: one can't be read, or can't be had.
    """
    descriptors = more_descriptors()
    connections = connections_for(descriptors, listeners=2)
    streams = most_of_all(descriptors, connections)
    server, tls = make_server(streams), config.tls.files()
    ports = [listen(server, config.listen.grpc, tls)]
    if config.listen.grpc_tokens:
        ports.append(listen(server, config.listen.grpc_tokens, tls, certificates=False))
    https = None if tls is None else context_of(tls)
    async with web_server.bound(config.listen.http) as http:
        proxies = config.listen.proxies()
        yield Doors(server, tuple(ports), http, https, connections, streams, proxies)
