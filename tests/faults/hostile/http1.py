"""HTTP/1.1 as bytes: requests with the bodies they shouldn't have, and the status of an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

FAR_TOO_LARGE = 64 << 20

_CHUNKED = (
    b"POST /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
LARGE_BODIES: dict[str, Callable[[], bytes]] = {
    "64 MiB": lambda: post("/api/v1/jobs", bytes(FAR_TOO_LARGE)),
    "endless, in chunks": lambda: _CHUNKED + (b"10000\r\n" + b"x" * 65_536 + b"\r\n") * 200,
    "endless, in chunks of a byte": lambda: _CHUNKED + b"1\r\nx\r\n" * 200_000,
    "headers of 1 MiB": lambda: b"GET / HTTP/1.1\r\nx: " + b"y" * (1 << 20) + b"\r\n\r\n",
}


def post(path: str, body: bytes) -> bytes:
    """A whole request."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


def get_watch(runs: Sequence[str]) -> bytes:
    """Request events of these runs, until the caller leaves."""
    query = "&".join(f"runIds={run}" for run in runs)
    return f"GET /api/v1/runs:watch?{query} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()


def status(received: bytes) -> str:
    """Of an answer, if it is one."""
    return (
        received[9:12].decode(errors="replace") if received.startswith(b"HTTP/1.1 ") else "closed"
    )
