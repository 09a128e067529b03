"""Authenticate callers over gRPC before a request is read.

    call ─▶ token in its metadata, or certificate of its connection ─▶ Identity ─▶ role allows it?
              └ invalid: delayed (`RejectionRate`), UNAUTHENTICATED      └ no: PERMISSION_DENIED

Invariants
- Every method is registered by `request_decoding.put`, and so behind the gate. A method without a
  rule in `api/auth/policy.py` is rejected.
- Access to namespaces is checked later, by the request (`authorize_request`).
- Code inside a handler reads its caller from `caller()`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from inspect import isasyncgenfunction
from typing import Any, Final, TypeAlias

import grpc

from schedd.api.auth.authentication import Authentication, UnknownSubject
from schedd.api.auth.policy import OPEN, POLICY, authorize_method
from schedd.api.errors import CallError, UnauthenticatedError, dependency_error
from schedd.core.auth.rights import ANONYMOUS, CallerIdentity
from schedd.rpc.limited_turns import LimitedTurns
from schedd.rpc.status import abort_with
from schedkit.daemon.log_rate_limit import LimitedLine
from schedkit.errors import Unavailable

# Limit the rate at which a member answers calls that it can't authenticate.
#
# A client that keeps N calls open can then cause RATE calls a second, however large N is. Without
# the limit it causes as many as the event loop can answer, and all other callers wait behind N
# calls.
#
# Invariants
# - A held call has no request in this process: the request is read after authentication.
# - Calls past MOST_HELD are answered at once, so memory is bounded.

RATE: Final = 200.0
"""Rejected calls that are answered a second, of all hosts."""
BURST: Final = 64
"""Rejected calls that are answered at once after a quiet second."""
MOST_HELD: Final = 8_192


class RejectionRate:
    """The rejected calls of one member."""

    def __init__(self) -> None:
        self._held: LimitedTurns[asyncio.Future[None]] = LimitedTurns(RATE, BURST, _release)

    def __len__(self) -> int:
        return len(self._held)

    async def wait_until_allowed(self, host: str) -> None:
        """Wait until a rejected call of this host may be answered."""
        if len(self._held) >= MOST_HELD or self._held.take_burst():
            return
        mine = asyncio.get_running_loop().create_future()
        self._held.add(host, mine)
        try:
            await mine
        finally:  # the caller may have disconnected
            self._held.discard(host, mine)


def _release(held: asyncio.Future[None]) -> bool:
    if not held.done():
        held.set_result(None)
    return True


log = logging.getLogger(__name__)

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

_OPEN_PATHS: Final = frozenset(
    "/" + "/".join(method.rsplit(".", 1)) for method, rule in POLICY.items() if rule == OPEN
)

_CALLER: Final[ContextVar[CallerIdentity]] = ContextVar("caller", default=ANONYMOUS)


def caller() -> CallerIdentity:
    """Return the caller of the current call."""
    return _CALLER.get()


class AuthInterceptor:
    """Authenticates the calls of one member. `authentication` None: no caller is authenticated."""

    def __init__(self, authentication: Authentication | None = None) -> None:
        self._authentication = authentication
        self._lines = LimitedLine()
        self._rejections = RejectionRate()

    def guarded(self, method: str, handler: Handler) -> Handler:
        """Return the handler of this method (its full name), behind the gate."""
        if self._authentication is None or not self._authentication.demanded:
            return handler
        rule = POLICY.get(method)
        if rule == OPEN:
            return handler
        lately = rule is not None and rule.lately
        return _wrapped(handler, lambda context: self._admit(method, context, lately=lately))

    def recognizes(self, method: str, context: Context) -> bool | None:
        """Return whether the caller of this method (its path) shows a valid certificate, or sends a
        token that this member has verified before; None: the method is open to all.
        """
        if self._authentication is None or not self._authentication.demanded:
            return True
        if method in _OPEN_PATHS:
            return None
        if sent := _authorization(context):
            return self._authentication.is_verified(sent[0])
        return self._authentication.is_certified(self._certified(context))

    async def _admit(self, method: str, context: Context, *, lately: bool) -> None:
        who = await self._identity(method, context, lately=lately)
        if isinstance(who, CallError):
            if refused := self._lines.due():
                values = (method, context.peer(), refused, who.message)
                log.info("call rejected: method=%s peer=%s rejected=%d error=%s", *values)
            if isinstance(who, UnauthenticatedError):
                await self._rejections.wait_until_allowed(context.peer().rpartition(":")[0])
            await abort_with(context, who)
        _CALLER.set(who)

    async def _identity(
        self, method: str, context: Context, *, lately: bool
    ) -> CallerIdentity | CallError:
        """Return the caller, or why the call is rejected (no traceback: the call may wait)."""
        assert self._authentication is not None
        try:
            who = await self._authentication.identify_caller(
                _authorization(context), lambda: self._certified(context), lately=lately
            )
            authorize_method(who, method)
        except CallError as error:
            return error.with_traceback(None)
        except Unavailable as error:
            return dependency_error(error)
        return who

    def _certified(self, context: Context) -> CallerIdentity | UnknownSubject | None:
        assert self._authentication is not None
        properties = context.auth_context()
        pem = properties.get("x509_pem_cert")
        if not pem:
            return None
        uris = [uri.decode(errors="replace") for uri in properties.get("peer_uri", ())]
        return self._authentication.of_certificate(next(iter(pem)), uris)


def _authorization(context: Context) -> tuple[str, ...]:
    sent = (value for key, value in context.invocation_metadata() or () if key == "authorization")
    return tuple(each if isinstance(each, str) else each.decode(errors="replace") for each in sent)


def _wrapped(handler: Any, admit: Callable[[Context], Awaitable[None]]) -> Handler:
    """Return a handler of the same kind that calls `admit` first."""
    inner = handler.stream_stream if handler.response_streaming else handler.stream_unary

    async def answering(requests: Any, context: Context) -> Any:
        await admit(context)
        return await inner(requests, context)

    async def generating(requests: Any, context: Context) -> AsyncIterator[Any]:
        await admit(context)
        async for each in inner(requests, context):
            yield each

    codec = (handler.request_deserializer, handler.response_serializer)
    if not handler.response_streaming:
        return grpc.stream_unary_rpc_method_handler(answering, *codec)
    call = generating if isasyncgenfunction(inner) else answering
    return grpc.stream_stream_rpc_method_handler(call, *codec)
