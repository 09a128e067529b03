"""An outgoing HTTP proxy for tests: CONNECT and absolute URLs, with or without a password."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class ForwardProxy:
    """A proxy, and the requests it received. `names` replace the DNS that only the proxy has."""

    names: dict[str, tuple[str, int]] = field(default_factory=dict)
    credentials: str = ""
    port: int = 0
    lines: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, url, _ = head.splitlines()[0].split()
            self.lines.append(f"{method} {url}")
            basic = base64.b64encode(self.credentials.encode()).decode()
            if self.credentials and f"Proxy-Authorization: Basic {basic}" not in head:
                writer.write(
                    b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
                )
                await writer.drain()
                return
            parts = urlsplit(url if "://" in url else f"//{url}")
            assert parts.hostname is not None
            at = self.names.get(parts.hostname, (parts.hostname, parts.port or 80))
            inner, outer = await asyncio.open_connection(*at)
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                outer.write(head.replace(url, parts.path or "/", 1).encode("latin-1"))
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, outer), name="up")
                group.create_task(_pump(inner, writer), name="down")
        except* (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def forward_proxy(
    credentials: str = "", **names: tuple[str, int]
) -> AsyncIterator[ForwardProxy]:
    """Run a proxy. In `names` an underscore stands for a dot."""
    known = {name.replace("_", "."): at for name, at in names.items()}
    proxy = ForwardProxy(known, credentials)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
