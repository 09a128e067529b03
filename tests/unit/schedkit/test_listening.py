"""Listening sockets: data written to their connections is sent at once."""

from __future__ import annotations

import asyncio
import socket

import pytest

from schedkit.net.channel import listening


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
async def test_a_second_write_doesnt_wait_for_the_first_to_be_acknowledged(
    host: str,
) -> None:
    accepted: asyncio.Queue[socket.socket] = asyncio.Queue()

    def came(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.put_nowait(writer.get_extra_info("socket"))

    listener = listening(f"{host}:0", 8)
    port = listener.getsockname()[1]
    async with await asyncio.start_server(came, sock=listener):
        _, writer = await asyncio.open_connection(listener.getsockname()[0], port)
        async with asyncio.timeout(10):
            connection = await accepted.get()
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        writer.close()


def test_an_address_in_use_is_returned_with_the_error() -> None:
    taken = listening("127.0.0.1:0", 8)
    with taken, pytest.raises(OSError, match="Address already in use"):
        listening(f"127.0.0.1:{taken.getsockname()[1]}", 8)


def test_a_name_is_bound_to_its_ipv4_address_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes and scrapers mostly use that address."""
    both = [
        (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    with listening("localhost:0", 8) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
