"""Serve gRPC's own health service, for the member and for each service.

    reasons why it isn't ready (as in /readyz) ──at each call──→ SERVING or NOT_SERVING
                                                 every 0.5 s for watches and for the log
        for the member ("") and each service of user calls; the services of workers and peers
        serve as long as the process runs, because results are accepted without a tenure

Invariants
- No call holds a lock or waits: callers aren't authenticated, and an unread watch delays no other.
- Requests are decoded as all others are (`request_decoding`).
- For an unknown service, `Check` answers NOT_FOUND. `Watch` sends SERVICE_UNKNOWN and continues, as
  the protocol requires.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Final

import grpc.aio
from grpc_health.v1.health import SERVICE_NAME
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from schedd.api.errors import LimitReachedError, NotFoundError, cut
from schedd.api.runs.stream_readers import Places
from schedd.rpc.auth_interceptor import AuthInterceptor
from schedd.rpc.request_decoding import Context, put, streaming, unary
from schedd.rpc.status import abort_with
from schedkit.tasks import Loop

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 0.5
OF_ALL: Final = ""


class Health:
    """The health of this member. `unready`: reasons why it isn't ready, one line each; cheap.

    `asked`: services that serve while it is ready; `always`: services that always serve.
    """

    def __init__(
        self,
        unready: Callable[[], Sequence[str]],
        asked: Collection[str] = (),
        always: Collection[str] = (),
    ) -> None:
        self._unready = unready
        self._asked = {OF_ALL, *asked}
        self._always = set(always)
        self._ready: bool | None = None
        self._changed = asyncio.Event()
        """Set at each change, and then replaced."""
        self._places = Places()
        self.loop = Loop("grpc health", self.step, interval=LOOK_EVERY)

    def serve(self, server: grpc.aio.Server, gate: AuthInterceptor) -> None:
        self._update_readiness()
        table = {
            "Check": unary(self._check, HealthCheckRequest, HealthCheckResponse),
            "Watch": streaming(self._watch, HealthCheckRequest, HealthCheckResponse),
        }
        put(server, gate, SERVICE_NAME, table)

    async def step(self) -> None:
        """Update the status; watches and the log receive only changes."""
        self._update_readiness()

    def _update_readiness(self) -> None:
        why, before = self._unready(), self._ready
        self._ready = not why
        if self._ready is before:
            return
        if why and before is not None:
            log.warning("not ready: %s", "; ".join(why))
        elif before is not None:
            log.info("ready")
        self._changed.set()
        self._changed = asyncio.Event()

    def _status(self, service: str) -> HealthCheckResponse.ServingStatus:
        if service in self._always or (service in self._asked and self._ready):
            return HealthCheckResponse.SERVING
        if service in self._asked:
            return HealthCheckResponse.NOT_SERVING
        return HealthCheckResponse.SERVICE_UNKNOWN

    async def _check(self, asked: HealthCheckRequest, context: Context) -> HealthCheckResponse:
        self._update_readiness()
        status = self._status(asked.service)
        if status == HealthCheckResponse.SERVICE_UNKNOWN:
            error = NotFoundError(
                f"gRPC service {cut(asked.service)!r} not found",
                reason="NO_SUCH_SERVICE",
                remedy="name a service such as schedd.v1.JobService, or no service for the whole"
                " member",
            )
            await abort_with(context, error)
        return HealthCheckResponse(status=status)

    async def _watch(
        self, asked: HealthCheckRequest, context: Context
    ) -> AsyncIterator[HealthCheckResponse]:
        try:
            with self._places.taken(context.peer()):
                self._update_readiness()
                sent = None
                while True:
                    changed, status = self._changed, self._status(asked.service)
                    if status != sent:  # slow readers miss some changes
                        sent = status
                        yield HealthCheckResponse(status=status)
                    await changed.wait()
        except LimitReachedError as error:
            await abort_with(context, error)
