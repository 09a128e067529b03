"""The executors that this worker has, by the name of their action on the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from workerd.config import Config
from workerd.executors.apart import Apart
from workerd.executors.base import Executor
from workerd.executors.grpc import Grpc
from workerd.executors.http import Http
from workerd.executors.python import Python
from workerd.executors.shell import Shell
from workerd.sessions import Sessions


class Table:
    """Use as a context: what executors hold open is closed at its end."""

    def __init__(self, shell: Shell, http: Http, grpc: Grpc, python: Python) -> None:
        self.by_action: Mapping[str, Executor] = {
            "shell": shell,
            "http": http,
            "grpc": grpc,
            "python": python,
        }
        self.handlers: Sequence[str] = python.names
        self._http, self._grpc = http, grpc

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._http.close()
        await self._grpc.close()


def executors(config: Config, sessions: Sessions, scratch: Path) -> Table:
    """All of them.

    Raises:
        Misconfigured: a module of handlers can't be imported.
    """
    secrets = [*map(Path, config.secrets)]
    return Table(
        Shell(sessions, scratch, secrets),
        Http(allow_loopback=config.allow_loopback, secrets=secrets),
        Grpc(allow_loopback=config.allow_loopback),
        Python.of_modules(config.handlers, Apart(sessions, config.handlers, secrets)),
    )
