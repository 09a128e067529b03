"""No host has all gRPC connections of a member."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from faults.hostile import calls, http2
from schedd.rpc.auth_interceptor import AuthInterceptor
from schedd.rpc.connection_limit import ConnectionLimit, most_of_all, most_of_one
from schedd.rpc.health import Health
from schedd.rpc.server import make_server
from support.wait import wait_until

MOST = 4
HOST, OTHER = "127.0.0.1", "127.0.0.2"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes what is opened."""
    with ExitStack() as closing:
        yield closing


def ended(connection: socket.socket) -> bool:
    """Whether the other side has closed it by now."""
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False


def test_one_host_has_half_of_many_and_all_of_few() -> None:
    assert [most_of_one(each) for each in (16, 300, 4_096)] == [16, 256, 2_048]


def test_grpc_gets_the_connections_that_http_leaves() -> None:
    """Five thousand workers of one host are half of it at most."""
    assert [most_of_all(*each) for each in ((1_024, 384), (20_000, 4_096), (1 << 20, 4_096))] == [
        384,
        15_648,
        16_384,
    ]


def test_the_newest_of_a_host_that_has_too_many_are_ended(stack: ExitStack) -> None:
    listener = stack.enter_context(socket.create_server(("0.0.0.0", 0)))
    port = listener.getsockname()[1]
    crowds = ConnectionLimit(port, MOST)

    def connected(source: str) -> socket.socket:
        found = socket.create_connection((HOST, port), source_address=(source, 0))
        stack.enter_context(found)
        stack.enter_context(listener.accept()[0])
        return found

    first = [connected(HOST) for _ in range(MOST)]
    assert crowds.close_excess() == {}
    more, others = [connected(HOST) for _ in range(3)], [connected(OTHER) for _ in range(MOST)]
    assert crowds.close_excess() == {HOST: 3}
    assert all(ended(each) for each in more)
    assert not any(ended(each) for each in first + others)


def test_connections_that_were_closed_count_no_more(stack: ExitStack) -> None:
    listener = stack.enter_context(socket.create_server((HOST, 0)))
    crowds = ConnectionLimit(listener.getsockname()[1], MOST)
    for _ in range(3):
        with ExitStack() as turn:
            for _ in range(MOST):
                turn.enter_context(socket.create_connection(listener.getsockname()))
                turn.enter_context(listener.accept()[0])
            assert crowds.close_excess() == {}


def test_sockets_of_other_ports_are_kept_open(stack: ExitStack) -> None:
    listener = stack.enter_context(socket.create_server((HOST, 0)))
    crowds = ConnectionLimit(listener.getsockname()[1] + 1, MOST)
    for _ in range(2 * MOST):
        stack.enter_context(socket.create_connection(listener.getsockname()))
        stack.enter_context(listener.accept()[0])
    assert crowds.close_excess() == {}


async def test_grpcio_drops_closed_connections_and_serves_the_others(stack: ExitStack) -> None:
    server = make_server(64)
    Health(list).serve(server, AuthInterceptor())
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    async with calls.channel_to(f"{HOST}:{port}") as channel:
        assert await calls.ask(channel, calls.HEALTH[0], [b""]) == "OK"
        watching = asyncio.create_task(ConnectionLimit(port, MOST).run(), name="crowds")
        held = [
            stack.enter_context(socket.create_connection((HOST, port))) for _ in range(3 * MOST)
        ]
        for each in held:
            with suppress(OSError):
                each.sendall(http2.hello())
        await asyncio.to_thread(
            wait_until,
            lambda: sum(not ended_after_settings(each) for each in held) < MOST,
            10,
            "the crowd to be ended",
        )
        assert await calls.ask(channel, calls.HEALTH[0], [b""]) == "OK"
        watching.cancel()
    await server.stop(None)


def ended_after_settings(connection: socket.socket) -> bool:
    """As `ended`, of one to which a server's hello was sent."""
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            continue
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
