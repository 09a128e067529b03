"""Who calls over gRPC: asked before the request of any method is read.

    call ─▶ token in its metadata, or certificate of its connection ─▶ Identity ─▶ may they at all?
              └ unknown: held (`rejection_rate`), UNAUTHENTICATED         └ no: PERMISSION_DENIED

`reading.put`, the one way to serve a method, puts it behind the gate; one without a line in
`api/auth/policy.py` is closed. Which namespaces a call may touch is judged by its request, in
`api/auth/authorization.py`. What a handler runs in knows its caller by `caller()`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from inspect import isasyncgenfunction
from typing import Any, Final, TypeAlias

import grpc

from schedd.api.auth.authentication import Authentication, Nobody
from schedd.api.auth.authorization import admitted
from schedd.api.auth.policy import OPEN, POLICY
from schedd.api.errors import CallError, Unauthenticated, of_world
from schedd.core.jobs.rights import ANONYMOUS, Identity
from schedd.rpc.rejection_rate import RejectionRate
from schedd.rpc.status import abort_with
from schedkit.daemon.log_rate_limit import LimitedLine
from schedkit.errors import Unavailable

log = logging.getLogger(__name__)

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

_CALLER: Final[ContextVar[Identity]] = ContextVar("caller", default=ANONYMOUS)


def caller() -> Identity:
    """Who made the call that this runs in."""
    return _CALLER.get()


class Gate:
    """Before the methods of one member. `authentication` None: nobody is asked."""

    def __init__(self, authentication: Authentication | None = None) -> None:
        self._authentication = authentication
        self._lines = LimitedLine()
        self._rejections = RejectionRate()

    def guarded(self, method: str, handler: Handler) -> Handler:
        """The handler of this method (its full name), behind the gate."""
        if self._authentication is None or not self._authentication.demanded:
            return handler
        rule = POLICY.get(method)
        if rule == OPEN:
            return handler
        lately = rule is not None and rule.lately
        return _wrapped(handler, lambda context: self._admit(method, context, lately=lately))

    async def _admit(self, method: str, context: Context, *, lately: bool) -> None:
        who = await self._known(method, context, lately=lately)
        if isinstance(who, CallError):
            self._tell(method, context.peer(), who)
            if isinstance(who, Unauthenticated):
                await self._rejections.turn(context.peer())
            await abort_with(context, who)
        _CALLER.set(who)

    async def _known(self, method: str, context: Context, *, lately: bool) -> Identity | CallError:
        """Return the caller, or why the call is rejected: without the traceback, as it is held."""
        assert self._authentication is not None
        try:
            who = await self._authentication.of(
                _authorization(context), lambda: self._certified(context), lately=lately
            )
            admitted(who, method)
        except CallError as error:
            return error.with_traceback(None)
        except Unavailable as error:
            return of_world(error)
        return who

    def _tell(self, method: str, peer: str, refusal: CallError) -> None:
        if refused := self._lines.due():
            told = (method, peer, refusal.message, refused)
            log.info("%s of %s: %s (of %d that were refused since the last line)", *told)

    def _certified(self, context: Context) -> Identity | Nobody | None:
        """Whom the certificate of the connection names."""
        assert self._authentication is not None
        told = context.auth_context()
        pem = told.get("x509_pem_cert")
        if not pem:
            return None
        uris = [uri.decode(errors="replace") for uri in told.get("peer_uri", ())]
        return self._authentication.of_certificate(next(iter(pem)), uris)


def _authorization(context: Context) -> tuple[str, ...]:
    sent = (value for key, value in context.invocation_metadata() or () if key == "authorization")
    return tuple(each if isinstance(each, str) else each.decode(errors="replace") for each in sent)


def _wrapped(handler: Any, admit: Callable[[Context], Awaitable[None]]) -> Handler:
    """The same kind of handler, that admits first."""
    if handler.response_streaming and isasyncgenfunction(handler.stream_stream):
        return grpc.stream_stream_rpc_method_handler(
            _generating(handler.stream_stream, admit),
            handler.request_deserializer,
            handler.response_serializer,
        )
    inner = handler.stream_stream if handler.response_streaming else handler.stream_unary

    async def answering(requests: Any, context: Context) -> Any:
        await admit(context)
        return await inner(requests, context)

    make = (
        grpc.stream_stream_rpc_method_handler
        if handler.response_streaming
        else grpc.stream_unary_rpc_method_handler
    )
    return make(answering, handler.request_deserializer, handler.response_serializer)


def _generating(inner: Any, admit: Callable[[Context], Awaitable[None]]) -> Any:
    async def generating(requests: Any, context: Context) -> AsyncIterator[Any]:
        await admit(context)
        async for each in inner(requests, context):
            yield each

    return generating
