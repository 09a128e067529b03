"""TCP proxy that spoils what passes on order; a process of its own, on a host for it.

    python -m faults.nemesis.proxy_process '{
        "listen": ["10.213.1.14", 7420], "to": ["10.213.1.114", 7420], "protocol": "http2",
        "orders": "/…/orders.json", "report": "/…/report.json"}'

The file `orders` says how, and is looked at again and again: {"way": "reset", "bytes": 2000}. Ways:

    plain      everything passes; so it does before the first order, too
    slow       each piece is handed on `seconds` later, in its order, both ways
    stall      within the next `bytes` bytes each way falls silent, and neither side is notified
    truncate   within the next `bytes` bytes, up or down by turns, the connection ends, cleanly
    reset      the same, but both ends are reset

- An order strikes the connections that are open already, and those that come while it holds.
- The byte at which one is struck is drawn from `seed`, and lies inside a frame of its protocol: a
  part of it has been handed on, and the rest hasn't.
- What a stall holds back is handed on when the order is over: a wire that heals forgets nothing.
- Up is what the client says, down what the server says.

The report is replaced ten times a second, and starts again with each order.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from faults.nemesis.frames import Frames

PIECE = 65536
LOOK = 0.1
LINGER = 2.0
"""Seconds for both ends to notice that the other has ended, before the proxy lets them go."""


class Cut(Exception):
    """This connection shall end now."""


@dataclass
class Effects:
    """Effects of the order in force."""

    way: str = "plain"
    open: int = 0
    """Connections, now."""
    found: int = 0
    """Connections that were open when the order came, …"""
    found_struck: int = 0
    """… and how many of them it has struck."""
    came: int = 0
    """Connections that came later."""
    struck_up: int = 0
    """Pieces late; or ways that fell silent; or connections cut."""
    struck_down: int = 0
    in_frame: int = 0
    """Silences and cuts that began inside a frame."""
    bytes_up: int = 0
    """Bytes late; or held back; or thrown away, for they came after the cut."""
    bytes_down: int = 0
    least_late: float | None = None
    """Seconds by which the quickest piece was late."""


@dataclass(frozen=True, eq=False)
class Order:
    """Order, until it is `over`."""

    way: str = "plain"
    seconds: float = 0.0
    bytes: int = 1
    seed: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True)
class Part:
    """A part of a piece, to be handed on at a time of the loop's, and not while `held` holds.

    Nothing (None) is the end of the stream.
    """

    bytes: bytes | None
    read: float
    at: float
    held: Order | None = None


class Proxy:
    """All connections, the order that they are under, and what it has done."""

    def __init__(self, to: tuple[str, int], protocol: str, orders: Path, report: Path) -> None:
        self.protocol = protocol
        self.order = Order()
        self.done = Effects()
        self._to = to
        self._orders = orders
        self._report = report
        self._obeyed = ""
        self._numbers = itertools.count()
        self._open: set[int] = set()
        self._found: set[int] = set()

    async def serve(self, listen: tuple[str, int]) -> None:
        """Listen until killed."""
        async with await asyncio.start_server(self._meet, *listen):
            while True:
                self._obey()
                self._tell()
                await asyncio.sleep(LOOK)

    def struck(self, number: int) -> None:
        """The order has had its first effect on this connection."""
        if number in self._found:
            self._found.remove(number)
            self.done.found_struck += 1

    def _obey(self) -> None:
        text = self._orders.read_text() if self._orders.exists() else ""
        if text != self._obeyed:
            self._obeyed = text
            self.order.over.set()
            self.order = Order(**json.loads(text))
            self._found = set(self._open)
            self.done = Effects(self.order.way, found=len(self._found))

    def _tell(self) -> None:
        self.done.open = len(self._open)
        fresh = Path(f"{self._report}.new")
        fresh.write_text(json.dumps(asdict(self.done)))
        fresh.replace(self._report)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = next(self._numbers)
        self._open.add(number)
        self.done.came += 1
        ends = [(reader, writer)]
        cut = False
        try:
            ends.append(await asyncio.open_connection(*self._to))
            async with asyncio.TaskGroup() as both:
                for up, (source, _), (_, sink) in ((True, *ends), (False, *reversed(ends))):
                    line = Line(self, number, up=up)
                    name = f"{number} {'up' if up else 'down'}"
                    both.create_task(line.carry(source, sink), name=name)
        except* Cut:
            cut = True
        except* OSError:  # one of both is gone: the other shall see an end, too
            pass
        finally:
            self._open.remove(number)
        if cut and self.order.way == "reset":
            for _, sink in ends:
                _reset(sink)
        else:
            await asyncio.gather(*(_end(*each) for each in ends))


class Line:
    """Direction of one connection."""

    def __init__(self, proxy: Proxy, number: int, *, up: bool) -> None:
        self._proxy = proxy
        self._number = number
        self._up = up
        self._frames = Frames(proxy.protocol, up=up)
        self._order = proxy.order
        self._left = self._draw()
        """Bytes that may still pass under this order."""
        self._silent = False

    async def carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Hand on what comes until its end; raises `Cut` where it shall not come."""
        waiting: asyncio.Queue[Part] = asyncio.Queue(1024)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._deliver(waiting, sink), name="deliver")
            while piece := await source.read(PIECE):
                for part in self._spoil(piece):
                    await waiting.put(part)
            await waiting.put(self._part(None))

    async def _deliver(self, waiting: asyncio.Queue[Part], sink: asyncio.StreamWriter) -> None:
        now = asyncio.get_running_loop().time
        while True:
            part = await waiting.get()
            if part.held is not None and part.held.way != "stall":
                raise Cut
            if part.held is not None:
                await part.held.over.wait()
            elif part.at > part.read:
                await asyncio.sleep(part.at - now())
                late, done = now() - part.read, self._proxy.done
                done.least_late = min(late, done.least_late or late)
            if part.bytes is None:
                sink.write_eof()
                return
            sink.write(part.bytes)
            await sink.drain()

    def _spoil(self, piece: bytes) -> Iterator[Part]:
        """The parts of a piece, as the order in force wants them; counts what it does to them."""
        if self._order is not self._proxy.order:
            self._order = self._proxy.order
            self._left = self._draw()
            self._silent = False
        ends = self._frames.ends(piece)
        if self._order.way == "slow":
            self._count(1, len(piece))
        if not self._ends_it() or self._left > len(piece):
            self._left -= len(piece)
            yield self._part(piece)
            return
        place = self._left - (self._left in ends)
        if place:
            yield self._part(piece[:place])
        self._count(0 if self._silent else 1, len(piece) - place, in_frame=True)
        self._silent, self._left = True, 0
        yield self._part(piece[place:])

    def _ends_it(self) -> bool:
        """Whether this order is one that ends, or silences, this way of this connection."""
        by_turns = self._up == (self._number % 2 == 0)
        return self._order.way == "stall" or (self._order.way in ("truncate", "reset") and by_turns)

    def _part(self, piece: bytes | None) -> Part:
        read = asyncio.get_running_loop().time()
        late = self._order.seconds if self._order.way == "slow" else 0.0
        return Part(piece, read, read + late, self._order if self._silent else None)

    def _count(self, struck: int, size: int, *, in_frame: bool = False) -> None:
        done = self._proxy.done
        if self._up:
            done.struck_up += struck
            done.bytes_up += size
        else:
            done.struck_down += struck
            done.bytes_down += size
        done.in_frame += struck * in_frame
        self._proxy.struck(self._number)

    def _draw(self) -> int:
        dice = random.Random(f"{self._order.seed}/{self._number}/{self._up}")
        return dice.randint(1, self._order.bytes)


def _reset(sink: asyncio.StreamWriter) -> None:
    if (sock := sink.get_extra_info("socket")) is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sink.transport.abort()


async def _end(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Say that nothing more comes, and swallow the rest: closed with that unread, it'd be reset."""
    with suppress(OSError, TimeoutError):
        sink.write_eof()
        async with asyncio.timeout(LINGER):
            while await source.read(PIECE):
                pass
    sink.close()


if __name__ == "__main__":
    settings: dict[str, Any] = json.loads(sys.argv[1])
    files = (Path(settings[name]) for name in ("orders", "report"))
    proxy = Proxy(tuple(settings["to"]), settings["protocol"], *files)
    asyncio.run(proxy.serve(tuple(settings["listen"])))
