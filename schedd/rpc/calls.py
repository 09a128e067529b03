"""Serve the user calls over gRPC: one generic handler for each method of `api/calls.py`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from schedd.api.calls import BATCHES, STREAMING, UNARY, Streaming, Unary
from schedd.api.errors import CallError, InvalidArgumentError, dependency_error
from schedd.api.request_bounds import SERVICES
from schedd.api.runs.stream_readers import Places
from schedd.api.services import Caller, Services
from schedd.rpc.auth_interceptor import AuthInterceptor, caller
from schedd.rpc.request_decoding import MOST_PARTS, RequestMemory, put, streaming, unary
from schedd.rpc.status import abort_with
from schedkit.errors import Unavailable

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

MARGIN: Final = 0.25
"""Seconds of a call's deadline that are reserved for its answer."""


MOST_PARTS_OF_BATCH: Final = 100_000
"""Parts of a batch of a thousand requests."""

MOST_NAMED: Final = 10
"""Unknown fields that an error lists, by number."""


def serve_calls(server: grpc.aio.Server, gate: AuthInterceptor, services: Services) -> None:
    """Register every user call."""
    places, memory = Places(), RequestMemory()
    for descriptor in SERVICES:
        table: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        for method in descriptor.methods:
            request = GetMessageClass(method.input_type)
            answer = GetMessageClass(method.output_type)
            if (stream := STREAMING.get(method.full_name)) is not None:
                handle = _streaming(services, places, stream)
                table[method.name] = streaming(handle, request, answer)
            else:
                most = MOST_PARTS_OF_BATCH if method.full_name in BATCHES else MOST_PARTS
                call = _unary(services, UNARY[method.full_name])
                table[method.name] = unary(call, request, answer, most, memory)
        put(server, gate, descriptor.full_name, table)


def _unary(services: Services, call: Unary) -> Callable[[Message, Context], Awaitable[Message]]:
    async def handle(request: Message, context: Context) -> Message:
        try:
            check_known(request)
            return await call(services, _caller_of(context), request)
        except (CallError, Unavailable) as error:
            await _refuse(context, error)

    return handle


def _streaming(
    services: Services, places: Places, call: Streaming
) -> Callable[[Message, Context], AsyncIterator[Message]]:
    async def handle(request: Message, context: Context) -> AsyncIterator[Message]:
        try:
            check_known(request)
            with places.taken(context.peer()):
                async for answer in call(services, _caller_of(context), request):
                    yield answer
        except (CallError, Unavailable) as error:
            await _refuse(context, error)

    return handle


def check_known(request: Message) -> None:
    """Reject unknown fields of a request. A caller of a newer version would otherwise get `ok` for
    something else than it requested. Unknown fields of a definition are stored as they are.

    Raises:
        InvalidArgumentError: the request, or a request in a batch, has an unknown field.
    """
    asked = (request, *getattr(request, "requests", ()))
    found = [UnknownFieldSet(each) for each in asked]
    unknown = sorted({one[at].field_number for one in found for at in range(len(one))})
    if unknown:
        named = ", ".join(map(str, unknown[:MOST_NAMED]))
        raise InvalidArgumentError(
            f"the request {request.DESCRIPTOR.name} has fields that this member doesn't know,"
            f" by number: {named}",
            reason="UNKNOWN_FIELD",
            remedy="upgrade the members first; nothing was changed",
        )


def _caller_of(context: Context) -> Caller:
    left = context.time_remaining()
    deadline = None if left is None else max(0.0, left - MARGIN)
    return Caller(caller(), source=context.peer(), deadline=deadline)


async def _refuse(context: Context, error: CallError | Unavailable) -> NoReturn:
    away = error if isinstance(error, Unavailable) else error.__cause__
    if isinstance(away, Unavailable):
        log.warning("call rejected, a dependency is unavailable: %s", away)
    if isinstance(error, Unavailable):
        error = dependency_error(error)
    await abort_with(context, error)
