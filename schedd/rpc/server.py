"""The gRPC server of a member: bounded, and robust against malformed calls.

grpcio (1.85) decodes the path of each unregistered method inside the one loop that accepts calls.
One byte there that isn't UTF-8 ends that loop, and with it the whole server. So all methods are
registered (`request_decoding.put`). Calls of unregistered methods are accepted by a loop of our
own, which ignores the path and answers UNIMPLEMENTED.

grpcio accepts the calls of one method in their order, one at a time. A call is authenticated after
that. So a burst of calls with unknown tokens delays later calls of the same method: those of known
callers by up to 6 s, if 8,000 calls arrive at once. Calls of other methods aren't delayed.

If the internals of another grpcio differ, its own server is used. `tests/unit/rpc/test_server.py`
verifies in either case that the server survives such a path.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, Final, NoReturn

import grpc.aio
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # it has no stubs

from schedd.rpc.rejection_rate import MOST_HELD
from schedkit.errors import Fault
from schedkit.net.channel import SERVER_OPTIONS

MOST_CALLS: Final = 2 * MOST_HELD
"""Calls and streams at a time, half of them for authenticated callers. More are rejected with
RESOURCE_EXHAUSTED.
"""

MOST_WAITING: Final = 131_072
"""Calls that may wait to be accepted; their messages are read later."""

LOOK_EVERY: Final = 60.0

_GRPC: Final = "grpc._cython.cygrpc"
_HUNG_UP: Final = "ExecuteBatchError raised in core"

_INSIDE: Final = (
    (cygrpc, ("_schedule_rpc_coro", "_handle_rpc", "_MethodResolver")),
    (cygrpc.AioServer, ("_make_request_call_future", "_request_call")),
)
"""The grpcio internals that this module uses."""


def make_server(connections: int) -> grpc.aio.Server:
    """Return an unbound server, for at most so many connections at a time."""
    logging.getLogger(_GRPC).addFilter(_not_disconnected)
    options = (
        *SERVER_OPTIONS,
        ("grpc.max_allowed_incoming_connections", connections),
        # Without it, megabytes of each request are received before they are read.
        ("grpc.http2.bdp_probe", 0),
        # Without these, the core cancels some of more than 1,000 waiting calls at random, without
        # a reason for the caller. `MOST_CALLS` is the limit.
        ("grpc.server.max_pending_requests", MOST_WAITING),
        ("grpc.server.max_pending_requests_hard_limit", MOST_WAITING),
    )
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=MOST_CALLS)
    if all(hasattr(where, name) for where, names in _INSIDE for name in names):
        steady: Any = _steady()
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TypeError):  # another version has other arguments
            inner = steady(loop, None, (), (), options, MOST_CALLS)
            server._server = inner  # type: ignore[attr-defined]  # noqa: SLF001 - see above
    return server


def _not_disconnected(record: logging.LogRecord) -> bool:
    """Return False for the core's log line about a caller that disconnected during the answer: the
    core logs that as an error, with a traceback.
    """
    raised = record.exc_info[1] if record.exc_info else None
    return not (isinstance(raised, grpc.aio.InternalError) and _HUNG_UP in str(record.msg))


async def served(server: grpc.aio.Server) -> NoReturn:
    """Wait until cancelled. Raises Fault when the server stops unexpectedly: the service manager
    then restarts the member.
    """
    with contextlib.suppress(UnicodeDecodeError):
        # Without a timeout it waits for an internal future of the server. Cancelling would cancel
        # that future, and then the server couldn't be stopped.
        while await server.wait_for_termination(timeout=LOOK_EVERY):
            continue
    raise Fault("the gRPC server stopped unexpectedly")


def _steady() -> type:
    class Steady(cygrpc.AioServer):  # type: ignore[misc]  # of no type
        """Answers calls of unregistered methods separately."""

        _strays: asyncio.Task[NoReturn] | None = None

        def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
            if method is not None:
                return super()._make_request_call_future(method)  # type: ignore[no-any-return]
            self._strays = asyncio.create_task(self._refuse_strays(), name="calls of no method")
            return self._strays

        async def _refuse_strays(self) -> NoReturn:
            loop, answering = asyncio.get_running_loop(), set[asyncio.Task[None]]()
            resolver, handle, schedule = (getattr(cygrpc, name) for name in _INSIDE[0][1][::-1])
            nothing = resolver([], {})
            while True:
                state = await self._request_call()
                refusal = handle("", nothing, (), state, loop, False)
                call = schedule(refusal, state, loop, "")
                task = asyncio.create_task(call, name="call of no method")
                answering.add(task)
                task.add_done_callback(answering.discard)

    return Steady
