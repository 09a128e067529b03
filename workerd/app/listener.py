"""The worker's own HTTP: `/healthz`, `/readyz`, `/metrics`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from schedkit.errors import Misconfigured
from schedkit.net.http_limits import protocol_of
from schedkit.net.listening import listening
from schedkit.ttl_cache import Momentary
from workerd.metrics import WorkerMetrics

BACKLOG = 128
"""Connections that wait to be accepted."""
MOST, MOST_OF_ONE_HOST = 128, 32
"""Connections to it: who asks for health and metrics needs one."""


class HttpListener:
    """A bound socket and the application behind it, served by the worker's own event loop."""

    def __init__(
        self,
        address: str,
        metrics: WorkerMetrics,
        collect: Callable[[], object],
        ready: Callable[[], str],
    ) -> None:
        """`collect` brings gauges up to date; `ready` says why not, or nothing when it is.

        Raises:
            Misconfigured: the address can't be bound.
        """
        try:
            self._socket = listening(address, BACKLOG)
        except OSError as error:
            raise Misconfigured(f"can't listen on {address}: {error}") from error

        async def healthz(_: Request) -> Response:
            return PlainTextResponse("ok\n")

        async def readyz(_: Request) -> Response:
            why = ready()
            return PlainTextResponse(f"{why or 'ok'}\n", status_code=503 if why else 200)

        def rendered(_: str) -> bytes:
            collect()
            return generate_latest(metrics.registry)

        scraped = Momentary(rendered)

        async def series(_: Request) -> Response:
            return Response(scraped.of(CONTENT_TYPE_LATEST), media_type=CONTENT_TYPE_LATEST)

        routes = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", series)]
        config = uvicorn.Config(
            Starlette(routes=routes),
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            http=protocol_of(MOST, MOST_OF_ONE_HOST),
            ws="none",
        )
        self._server = _Quiet(config)

    @property
    def port(self) -> int:
        """Where it listens."""
        number: int = self._socket.getsockname()[1]
        return number

    async def serve(self) -> None:
        """Until cancelled."""
        try:
            await self._server.serve(sockets=[self._socket])
        except asyncio.CancelledError:
            self._server.should_exit = True
            self._socket.close()
            raise


class _Quiet(uvicorn.Server):
    """Signals are the daemon's, not the listener's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
