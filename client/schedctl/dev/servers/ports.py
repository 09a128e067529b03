"""Free loopback ports that stay free while their server is stopped.

They are below the kernel's ephemeral range. Inside the range, a client that keeps connecting to a
stopped server may get that port as its source port. It then connects to itself and blocks the
server's restart. Tests that kill and restart would fail occasionally.
"""

import contextlib
import random
import socket
from collections.abc import Collection
from pathlib import Path

HOST = "127.0.0.1"
_LOWEST = 10240


def reserve(count: int, *, but: Collection[int] = ()) -> list[int]:
    """Return `count` different ports without a listener, none of them in `but`.

    All are bound at once and then released. A port may be drawn twice: with SO_REUSEADDR two
    sockets may bind a port as long as neither listens.
    """
    with contextlib.ExitStack() as held:
        found: list[int] = []
        while len(found) < count:
            port = random.randrange(_LOWEST, _ceiling())
            if port in but or port in found or (holder := _bind(port)) is None:
                continue
            held.enter_context(holder)
            found.append(port)
        return found


def is_free(port: int) -> bool:
    """Return whether a server could listen on this port now."""
    holder = _bind(port)
    if holder is None:
        return False
    holder.close()
    return True


def address(port: int) -> str:
    """Return `host:port` on loopback."""
    return f"{HOST}:{port}"


def _bind(port: int) -> socket.socket | None:
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
    try:
        holder.bind((HOST, port))
    except OSError:
        holder.close()
        return None
    return holder


def _ceiling() -> int:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
        lowest_ephemeral = int(text.split()[0])
    except (OSError, ValueError, IndexError):
        lowest_ephemeral = 32768
    return lowest_ephemeral if lowest_ephemeral > _LOWEST + 1000 else 32768
