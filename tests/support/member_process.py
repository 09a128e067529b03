"""A member as a process of its own: killed, stopped and asked to drain by the test.

    with MemberProcesses(etcd.endpoints, dsn, folder) as members:
        members.start("a")
        members["a"].send(signal.SIGSTOP)

Run as a program it is that member: real etcd, real PostgreSQL, no loops but its own.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from schedctl.dev.servers.processes import DevProcess, end
from support import fork_server

TESTS = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a member process."""

    name: str
    endpoints: Sequence[str]
    dsn: str
    ttl: int
    root: str
    weight: int = 100


class MemberProcesses:
    """Member processes by name; all are ended with the block."""

    def __init__(
        self, endpoints: Sequence[str], dsn: str, folder: Path, *, root: str, ttl: int = 3
    ) -> None:
        self._endpoints = endpoints
        self._dsn = dsn
        self._folder = folder
        self._root = root
        self._ttl = ttl
        self._processes: dict[str, DevProcess] = {}

    def __getitem__(self, name: str) -> DevProcess:
        return self._processes[name]

    def start(self, name: str, *, identity: str | None = None) -> DevProcess:
        """Start one; `identity`: the member's name, if it isn't the process's."""
        settings = Settings(
            identity or name, tuple(self._endpoints), self._dsn, self._ttl, self._root
        )
        argv = [sys.executable, "-m", "support.member_process", json.dumps(asdict(settings))]
        self._processes[name] = fork_server.spawn(argv, log=self.log(name), cwd=TESTS)
        return self._processes[name]

    def log(self, name: str) -> Path:
        """Return the path of its log."""
        return self._folder / f"{name}.log"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end(list(self._processes.values()))
        if kind is not None:
            for name in self._processes:
                print(f"── {name} ──\n{self.log(name).read_text()}")


async def _live(settings: Settings) -> None:
    from schedd.cluster.member import MemberIdentity, MemberLifecycle
    from schedd.etcd.access import EtcdAccess
    from schedd.etcd.client import connect
    from schedd.etcd.lease_keeper import keep_lease
    from schedd.runtime.cluster_clock import DatabaseClock
    from schedd.store.connection.database import Database
    from schedd.store.postgres import Stores

    draining = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, draining.set)
    access, deadline = EtcdAccess(tuple(settings.endpoints)), settings.ttl / 6
    store = Stores(Database(settings.dsn))
    async with connect(access, deadline=deadline, root=settings.root) as client:
        member = MemberLifecycle(
            MemberIdentity(settings.name, "127.0.0.1:1", "127.0.0.1:2", settings.weight),
            coordination=client,
            keep_lease=lambda: keep_lease(client, access, ttl=settings.ttl, deadline=deadline),
            store=store.membership,
            recovery=store.recovery,
            clock=DatabaseClock(
                store.membership.probe,
                reconnect=store.database.reconnect,
                lineage=store.database.lineage,
                follow=store.database.follow,
            ),
            lanes=store.database.lanes,
        )
        await member.run(draining)
    store.database.close()


if __name__ == "__main__":
    import logging

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s"
    )
    asyncio.run(_live(Settings(**json.loads(sys.argv[1]))))
