"""Hostile messages: bytes that aren't a request, too much of it, small ones that hold much.

A deed says one of them, at one port or to one call, and reports how it was answered: what wasn't
answered clearly is wrong.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TypeAlias

from faults.hostile import calls, garbage, http1, http2
from faults.hostile.order import Order, Report

ANSWERED_WITHIN = 10.0
BODY_WITHIN = 40.0
"""A member takes 30 s for a body that doesn't end."""
SPOILT_WITHIN = 0.3
GET_RUN = "/schedd.v1.RunService/GetRun"
CHANGES_THE_CLUSTER = ("TransferLeader", "PauseCluster", "ResumeCluster", "Rebalance", "Health/W")
"""Calls that an empty request suffices for; they aren't called with an empty request."""
DRAWN = 3
"""How many of the messages of many parts each call gets in a round."""

APART = {"grpc.use_local_subchannel_pool": 1}
"""For a channel that shares no connection with another."""

Deed: TypeAlias = Callable[[], Awaitable[None]]


class Messages:
    """Deeds against these ports; what comes back is reported."""

    def __init__(self, order: Order, said: Report) -> None:
        self._order, self._said = order, said
        self._channels: dict[tuple[str, bool], calls.grpc.aio.Channel] = {}

    def malformed(self, luck: random.Random) -> Iterator[Deed]:
        """Bytes that are no request: to each call of each member, and at each port."""
        order = self._order
        for address in (*order.grpc, *order.http, *order.workers):
            for name, said in http2.spoiled(luck, GET_RUN, address):
                yield partial(self._spoil, address, name, said)
        nonsense = list(garbage.nonsense(luck))
        for address in order.grpc:
            for path, _, _ in calls.methods():
                for name, content in nonsense:
                    yield partial(self._ask, address, path, name, content, {"INVALID_ARGUMENT"})
            for path in ("/x", GET_RUN + "x", "/a.B/C", "/" + "a" * 5000):
                yield partial(self._ask, address, path, "of no method", b"", {"UNIMPLEMENTED"})
        for address in order.http:
            for name, body in garbage.bodies():
                for path in ("/api/v1/jobs", "/api/v1/runs"):
                    yield partial(self._post, address, path, name, body)

    def oversized(self, luck: random.Random) -> Iterator[Deed]:
        """Messages past the limit, small ones that hold much, to each call; headers; bodies. Far
        past the limit is one call of each member: it is refused by its first bytes, as any is.
        """
        order = self._order
        wanted = {"RESOURCE_EXHAUSTED"}
        readable = wanted | {"INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "OK"}
        large, bomb, parts = bytes(garbage.LIMIT + 1), bytes(16 << 20), list(garbage.flat(luck))
        paths = [path for path, _, _ in calls.methods()]
        for address in order.grpc:
            for path in paths:
                yield partial(self._ask, address, path, "past the limit", large, wanted)
                yield partial(self._ask, address, path, "a bomb", bomb, wanted, packed=True)
                if not any(word in path for word in CHANGES_THE_CLUSTER):
                    for name, content in luck.sample(parts, DRAWN):
                        yield partial(self._ask, address, path, name, content, readable)
            yield partial(self._far, address, luck.choice(paths), wanted)
            for size in (32 << 10, 1 << 20):
                yield partial(self._large_head, address, size, wanted)
        for address in (*order.http, *order.workers):
            for name in http1.LARGE_BODIES:
                yield partial(self._large_body, address, name)

    async def _spoil(self, address: str, name: str, said: bytes) -> None:
        """Send bytes that gRPC's core can't parse: it answers INTERNAL, and must disconnect."""
        received, closed = await _say(address, said, SPOILT_WITHIN)
        answer = _spoilt(received, closed)
        if answer == "INTERNAL" and not closed:
            received, closed = await _say(address, said, ANSWERED_WITHIN)
            if not closed:
                self._said.accuse(f"{address} {name}: INTERNAL, and the connection stays")
        answer += " and ended" if answer == "INTERNAL" and closed else ""
        self._said.answers[f"spoilt: {answer}"] += 1

    async def _ask(
        self,
        address: str,
        path: str,
        name: str,
        content: bytes,
        wanted: set[str],
        packed: bool = False,
    ) -> None:
        status = await calls.ask(self._channel(address, packed), path, [content])
        self._said.record("call", f"{address} {path[:60]} {name}", status, wanted)

    async def _post(self, address: str, path: str, name: str, body: bytes) -> None:
        received, _ = await _say(address, http1.post(path, body), ANSWERED_WITHIN)
        self._said.record(
            "POST", f"{address} {path} {name}", http1.status(received), {"400", "413"}
        )

    async def _far(self, address: str, path: str, wanted: set[str]) -> None:
        for packed in (False, True):
            await self._ask(
                address, path, "far past it", bytes(http1.FAR_TOO_LARGE), wanted, packed=packed
            )

    async def _large_head(self, address: str, size: int, wanted: set[str]) -> None:
        heads = (("x-large", "a" * size),)
        async with calls.channel_to(address, **APART) as channel:
            status = await calls.ask(channel, GET_RUN, [b""], metadata=heads)
        self._said.record("call", f"{address} {size:,} bytes of headers", status, wanted)

    async def _large_body(self, address: str, name: str) -> None:
        received, closed = await _say(address, http1.LARGE_BODIES[name](), BODY_WITHIN)
        answer = http1.status(received) if received or closed else "silent"
        wanted = {"400", "404", "405", "408", "413", "closed"}
        self._said.record("POST", f"{address} {name}", answer, wanted)

    def _channel(self, address: str, packed: bool) -> calls.grpc.aio.Channel:
        """To this member; those that pack what they send are apart."""
        if (address, packed) not in self._channels:
            packing = calls.grpc.Compression.Gzip if packed else None
            self._channels[address, packed] = calls.grpc.aio.insecure_channel(
                address, options=calls.HUGE, compression=packing
            )
        return self._channels[address, packed]


async def _say(address: str, said: bytes, within: float) -> tuple[bytes, bool]:
    """Return the answer, and whether the connection has ended."""
    host, port = address.split(":")
    received, closed = bytearray(), False
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return b"", True
    try:
        async with asyncio.timeout(within):
            writer.write(said)
            while piece := await reader.read(65_536):
                received += piece
            closed = True
    except TimeoutError:
        pass
    except OSError:
        closed = True
    finally:
        writer.transport.abort()
    return bytes(received), closed


def _spoilt(received: bytes, closed: bool) -> str:
    """Return the outcome: a status of HTTP or of gRPC, an end, or nothing yet."""
    if received.startswith(b"HTTP/1.1"):
        return f"HTTP {http1.status(received)}"
    statuses = [
        http2.status_of(payload)
        for kind, _, _, payload in http2.read(bytearray(received))
        if kind == http2.HEADERS
    ]
    names = [each.name for each in calls.grpc.StatusCode if each.value[0] in statuses]
    return names[0] if names else "ended" if closed else "waits for more"
