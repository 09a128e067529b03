"""A proxy of the fault harness before a server on loopback, for tests without a world."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from faults.nemesis.proxies import COMMAND, ENVIRONMENT
from faults.nemesis.proxy_process import Effects
from schedctl.dev.servers import processes
from support.wait import wait_until_async


@dataclass(frozen=True, slots=True)
class Proxied:
    """Listens on `port`; plain until it gets an order (see `faults.nemesis.proxy_process`)."""

    port: int
    orders: Path
    reports: Path

    async def order(self, way: str, *, seconds: float = 0.0, size: int = 1) -> None:
        """Returns when it is in force."""
        fresh = self.orders.with_suffix(".new")
        fresh.write_text(json.dumps({"way": way, "seconds": seconds, "bytes": size}))
        fresh.replace(self.orders)
        await wait_until_async(lambda: self.report().way == way, 5, "the order to be read")

    def report(self) -> Effects:
        """Return the effects of the current order so far."""
        return Effects(**json.loads(self.reports.read_text()))


@asynccontextmanager
async def proxied(folder: Path, to: tuple[str, int]) -> AsyncIterator[Proxied]:
    """A process of its own, with its files in `folder`, before a server that speaks HTTP/2."""
    [port] = processes.reserve(1)
    proxy = Proxied(port, folder / "orders.json", folder / "report.json")
    settings = {
        "listen": ["127.0.0.1", port],
        "to": list(to),
        "protocol": "http2",
        "orders": str(proxy.orders),
        "report": str(proxy.reports),
    }
    process = await asyncio.create_subprocess_exec(*COMMAND, json.dumps(settings), env=ENVIRONMENT)
    try:
        await wait_until_async(proxy.reports.exists, 10, "the proxy to listen")
        yield proxy
    finally:
        process.kill()
        await process.wait()
