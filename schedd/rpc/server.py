"""The gRPC server of a member: bounded, and robust against malformed calls.

All methods are registered (`request_decoding.put`). The calls are accepted by `call_acceptance`,
which tells callers that were authenticated before from unknown ones.

If the internals of another grpcio differ, its own acceptance is used. A burst of unknown tokens at
one method then delays known callers of that method. `tests/unit/rpc/test_server.py` verifies in
either case that the server survives a malformed path.
"""

import asyncio
import contextlib
import logging
from typing import Final, NoReturn

import grpc
import grpc.aio

from schedd.rpc import call_acceptance
from schedd.rpc.call_acceptance import MOST_CALLS, Recognize
from schedkit.errors import Fault
from schedkit.net.channel import SERVER_OPTIONS

log = logging.getLogger(__name__)

MOST_WAITING: Final = 131_072
"""Calls that may wait to be accepted; their messages are read later."""

LOOK_EVERY: Final = 60.0

_GRPC: Final = "grpc._cython.cygrpc"
_HUNG_UP: Final = "ExecuteBatchError raised in core"


def make_server(connections: int) -> grpc.aio.Server:
    """Return an unbound server, for at most so many connections at a time."""
    logging.getLogger(_GRPC).addFilter(_is_error)
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
    try:
        inner = call_acceptance.acceptor(options)
    except (AttributeError, TypeError) as error:  # another version has other internals
        log.warning("calls are accepted by grpcio %s itself: %s", grpc.__version__, error)
    else:
        server._server = inner  # type: ignore[attr-defined]  # noqa: SLF001 - see above
    return server


def recognize_by(server: grpc.aio.Server, recognize: Recognize) -> None:
    """Let calls of recognized callers start before all others. Call it before the server starts."""
    inner = server._server  # type: ignore[attr-defined]  # noqa: SLF001 - see above
    if hasattr(inner, "recognize"):
        inner.recognize = recognize


def _is_error(record: logging.LogRecord) -> bool:
    """Return False for two log lines that the core writes as errors, with a traceback: a caller
    disconnected during the answer, or the server's stop canceled a call.
    """
    raised = record.exc_info[1] if record.exc_info else None
    hung_up = isinstance(raised, grpc.aio.InternalError) and _HUNG_UP in str(record.msg)
    return not hung_up and not isinstance(raised, asyncio.CancelledError)


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
