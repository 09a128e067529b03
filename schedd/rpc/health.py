"""gRPC's own health service: may this member be asked, by service and in all.

    why it isn't ready (as /readyz says) ──looked at, at each Check──→ SERVING or NOT_SERVING
                                           and twice a second, for who watches and for the log
        of the member ("") and of each service of user calls; those of workers and peers serve as
        long as the process does, for results count without a tenure

Requests are read as all others are (`reading`). A name that isn't served: `Check` refuses it with
NOT_FOUND, `Watch` says SERVICE_UNKNOWN and goes on, as the protocol has it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Final

import grpc.aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import SERVICE_NAME
from grpc_health.v1.health import aio as grpc_health

from schedd.api.errors import TooMany
from schedd.api.places import Places
from schedd.rpc.gate import Gate
from schedd.rpc.reading import Context, put, streaming, unary
from schedd.rpc.status import abort_with
from schedkit.tasks import Loop

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 0.5
OF_ALL: Final = ""
SERVING: Final = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """What is said of this member. `unready`: why it isn't ready, a line each; cheap.

    `asked`: services that serve while it is ready; `always`: those that do anyhow.
    """

    def __init__(
        self,
        unready: Callable[[], Sequence[str]],
        asked: Collection[str] = (),
        always: Collection[str] = (),
    ) -> None:
        self._unready = unready
        self._asked = (OF_ALL, *asked)
        self._always = always
        self._health, self._places = grpc_health.HealthServicer(), Places()
        self._said: object = None
        self._telling = asyncio.Lock()
        self.loop = Loop("grpc health", self.step, interval=LOOK_EVERY)

    async def serve(self, server: grpc.aio.Server, gate: Gate) -> None:
        """Put it on this server."""
        for name in self._always:
            await self._health.set(name, SERVING)
        await self.step()
        asked, answer = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
        table = {
            "Check": unary(self._check, asked, answer),
            "Watch": streaming(self._watch, asked, answer),
        }
        put(server, gate, SERVICE_NAME, table)

    async def step(self) -> None:
        """Say how it is now; who watches hears of changes alone, and so does the log."""
        async with self._telling:
            await self._tell()

    async def _tell(self) -> None:
        why = self._unready()
        status = NOT_SERVING if why else SERVING
        if status != self._said:
            if why and self._said is not None:
                log.warning("not ready: %s", "; ".join(why))
            elif self._said is not None:
                log.info("ready")
            self._said = status
            for name in self._asked:
                await self._health.set(name, status)

    async def _check(
        self, asked: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        await self.step()
        return await self._health.Check(asked, context)

    async def _watch(
        self, asked: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        try:
            with self._places.taken(context.peer()):
                await self._health.Watch(asked, context)  # writes by itself
        except TooMany as error:
            await abort_with(context, error)
        return
        yield  # what makes it a stream
