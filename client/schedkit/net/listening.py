"""A socket that listens, for a server that is given one."""

from __future__ import annotations

import socket

from schedkit.net.channel import split_address


def listening(address: str, backlog: int) -> socket.socket:
    """One at host:port (port 0: any that is free); of a name that is several, at its first address
    of IPv4, if any.

    It names its protocol, for asyncio has only what does so send at once (TCP_NODELAY): else the
    body of each answer waits until the client says that it has the head, 40 ms.

    Raises:
        ValueError: the address can't be read. OSError: it can't be had.
    """
    host, port = split_address(address)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    found.sort(key=lambda one: one[0] is not socket.AF_INET)
    family, kind, protocol, _, where = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
