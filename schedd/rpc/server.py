"""The gRPC server of a member: bounded, and robust against malformed calls.

    core ─▶ accepted ─▶ registered method? ── no: UNIMPLEMENTED
                          └▶ caller recognized? ── no: queued (`UnrecognizedCalls`)
                               └▶ started

All methods are registered (`request_decoding.put`). Calls are accepted here, not by the
loop of grpcio (1.85), for two reasons.
- It decodes the path of each call of an unregistered method. One byte there that isn't UTF-8 ends
  the loop, and with it the whole server. Here such a path is ignored.
- For each call it waits for all methods again, which costs 0.3 ms, and it starts each call that it
  accepts. A burst of calls with unknown tokens then delays the known callers of a method by
  seconds. Here a call costs 0.2 ms until its caller is recognized or queued.

If the internals of another grpcio differ, its own acceptance is used.
`tests/unit/rpc/test_server.py` verifies in either case that the server survives a malformed path.

Invariants
- Nothing that a peer sends ends the acceptance.
- At most MOST_CALLS calls and streams run, of them MOST_UNRECOGNIZED of callers that weren't
  recognized at the start. More are answered RESOURCE_EXHAUSTED.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, NoReturn, TypeAlias

import grpc
import grpc.aio
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # it has no stubs

from schedd.rpc.auth_interceptor import MOST_HELD
from schedd.rpc.limited_turns import LimitedTurns
from schedkit.errors import Fault
from schedkit.net.channel import SERVER_OPTIONS
from schedkit.records import dataclass

# Calls of callers that this member hasn't authenticated before: started at a limited rate.
#
#     accepted call ─▶ recognized? ─▶ started at once
#                        no: queued ─▶ started in its turn (`limited_turns`)
#                              ├ recognized meanwhile, or past its deadline: doesn't count
#                              └ MOST are queued: the newest call of the host with most is rejected
#
# A start costs the event loop some 0.3 ms. Without the queue, 8,000 calls with random tokens delay
# all other calls by seconds.
#
# Invariants
# - A queued call has no task and no request in this process.
# - At most MOST calls are queued. A host that fills the queue displaces its own calls first. A call
#   that its caller cancels keeps its place: grpcio reports a cancellation to started calls only.

RATE: Final = 1_000.0
"""Calls that are started a second, of all hosts."""
BURST: Final = 256
"""Calls that are started at once after a quiet time, such as the first ones after a restart."""
MOST: Final = MOST_HELD


@dataclass(frozen=True, slots=True, eq=False)
class AcceptedCall:
    host: str
    is_recognized: Callable[[], bool]
    """Returns whether this member has authenticated the caller before."""
    is_over: Callable[[], bool]
    """Whether its deadline has passed."""
    start: Callable[[], None]
    reject: Callable[[], None]
    """Answers RESOURCE_EXHAUSTED."""


class UnrecognizedCalls:
    """The queue of one server."""

    def __init__(self) -> None:
        self._queue: LimitedTurns[AcceptedCall] = LimitedTurns(RATE, BURST, _start)

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, call: AcceptedCall) -> None:
        """Start the call at once or in its turn, or reject a call."""
        if self._queue.take_burst():
            call.start()
            return
        if len(self._queue) >= MOST:
            displaced = self._queue.displace(call.host)
            if displaced is None:
                call.reject()
                return
            displaced.reject()
        self._queue.add(call.host, call)

    def close(self) -> None:
        """Drop the queued calls. The core of gRPC cancels calls that have no reference."""
        self._queue.clear()


def _start(call: AcceptedCall) -> bool:
    if call.is_over():
        return False
    recognized = call.is_recognized()
    call.start()
    return not recognized


MOST_CALLS: Final = 2 * MOST_HELD
"""Calls and streams at a time."""
MOST_UNRECOGNIZED: Final = MOST_HELD
"""Calls of callers that aren't authenticated, and of methods that are open to all."""

AT_ONCE: Final = 4
"""Calls of one method that the core may hand over before the loop runs again."""

Recognize: TypeAlias = "Callable[[str, grpc.aio.ServicerContext[Any, Any]], bool | None]"
"""Returns whether the caller of this method was authenticated before; None: it needn't be. It reads
no request.
"""

_INSIDE: Final = (
    (
        cygrpc,
        (
            "_schedule_rpc_coro",
            "_handle_rpc",
            "_MethodResolver",
            "_ServicerContext",
            "_RequestCallError",
        ),
    ),
    (cygrpc.AioServer, ("_make_request_call_future", "_request_call", "_request_registered_call")),
)
"""The internals of grpcio that this module uses."""


def acceptor(options: Sequence[tuple[str, object]]) -> Any:
    """Return the inner server of a `grpc.aio.Server`.

    Raises:
        AttributeError, TypeError: this grpcio has other internals.
    """
    for where, names in _INSIDE:
        for name in names:
            getattr(where, name)
    return _class()(asyncio.get_running_loop(), None, (), (), options, MOST_CALLS)


def _class() -> Any:
    class CallAcceptor(cygrpc.AioServer):  # type: ignore[misc]  # of no type
        """Accepts calls; `recognize` is set before the start."""

        def __init__(self, loop: asyncio.AbstractEventLoop, *arguments: Any) -> None:
            super().__init__(loop, *arguments)
            self.recognize: Recognize = lambda _method, _context: True
            self._loop_of_calls = loop
            self._resolver = cygrpc._MethodResolver([], {})  # noqa: SLF001
            self._handlers: dict[str, Any] = {}
            self._calls = set[asyncio.Task[None]]()
            self._unrecognized = set[asyncio.Task[None]]()
            """The calls among them that count against MOST_UNRECOGNIZED."""
            self._answers = set[asyncio.Task[None]]()
            """Tasks that only answer RESOURCE_EXHAUSTED."""
            self._queue = UnrecognizedCalls()

        def add_registered_method_handlers(self, handlers: dict[str, Any]) -> None:
            super().add_registered_method_handlers(handlers)
            self._handlers.update(handlers)
            self._resolver = cygrpc._MethodResolver([], self._handlers)  # noqa: SLF001

        def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
            """Return a future that ends when the server stops: the loop of grpcio waits for it."""
            if method is None:
                return asyncio.create_task(self._accept_unregistered(), name="unregistered calls")
            name = f"calls of {method.decode()}"
            return asyncio.gather(
                *(asyncio.create_task(self._accept(method), name=name) for _ in range(AT_ONCE))
            )

        async def _accept(self, method: bytes) -> NoReturn:
            name = method.decode()
            try:
                while True:
                    self._sort(
                        name, await self._next(partial(self._request_registered_call, method))
                    )
            finally:
                self._queue.close()

        async def _accept_unregistered(self) -> NoReturn:
            while True:
                self._start("", await self._next(self._request_call), recognized=False)

        async def _next(self, request: Callable[[], Awaitable[Any]]) -> Any:
            while True:
                try:
                    return await request()
                except cygrpc._RequestCallError:  # noqa: SLF001
                    if not self.is_running():
                        raise

        def _sort(self, method: str, state: Any) -> None:
            context = cygrpc._ServicerContext(  # noqa: SLF001
                state, None, None, self._loop_of_calls
            )
            recognized = self._is_recognized(method, context)
            if recognized is not False:
                self._start(method, state, recognized=bool(recognized))
                return
            start = partial(self._start, method, state, recognized=False)
            self._queue.add(
                AcceptedCall(
                    context.peer().rpartition(":")[0],
                    lambda: bool(self._is_recognized(method, context)),
                    lambda: context.time_remaining() == 0,
                    start,
                    partial(start, rejected=True),
                )
            )

        def _is_recognized(self, method: str, context: Any) -> bool | None:
            try:
                return self.recognize(method, context)
            except Exception:
                log.exception("a caller couldn't be recognized: method=%s", method)
                return False

        def _start(
            self, method: str, state: Any, *, recognized: bool, rejected: bool = False
        ) -> None:
            loop = self._loop_of_calls
            exceeded = (
                rejected
                or len(self._calls) >= MOST_CALLS
                or (not recognized and len(self._unrecognized) >= MOST_UNRECOGNIZED)
            )
            answer: Coroutine[Any, Any, None] = cygrpc._handle_rpc(  # noqa: SLF001
                method, self._resolver, (), state, loop, exceeded
            )
            call = cygrpc._schedule_rpc_coro(answer, state, loop, method)  # noqa: SLF001
            task = loop.create_task(call, name="call")
            sets = [self._answers] if exceeded else [self._calls]
            if not exceeded and not recognized:
                sets.append(self._unrecognized)
            for each in sets:
                each.add(task)
                task.add_done_callback(each.discard)

    return CallAcceptor


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
        inner = acceptor(options)
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
