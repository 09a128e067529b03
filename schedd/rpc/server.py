"""The gRPC server of a member: bounded, and not to be ended by what anybody sends.

grpcio (1.85) decodes the path of each call whose method isn't registered inside the one loop that
takes calls; one byte there that isn't UTF-8 ends that loop, and with it the server, for everybody.
So all methods are registered (`reading.put`), and what is left, which can be no method of ours, is
taken by a loop of our own that doesn't look at its path: UNIMPLEMENTED, as it should be.

Where grpcio has another shape inside than the one known here, its own server is taken as it is;
`tests/unit/rpc/test_server.py` holds that it bears such a path in either case.
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
"""Calls and streams at a time, half of them for authenticated callers; what is more is refused with
RESOURCE_EXHAUSTED.
"""

MOST_WAITING: Final = 131_072
"""Calls that wait to be taken, at most; none of their messages is read before."""

LOOK_EVERY: Final = 60.0

_GRPC: Final = "grpc._cython.cygrpc"
_HUNG_UP: Final = "ExecuteBatchError raised in core"

_INSIDE: Final = (
    (cygrpc, ("_schedule_rpc_coro", "_handle_rpc", "_MethodResolver")),
    (cygrpc.AioServer, ("_make_request_call_future", "_request_call")),
)
"""What of grpcio's inside is leaned on."""


def make_server(connections: int) -> grpc.aio.Server:
    """A server that isn't bound yet, for at most so many connections at a time."""
    logging.getLogger(_GRPC).addFilter(_of_who_has_gone)
    options = (
        *SERVER_OPTIONS,
        ("grpc.max_allowed_incoming_connections", connections),
        # Of more than 1,000 that wait for the loop to take them the core else cancels some, by
        # chance, which tells their callers nothing. What is too much, `MOST_CALLS` says.
        (
            "grpc.http2.bdp_probe",
            0,
        ),  # else megabytes of each are taken in before they are asked for
        ("grpc.server.max_pending_requests", MOST_WAITING),
        ("grpc.server.max_pending_requests_hard_limit", MOST_WAITING),
    )
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=MOST_CALLS)
    if all(hasattr(where, name) for where, names in _INSIDE for name in names):
        steady: Any = _steady()
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TypeError):  # another version's, made of other things
            inner = steady(loop, None, (), (), options, MOST_CALLS)
            server._server = inner  # type: ignore[attr-defined]  # noqa: SLF001 - see above
    return server


def _of_who_has_gone(record: logging.LogRecord) -> bool:
    """False for what the core says of an answer that its caller hung up on: where it finds out
    before the end of the call has come, it tells that as an error, with a traceback.
    """
    raised = record.exc_info[1] if record.exc_info else None
    return not (isinstance(raised, grpc.aio.InternalError) and _HUNG_UP in str(record.msg))


async def served(server: grpc.aio.Server) -> NoReturn:
    """Until cancelled. Raises Fault when the server ends by itself: a member without it is of no
    use, and its service manager starts another.
    """
    with contextlib.suppress(UnicodeDecodeError):
        # Without a timeout it waits for a future of the server's own, and cancelling it would
        # cancel that: then the server can't be stopped any more.
        while await server.wait_for_termination(timeout=LOOK_EVERY):
            continue
    raise Fault("the gRPC server ended by itself")


def _steady() -> type:
    class Steady(cygrpc.AioServer):  # type: ignore[misc]  # of no type
        """Takes calls of no registered method aside."""

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
