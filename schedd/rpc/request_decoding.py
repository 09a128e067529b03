"""Decode the bytes of a request. A request that can't be decoded is a value, rejected later.

    bytes ──count parts──▶ too many: UndecodedRequest ──┐
      └────────parse─────▶ malformed: UndecodedRequest ─┴─▶ INVALID_ARGUMENT, RESOURCE_EXHAUSTED
      └──────────────────▶ message ──▶ the call

Invariants
- Decoding never raises, whatever a peer sends: gRPC would answer UNKNOWN, with a traceback.
- A missing request times out after REQUEST_WITHIN, whatever the caller's deadline. grpcio itself
  waits until the caller disconnects. So each call is registered as a stream of requests, of which
  the first is read: on the wire that is the same.
- Parts (fields and list items, nested ones included) are counted before any is decoded: the cost of
  a message grows with its parts, not its bytes. 4 MiB may hold two million empty parts, a gigabyte
  once decoded, and seconds of the event loop that keeps the lease alive. Nesting is limited by
  protobuf itself (100).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import cache
from typing import Any, Final, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from schedd.rpc.auth_interceptor import AuthInterceptor
from schedd.rpc.status import abort
from schedkit.bounds import Bounds, problem
from schedkit.records import dataclass
from schedkit.set_aside import note

# Limit the memory that requests of a member take. Past the limit, new requests wait to be read.
#
#     call ─→ admitted in order of arrival ─→ its request is read, and its size counted ─→ its
#               answer └─ limit reached: the request stays on the wire until the caller's deadline
#
# Without the limit, 8,000 calls with 4 MiB each may wait for an unavailable or slow database.
#
# Invariants
# - A request counts from before it is read until its call has ended.
# - A request that is being read counts as `WHILE_READ`, because its size isn't known yet. After
#   `SOON` it counts as `WHILE_SLOW`. So many slow senders together may exceed `MOST` a little.

MOST: Final = 64 * 1024 * 1024
"""Bytes on the wire."""
WHILE_READ: Final = 1024 * 1024
WHILE_SLOW: Final = 16 * 1024
SOON: Final = 0.5
"""Seconds."""


class Turn:
    """The memory of a call, from before its request is read."""

    __slots__ = ("_memory", "_slow", "size")

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        self.size = WHILE_READ

    async def __aenter__(self) -> Turn:
        await self._memory.take_room()
        self._slow = asyncio.get_running_loop().call_later(SOON, self.weighs, WHILE_SLOW)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.weighs(0)

    def weighs(self, size: int) -> None:
        """Set the size of its request, in bytes; 0: the call has ended."""
        self._slow.cancel()
        self._memory.change(size - self.size)
        self.size = size


class RequestMemory:
    """The bytes of all requests in progress."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self.taken = 0
        self._waiting: dict[asyncio.Future[None], None] = {}

    def admit_call(self) -> Turn:
        """Return what admits a call, as a context."""
        return Turn(self)

    def change(self, size: int) -> None:
        """Add to the bytes taken, or subtract; then admit waiting calls."""
        self.taken += size
        while self._waiting and self.taken < self._most:
            first = next(iter(self._waiting))
            del self._waiting[first]
            if not first.done():
                self.taken += WHILE_READ
                first.set_result(None)

    async def take_room(self) -> None:
        """Wait for room, and take it for the request that will be read."""
        if not self._waiting and self.taken < self._most:
            self.taken += WHILE_READ
            return
        mine = asyncio.get_running_loop().create_future()
        self._waiting[mine] = None
        try:
            await mine
        except asyncio.CancelledError:
            self._waiting.pop(mine, None)
            if mine.done() and not mine.cancelled():  # admitted at the same moment
                self.change(-WHILE_READ)
            raise


M = TypeVar("M", bound=Message)

MOST_PARTS: Final = 20_000
"""Fields of a request, nested ones included: counting them takes milliseconds."""

MOST_PARTS_OF_FRAME: Final = 250_000
"""Parts of a frame of a worker, or of a member when relayed. A heartbeat of the previous version
lists every held run, about eight parts each. Each of 500 assignments has thirty parts, and three
for each variable.
"""

OUT_OF_BOUNDS: Final = "OUT_OF_BOUNDS"
"""Reason code for a field that is out of its bounds (`schedkit.bounds`)."""

DEEPEST: Final = 100
"""Levels of nested messages that protobuf reads; deeper levels needn't be counted."""

REQUEST_WITHIN: Final = 15.0
"""Seconds from the head of a call to the last byte of its request."""

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


@dataclass(frozen=True, slots=True)
class UndecodedRequest:
    """A request that can't be decoded: gRPC status, message, reason code."""

    status: str
    why: str
    reason: str


class _TooMany(Exception):
    """More parts than are allowed."""


def reader(
    cls: type[M], most: int = MOST_PARTS, bounds: Bounds | None = None
) -> Callable[[bytes], M | UndecodedRequest]:
    """Return a decoder of messages of this class, which never raises.

    `bounds`: the bounds of its fields. User calls check theirs later, when the caller is
    known (`schedd.api.request_bounds`).
    """

    def read(content: bytes) -> M | UndecodedRequest:
        try:
            if len(content) > 2 * most:  # no part has fewer bytes than two
                _count(content, 0, len(content), cls.DESCRIPTOR, most, 0)
            message = cls.FromString(content)
            if bounds is None:
                return message
            found, cleared = bounds.tidy(message)
            if cleared:
                note("field", cls.DESCRIPTOR.name, problem(cleared))
            if found:
                return UndecodedRequest("INVALID_ARGUMENT", problem(found), OUT_OF_BOUNDS)
            return message
        except _TooMany:
            why = f"the message has more than {most:,} fields and list items"
            return UndecodedRequest("RESOURCE_EXHAUSTED", why, "TOO_MANY_PARTS")
        except DecodeError:  # its own message quotes the bytes
            return UndecodedRequest(
                "INVALID_ARGUMENT",
                f"the request isn't a valid {cls.DESCRIPTOR.name}",
                "MALFORMED_MESSAGE",
            )

    return read


def unary(
    call: Callable[[Any, Context], Awaitable[Any]],
    request: type[Message],
    answer: type[Message],
    most: int = MOST_PARTS,
    memory: RequestMemory | None = None,
    bounds: Bounds | None = None,
) -> _Handler:
    """Return the handler of a call with one request, of at most `most` parts, and one answer.

    `memory`: the memory limit that the request waits for; None: no limit.
    """

    async def handle(_: object, context: Context) -> Any:
        if memory is None:
            return await call(await _asked(context), context)
        async with memory.admit_call() as turn:
            asked = await _asked(context)
            turn.weighs(asked.ByteSize())
            return await call(asked, context)

    read = reader(request, most, bounds)
    return grpc.stream_unary_rpc_method_handler(handle, read, answer.SerializeToString)


def streaming(
    call: Callable[[Any, Context], AsyncIterator[Any]],
    request: type[Message],
    answer: type[Message],
    bounds: Bounds | None = None,
) -> _Handler:
    async def handle(_: object, context: Context) -> AsyncIterator[Any]:
        async for each in call(await _asked(context), context):
            yield each

    read = reader(request, bounds=bounds)
    return grpc.stream_stream_rpc_method_handler(handle, read, answer.SerializeToString)


async def _asked(context: Context) -> Message:
    """Return the one request of a call. End the call if it is missing or can't be decoded.

    The context reads it: gRPC's iterator of requests and its generator refer to each other, and
    would be garbage of each call that only a full collection frees.
    """
    asked: Any
    try:
        async with asyncio.timeout(REQUEST_WITHIN):
            asked = await context.read()
        if asked is grpc.aio.EOF:
            why = "the call ended without a request"
            asked = UndecodedRequest("INVALID_ARGUMENT", why, "NO_REQUEST")
    except TimeoutError:
        why = f"no request received within {REQUEST_WITHIN:g} s"
        asked = UndecodedRequest("DEADLINE_EXCEEDED", why, "NO_REQUEST")
    if isinstance(asked, UndecodedRequest):
        await abort(context, asked.status, asked.why, reason=asked.reason)
    found: Message = asked
    return found


def put(
    server: grpc.aio.Server, gate: AuthInterceptor, service: str, table: Mapping[str, _Handler]
) -> None:
    """Serve these methods behind the gate. They are registered by name, so that only unknown
    methods are unregistered (see `server`).
    """
    guarded = {name: gate.guarded(f"{service}.{name}", each) for name, each in table.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, guarded),))
    server.add_registered_method_handlers(service, guarded)


def _count(content: bytes, at: int, end: int, of: Any, left: int, depth: int) -> int:
    """Return how many parts are still allowed after this piece. Malformed bytes are left to the
    parser. Raises _TooMany.
    """
    inside = {} if of is None else _inside(of)
    while at < end:
        left -= 1
        if left < 0:
            raise _TooMany
        tag, at = (content[at], at + 1) if content[at] < 128 else _varint(content, at, end)
        kind = tag & 7
        if kind == 2:
            if at < end and content[at] < 128:
                size, at = content[at], at + 1
            else:
                size, at = _varint(content, at, end)
            inner = min(at + size, end)
            if (what := inside.get(tag >> 3)) is not None:
                if isinstance(what, int):
                    left -= (inner - at) // what
                elif depth < DEEPEST:
                    left = _count(content, at, inner, what, left, depth + 1)
            at = inner
        elif kind == 0:
            _, at = _varint(content, at, end)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
    if left < 0:
        raise _TooMany
    return left


_WIDTHS: Final = {"double": 8, "fixed64": 8, "sfixed64": 8, "float": 4, "fixed32": 4, "sfixed32": 4}
"""Bytes of a packed number; at least one byte for the other types."""
_TYPES: Final = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}


@cache
def _inside(of: Any) -> dict[int, Any]:
    """Return the fields of a message that have parts themselves: nested messages, by descriptor,
    and packed numbers, by the bytes of each.
    """
    return {
        field.number: field.message_type or _WIDTHS.get(_TYPES[field.type], 1)
        for field in of.fields
        if field.message_type is not None or field.is_packed
    }


def _varint(content: bytes, at: int, end: int) -> tuple[int, int]:
    found = shift = 0
    while at < end:
        byte = content[at]
        at += 1
        found |= (byte & 127) << shift
        if byte < 128 or shift >= 63:
            break
        shift += 7
    return found, at
