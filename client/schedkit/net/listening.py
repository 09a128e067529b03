"""Listening sockets for servers that accept one."""

import socket

from schedkit.net.channel import split_address


def listening(address: str, backlog: int) -> socket.socket:
    """Return a listening socket at host:port (port 0: any free port). If a name has several
    addresses, its first IPv4 address is used, if any.

    The socket names its protocol, because asyncio sets TCP_NODELAY only then. Without it the body
    of each answer waits 40 ms, until the client has acknowledged the head.

    Raises:
        ValueError: the address can't be parsed. OSError: it can't be bound.
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
