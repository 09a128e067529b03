"""How many gRPC connections one host may have at a member, so that no host has all of them.

grpcio tells nobody of connections. But their sockets are descriptors of this process: every second
we look at those that are new, and end the newest of a host that has more than it may.

Invariants
- Who was there first stays: a host that comes again and again takes nothing from itself.
- Only sockets that were accepted at this port are touched, and by a descriptor of our own: one that
  grpcio closes meanwhile, and whose number goes to another, isn't taken for it (`st_ino`).
- A host has too many for a second at most; how many all may have is grpcio's own limit.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from schedkit.net.http_limits import SPARE

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 1.0
MOST: Final = 16_384
"""Connections here, descriptors permitting: each worker has one to each member."""
MOST_OF_ONE_HOST: Final = 256
"""What one host may have in any case, if there may be as many."""


def most_of_all(descriptors: int, others: int) -> int:
    """How many connections may be here, beside so many others: what they leave."""
    return max(16, min(MOST, descriptors - SPARE - others))


def most_of_one(connections: int) -> int:
    """How many of so many connections may be one host's: half. A host may be a proxy, or run a
    thousand workers.
    """
    return max(min(MOST_OF_ONE_HOST, connections), connections // 2)


class ConnectionLimit:
    """The connections at one port of this process, by host."""

    def __init__(self, port: int, most: int) -> None:
        self._port, self._most = port, most
        self._hosts: dict[int, str] = {}
        """Inode of each socket that was looked at → its peer's host, or "" for one that is no
        connection of this port; in order of age.
        """

    async def run(self) -> NoReturn:
        """Look again and again, beside the loop. Until cancelled."""
        while True:
            for host, ended in (await asyncio.to_thread(self.look)).items():
                log.warning(
                    "%s has more than %d gRPC connections here: %d were ended",
                    host,
                    self._most,
                    ended,
                )
            await asyncio.sleep(LOOK_EVERY)

    def look(self) -> dict[str, int]:
        """End what is too many; how many of which host."""
        present = dict(_sockets())
        self._hosts = {inode: host for inode, host in self._hosts.items() if inode in present}
        for inode, descriptor in present.items():
            if inode not in self._hosts and (host := self._host(inode, descriptor)) is not None:
                self._hosts[inode] = host
        crowds: dict[str, list[int]] = defaultdict(list)
        for inode, host in self._hosts.items():
            if host:
                crowds[host].append(inode)
        many = {host: inodes[self._most :] for host, inodes in crowds.items()}
        for inodes in many.values():
            for inode in inodes:
                _shut(inode, present[inode])
        return {host: len(inodes) for host, inodes in many.items() if inodes}

    def _host(self, inode: int, descriptor: int) -> str | None:
        """Of its peer; "" if it is no connection of this port, None if it can't be told."""
        with _had(inode, descriptor) as had:
            if had is None:
                return None
            if had.family not in (socket.AF_INET, socket.AF_INET6):
                return ""
            try:
                ours = had.getsockname()[1] == self._port
                host: str = had.getpeername()[0]
            except OSError:  # it listens, or was left
                return ""
            return host.removeprefix("::ffff:") if ours else ""


def _sockets() -> Iterator[tuple[int, int]]:
    """Inode and descriptor of each socket of this process; none when no descriptor is left to look
    with: then nothing new comes either.
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


def _shut(inode: int, descriptor: int) -> None:
    with _had(inode, descriptor) as had:
        if had is not None:
            try:
                had.shutdown(socket.SHUT_RDWR)
            except OSError:  # left meanwhile
                return


@contextmanager
def _had(inode: int, descriptor: int) -> Iterator[socket.socket | None]:
    """This socket by a descriptor of our own; None if it is closed."""
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
