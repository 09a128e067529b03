"""A TCP proxy that spoils what passes; a process of its own, on the host for proxies.

    python proxy_process.py '{"listen": ["10.213.1.14", 5432], "to": ["10.213.1.114", 5432],
                              "way": "slow", "seconds": 2.0, "report": "/…/report.json"}'

Ways, each on every connection:
    slow       each piece is handed on `seconds` later, in its order, both ways
    stall      after `bytes` bytes nothing is handed on, and nobody is told
    deaf       what the server says is swallowed after `bytes` bytes; what the client says arrives
    truncate   after `bytes` bytes of the server's the connection ends in mid-air, cleanly
    reset      after `bytes` bytes of the server's both ends are reset
    corrupt    one bit of each `bytes` bytes of the server's is turned

The report is replaced four times a second: connections so far, and pieces spoiled.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

PIECE = 65536


@dataclass
class Report:
    """What happened so far."""

    connections: int = 0
    spoiled: int = 0


@dataclass
class Order:
    """What to do."""

    listen: tuple[str, int]
    to: tuple[str, int]
    way: str
    report: str
    seconds: float = 0.0
    bytes: int = 0
    done: Report = field(default_factory=Report)


class Torn(Exception):
    """This connection shall end now."""


async def serve(order: Order) -> None:
    """Listen until killed."""

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        order.done.connections += 1
        with contextlib.suppress(OSError):
            ahead, behind = await asyncio.open_connection(*order.to)
            ways = [
                asyncio.create_task(_carry(order, reader, behind, spoil=_both(order)), name="up"),
                asyncio.create_task(_carry(order, ahead, writer, spoil=True), name="down"),
            ]
            done, pending = await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
            torn = any(isinstance(each.exception(), Torn) for each in done)
            for each in pending:
                each.cancel()
            for end in (writer, behind):
                _end(end, reset=torn and order.way == "reset")

    server = await asyncio.start_server(meet, *order.listen)
    async with server:
        while True:
            _write(order)
            await asyncio.sleep(0.25)


def _both(order: Order) -> bool:
    return order.way in ("slow", "stall")


async def _carry(
    order: Order, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, spoil: bool
) -> None:
    loop = asyncio.get_running_loop()
    passed = 0
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(1024)

    async def deliver() -> None:
        while True:
            at, piece = await waiting.get()
            if (wait := at - loop.time()) > 0:
                await asyncio.sleep(wait)
            if not piece:
                sink.write_eof()
                return
            sink.write(piece)
            await sink.drain()

    delivery = asyncio.create_task(deliver(), name="deliver")
    try:
        while piece := await source.read(PIECE):
            if spoil:
                piece = await _spoil(order, piece, passed)
            passed += len(piece)
            delay = order.seconds if spoil and order.way == "slow" else 0.0
            await waiting.put((loop.time() + delay, piece))
        await waiting.put((loop.time(), b""))
        await delivery
    except OSError as gone:
        raise Torn from gone
    finally:
        delivery.cancel()


async def _spoil(order: Order, piece: bytes, passed: int) -> bytes:
    """What is to be handed on of a piece; `passed` bytes came before it on this way."""
    after = passed + len(piece)
    match order.way:
        case "slow":
            order.done.spoiled += 1
        case "stall" | "deaf" if after > order.bytes:
            order.done.spoiled += 1
            await asyncio.Event().wait()
        case "truncate" | "reset" if after > order.bytes:
            order.done.spoiled += 1
            raise Torn
        case "corrupt":
            turned = bytearray(piece)
            for place in range(order.bytes - passed % order.bytes - 1, len(piece), order.bytes):
                order.done.spoiled += 1
                turned[place] ^= 0x10
            return bytes(turned)
    return piece


def _end(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    if reset and (sock := writer.get_extra_info("socket")) is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.close()


def _write(order: Order) -> None:
    fresh = Path(f"{order.report}.new")
    fresh.write_text(json.dumps(asdict(order.done)))
    fresh.replace(order.report)


if __name__ == "__main__":
    asyncio.run(serve(Order(**json.loads(sys.argv[1]))))
