"""A relay before a member that counts the requests of HTTP/2 that go through it.

with Relay(member) as relay:
    … a client of relay.address …
    assert relay.requests == 2
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

PREFACE: Final = 24
"""Bytes with which a client begins (RFC 9113, 3.4)."""
HEAD: Final = 9
"""Bytes before each frame's own: its length, its type, its flags, its stream."""
HEADERS: Final = 1
"""The type of the frame that begins a request; gRPC's clients send no trailers."""


class Relay:
    """Threads, two for each connection, that end with it."""

    def __init__(self, member: str) -> None:
        host, _, port = member.rpartition(":")
        self._to = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.requests = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                member = socket.create_connection(self._to)
                for ends in ((client, member, Counted(self._one)), (member, client, None)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, counted: Counted | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if counted is not None:
                    counted.feed(data)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _one(self) -> None:
        with self._lock:
            self.requests += 1


class Counted:
    """The bytes of a client: `one()` is called for each request that begins in them."""

    def __init__(self, one: Callable[[], None]) -> None:
        self._one = one
        self._buffer, self._skip = b"", PREFACE

    def feed(self, data: bytes) -> None:
        """Some more of it."""
        self._buffer += data
        while len(self._buffer) >= self._skip + HEAD:
            head = self._buffer[self._skip : self._skip + HEAD]
            if head[3] == HEADERS:
                self._one()
            self._buffer = self._buffer[self._skip :]
            self._skip = HEAD + int.from_bytes(head[:3], "big")
