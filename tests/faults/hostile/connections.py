"""First bytes of held connections, and how their readers read: half, nothing, slowly."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

from faults.hostile import calls, garbage, http1, http2
from faults.hostile.held import Holder
from faults.hostile.order import Order

WATCH = "/schedd.v1.RunService/WatchRuns"
ATTACH, HEALTH_WATCH = "/schedd.v1.WorkerService/Attach", calls.HEALTH[1]

ROOM = 1 << 20
"""Bytes for the heads of many streams on one connection: unread, they don't hide its end."""

Holders: TypeAlias = dict[str, Sequence[Holder]]
"""By kind of port."""


def half_open(order: Order) -> Holders:
    """Connections that say nothing, or the half of what they should; and slow heads. What is no
    HTTP/2 gRPC ends at once, so that is one of ten there.
    """
    shake = http2.tls_hello(random.Random(order.seed))[:20]
    halves = [b"", http2.PREFACE[:12], shake, b"GET / HTTP/1.1\r\nhost:"]
    grpc = [*halves[:2] * 4, halves[0], shake]
    return {
        "grpc": _at_each(order.grpc, order, lambda n: (grpc[n % len(grpc)], 0.0)),
        "web": _at_each(order.http, order, lambda n: (halves[n % len(halves)], 0.0)),
        "workers": _at_each(order.workers, order, lambda n: (halves[n % len(halves)], 0.0)),
    }


def idle(order: Order) -> Holders:
    """Connections with a whole hello and nothing else, and unread streams: many on each
    of a few connections.
    """
    asked = {WATCH: _watched(order), ATTACH: b"", HEALTH_WATCH: http2.message(b"")}
    each = order.connections // (len(asked) * len(order.grpc))
    streams = []
    for address in order.grpc:
        openings = []
        for path, content in asked.items():
            said = bytearray(http2.hello({http2.INITIAL_WINDOW: 1}))
            for stream in range(1, 2 * each, 2):
                said += http2.opening(path, address, stream)
                said += http2.data(content, stream, end=path != ATTACH) if content else b""
            openings.append((bytes(said), 0.0))
        streams.append(Holder(address, len(openings), lambda n, of=openings: of[n % len(of)], ROOM))
    idle = _at_each(order.grpc, order, lambda _: (http2.hello(), 0.0))
    return {"grpc": idle, "streams": streams}


def slow(order: Order) -> Holders:
    """Readers of every stream that a member serves, at a byte a second, and some never."""
    stream = http2.opening(WATCH, "x", 1) + http2.data(_watched(order), 1, end=True)
    call = http2.hello({http2.INITIAL_WINDOW: 1}) + stream
    web = (
        b"GET /live/ HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /api/v1/runs?pageSize=50 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        http1.get_watch(order.runs),
    )
    return {
        "grpc": _shared_by(order.grpc, order, lambda n: (call, n % 2)),
        "web": _shared_by(order.http, order, lambda n: (web[n % len(web)], n % 2)),
    }


def _watched(order: Order) -> bytes:
    return http2.message(b"".join(garbage.inside(1, run.encode()) for run in order.runs))


def _at_each(
    addresses: Sequence[str], order: Order, opening: Callable[[int], tuple[bytes, float]]
) -> list[Holder]:
    return [Holder(address, order.connections, opening) for address in addresses]


def _shared_by(
    addresses: Sequence[str], order: Order, opening: Callable[[int], tuple[bytes, float]]
) -> list[Holder]:
    """As many to all of them together."""
    each = order.connections // len(addresses) + 1
    return [Holder(address, each, opening) for address in addresses]
