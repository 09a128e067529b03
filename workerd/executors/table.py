"""The executors that this worker has, by the name of their action on the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from types import TracebackType
from typing import Self

from workerd.config import Config
from workerd.executors import plugins
from workerd.executors.base import Executor
from workerd.executors.grpc import Grpc
from workerd.executors.handlers.handler_loops import HandlerLoops
from workerd.executors.handlers.handler_subprocess import Apart
from workerd.executors.http import Http
from workerd.executors.plugins import Plugin
from workerd.executors.python import Caller, Python
from workerd.executors.shell import Shell
from workerd.metrics import Metrics
from workerd.process.process_supervisor import Sessions


class Table:
    """Use as a context: what executors hold open is closed at its end."""

    def __init__(
        self,
        shell: Shell,
        http: Http,
        grpc: Grpc,
        python: Python,
        plugged: Mapping[str, Plugin],
        loops: HandlerLoops,
    ) -> None:
        self.loops = loops
        self.by_action: Mapping[str, Executor] = {
            "shell": shell,
            "http": http,
            "grpc": grpc,
            "python": python,
            **plugged,
        }
        self.handlers: Sequence[str] = python.names
        self._http, self._grpc, self._plugged = http, grpc, plugged

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
        await plugins.close(self._plugged)
        await self.loops.close()


def executors(
    config: Config,
    sessions: Sessions,
    scratch: Path,
    points: Mapping[str, EntryPoint],
    metrics: Metrics,
) -> Table:
    """All of them; `points` are those of others.

    Raises:
        Misconfigured: a module of handlers, or an executor of others, can't be imported.
    """
    secrets = [*map(Path, config.secrets)]
    loops = HandlerLoops(metrics)
    caller, apart = Caller(loops), Apart(sessions, config.handlers, secrets)
    return Table(
        Shell(sessions, scratch, secrets),
        Http(config.egress, secrets=secrets),
        Grpc(config.egress),
        Python.of_modules(config.handlers, apart, caller),
        plugins.loaded(points, caller),
        loops,
    )
