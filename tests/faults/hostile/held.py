"""Connections that are opened to be held: raw sockets, counted by what the kernel says of them.

An end that the other side made shows only in the state of an unread socket. So all of them are
asked (TCP_INFO), again and again. Ended connections are opened again, at a moderate pace:
as many as the port lets in are there as long as the attack lasts.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

ESTABLISHED = 1
AT_ONCE = 1.0
"""Seconds within which a connection that is ended was refused."""
AGAIN = 0.05
"""Seconds between two connections that are opened again, at one port."""
BEYOND = 1.25
"""How many of those wanted are tried at once, for some are refused."""
BUFFER = 2_048
"""Bytes that a reader who reads nothing takes."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Held connection; `pace`: seconds for each byte that is read, 0: none is."""

    connection: socket.socket
    since: float
    pace: float


@dataclass
class Holder:
    """Connections to one port. `opening(n)`: first bytes of the n-th, and the pace it reads at.
    `buffer`: bytes that come in unread; the end of one that is full isn't seen, it waits for room.
    """

    address: str
    wanted: int
    opening: Callable[[int], tuple[bytes, float]]
    buffer: int = BUFFER
    tried: int = 0
    refused: int = 0
    ended: int = 0
    most: int = 0
    _kept: list[Kept] = field(default_factory=list)

    @property
    def held(self) -> int:
        """How many there are."""
        return len(self._kept)

    async def run(self) -> None:
        """Hold all of them until canceled; open the ended ones again."""
        while True:
            if self.held < self.wanted:
                await self._open()
            await asyncio.sleep(AGAIN if self.tried > BEYOND * self.wanted else 0.001)

    async def read_slowly(self) -> None:
        """Until cancelled: a byte of each that reads, each second."""
        while True:
            for each in [kept for kept in self._kept if kept.pace]:
                try:
                    each.connection.recv(1)
                except OSError:  # nothing there, or ended: the next count tells
                    continue
            await asyncio.sleep(1.0)

    def count(self) -> None:
        """Ask all of them whether they are still there."""
        there, now = [], time.monotonic()
        for each in self._kept:
            state = each.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
            if state == ESTABLISHED:
                there.append(each)
                continue
            each.connection.close()
            if now - each.since <= AT_ONCE:
                self.refused += 1
            else:
                self.ended += 1
        self._kept = there
        self.most = max(self.most, len(there))

    async def _open(self) -> None:
        host, port = self.address.split(":")
        said, pace = self.opening(self.tried)
        self.tried += 1
        connection = socket.socket()
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.buffer)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(5):
                await loop.sock_connect(connection, (host, int(port)))
                await loop.sock_sendall(connection, said)
        except (OSError, TimeoutError):
            connection.close()
            self.refused += 1
            return
        self._kept.append(Kept(connection, time.monotonic(), pace))
