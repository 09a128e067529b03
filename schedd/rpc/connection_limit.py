"""Limit the gRPC connections of one host at a member, so that no host takes all of them.

grpcio has no API that lists its connections. Their sockets are descriptors of this process. Once a
second, new sockets are counted by host, and the newest of a host over its limit are closed.

Invariants
- The oldest connections of a host stay, so that reconnects don't evict them.
- Only sockets accepted at this port are closed, each by a duplicated descriptor. `st_ino` detects a
  descriptor number that grpcio closed and the kernel reused.
- A host exceeds its limit for one second at most. grpcio itself limits the total.
"""

import asyncio
import logging
import os
import socket
import stat
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NoReturn

from schedkit.net.http_limits import SPARE

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 1.0
MOST: Final = 16_384
"""Connections here, descriptors permitting: each worker has one to each member."""
MOST_OF_ONE_HOST: Final = 256
"""The least limit of one host, within the limit of all hosts."""


def most_of_all(descriptors: int, others: int) -> int:
    """Return the limit of all hosts: the descriptors that `others` leave free."""
    return max(16, min(MOST, descriptors - SPARE - others))


def most_of_one(connections: int) -> int:
    """Return the limit of one host: half of all, as it may be a proxy or run many workers."""
    return max(min(MOST_OF_ONE_HOST, connections), connections // 2)


class ConnectionLimit:
    """The connections at one port of this process, by host."""

    def __init__(self, port: int, most: int) -> None:
        self._port, self._most = port, most
        self._hosts: dict[int, str] = {}
        """Inode of each known socket → its peer's host, oldest first. "" is a socket of another
        port.
        """

    async def run(self) -> NoReturn:
        """Check every LOOK_EVERY seconds in a thread, until cancelled."""
        while True:
            for host, ended in (await asyncio.to_thread(self.close_excess)).items():
                log.warning(
                    "gRPC connections over the limit closed: host=%s limit=%d closed=%d",
                    host,
                    self._most,
                    ended,
                )
            await asyncio.sleep(LOOK_EVERY)

    def close_excess(self) -> dict[str, int]:
        """Close connections over the limit. Return how many were closed, by host."""
        present = dict(_sockets())
        self._hosts = {inode: host for inode, host in self._hosts.items() if inode in present}
        for inode, descriptor in present.items():
            if inode not in self._hosts and (host := self._host(inode, descriptor)) is not None:
                self._hosts[inode] = host
        by_host: dict[str, list[int]] = defaultdict(list)
        for inode, host in self._hosts.items():
            if host:
                by_host[host].append(inode)
        many = {host: inodes[self._most :] for host, inodes in by_host.items()}
        for inodes in many.values():
            for inode in inodes:
                with _had(inode, present[inode]) as had, suppress(OSError):  # or disconnected
                    if had is not None:
                        had.shutdown(socket.SHUT_RDWR)
        return {host: len(inodes) for host, inodes in many.items() if inodes}

    def _host(self, inode: int, descriptor: int) -> str | None:
        """Return the peer's host; "" if not a connection of this port, None if unknown."""
        with _had(inode, descriptor) as had:
            if had is None:
                return None
            if had.family not in (socket.AF_INET, socket.AF_INET6):
                return ""
            try:
                ours = had.getsockname()[1] == self._port
                host: str = had.getpeername()[0]
            except OSError:  # a listener, or disconnected
                return ""
            return host.removeprefix("::ffff:") if ours else ""


def _sockets() -> Iterator[tuple[int, int]]:
    """Yield inode and descriptor of each socket of this process. Yield nothing when the process is
    out of descriptors: then it accepts no new connections either.
    """
    try:
        with os.scandir("/proc/self/fd") as listed:
            descriptors = [int(each.name) for each in listed]
    except OSError:
        return
    for descriptor in descriptors:
        try:
            what = os.fstat(descriptor)
        except OSError:  # closed meanwhile
            continue
        if stat.S_ISSOCK(what.st_mode):
            yield what.st_ino, descriptor


@contextmanager
def _had(inode: int, descriptor: int) -> Iterator[socket.socket | None]:
    """Yield the socket by a duplicated descriptor; None if it is closed."""
    try:
        ours = os.dup(descriptor)
    except OSError:  # closed meanwhile, or there is no descriptor left
        yield None
        return
    if os.fstat(ours).st_ino != inode:
        os.close(ours)
        yield None
        return
    with socket.socket(fileno=ours) as found:
        yield found
