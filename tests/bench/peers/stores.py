"""Where jobs lie: a server for one drain alone, on loopback, which says how durable it is.

PostgreSQL is that of `schedctl dev`, settings and all, as schedd's own is in the same run. Redis
appends each write to its file (`appendonly yes`), and syncs it each second, as BullMQ's page on
production wants it, or before it answers (`always`), which is what PostgreSQL does.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import psycopg2

from bench.peers.errors import Failed, LeftOut
from schedctl.dev.errors import MissingProgram
from schedctl.dev.servers import postgres
from schedctl.dev.servers.processes import HOST, end, reserve, spawn, tail, wait_for
from support.postgres import ScratchServer, private_postgres

DURABLE: Final = {
    **postgres.SETTINGS,
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
}
_SHOWN: Final = ("fsync", "synchronous_commit", "full_page_writes")
Rows = list[tuple[Any, ...]]


class Store(Protocol):
    """A server's address, and answers to a question of its own language that is a number."""

    @property
    def url(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def reported(self) -> Mapping[str, str]: ...

    def count(self, question: str) -> int:
        """The number that it answers."""


@dataclass(frozen=True, slots=True)
class Postgres:
    """Asked in SQL, as its superuser: no timeout of schedd's role ends a peer's statement."""

    server: ScratchServer

    @property
    def url(self) -> str:
        """Its database `peers`."""
        return postgres.dsn(self.server.port, database="peers", role=postgres.ADMIN)

    @property
    def port(self) -> int:
        """On loopback."""
        return self.server.port

    @property
    def reported(self) -> Mapping[str, str]:
        """Return its settings as it reports them, not as they were set."""
        return said_by_postgres(self.execute)

    def count(self, question: str) -> int:
        """Of a SELECT of one number."""
        return int(self.execute(question)[0][0])

    def execute(self, statement: str) -> Rows:
        """Any statement."""
        try:
            return self.server.execute(statement, self.url)
        except psycopg2.Error as error:
            raise Failed(f"PostgreSQL: {error}".strip()) from error


@dataclass(frozen=True, slots=True)
class Redis:
    """Asked by one command in a line; of an array the length is the answer."""

    port: int

    @property
    def url(self) -> str:
        """Its database 0."""
        return f"redis://{HOST}:{self.port}/0"

    @property
    def reported(self) -> Mapping[str, str]:
        """Return its version and settings, as it reports them."""
        about = dict(
            line.split(":", 1) for line in self._ask("INFO server").splitlines() if ":" in line
        )
        settings = {
            name: self._ask(f"CONFIG GET {name}").split()[-2]  # before QUIT's +OK
            for name in ("appendonly", "appendfsync")
        }
        return {"redis": about["redis_version"], **settings}

    def answers(self) -> bool:
        """Whether it is ready."""
        try:
            return self._ask("PING").startswith("+PONG")
        except OSError:
            return False

    def count(self, question: str) -> int:
        """`LLEN key`, `KEYS pattern` …"""
        try:
            answer = self._ask(question, lines=1).strip()
        except OSError as error:
            raise Failed(f"Redis: {error}") from error
        if answer[:1] not in (":", "*"):
            raise Failed(f"Redis: {question}: {answer}")
        return int(answer[1:])

    def _ask(self, command: str, lines: int | None = None) -> str:
        """Return the answer to an inline command: so many lines of it, or all until it hangs up."""
        with socket.create_connection((HOST, self.port), timeout=10) as connection:
            connection.sendall(f"{command}\r\nQUIT\r\n".encode())
            with connection.makefile("r", encoding="utf-8", newline="\r\n") as answer:
                return (
                    answer.read()
                    if lines is None
                    else "".join(answer.readline() for _ in range(lines))
                )


def said_by_postgres(execute: Callable[[str], Rows]) -> Mapping[str, str]:
    """Its version and its durability, as it tells them itself."""
    shown = {name: execute(f"SHOW {name}")[0][0] for name in ("server_version", *_SHOWN)}
    return {"postgresql": shown.pop("server_version").split()[0], **shown}


@contextmanager
def durable_postgres() -> Iterator[Postgres]:
    """A new server with an empty database; nothing of it stays."""
    try:
        with private_postgres(**DURABLE) as server:
            server.execute('CREATE DATABASE "peers"')
            yield Postgres(server)
    except MissingProgram as error:
        raise LeftOut(error.what) from error


@contextmanager
def durable_redis(fsync: str) -> Iterator[Redis]:
    """A new server whose `appendfsync` is `fsync`; nothing of it stays.

    Raises:
        LeftOut: there is no `redis-server`, in $REDIS_BIN or in PATH.
    """
    program = redis_program()
    [port] = reserve(1)
    with tempfile.TemporaryDirectory(prefix="schedd-redis-") as name:
        folder = Path(name)
        settings = {
            "bind": HOST,
            "port": str(port),
            "dir": name,
            "save": "",
            "appendonly": "yes",
            "appendfsync": fsync,
            "maxmemory-policy": "noeviction",
        }
        words = [word for key, value in settings.items() for word in (f"--{key}", value)]
        process = spawn([program, *words], log=folder / "log", cwd=folder)
        try:
            server = Redis(port)
            if not wait_for(server.answers, 10.0):
                raise LeftOut(f"redis-server didn't start: {tail(folder / 'log', 1).strip()}")
            yield server
        finally:
            end([process])


def redis_program() -> str:
    """Where it is.

    Raises:
        LeftOut: nowhere.
    """
    found = shutil.which(os.environ.get("REDIS_BIN") or "redis-server")
    if found is None:
        raise LeftOut("no redis-server in $REDIS_BIN or PATH; apt-get install redis-server")
    return found
