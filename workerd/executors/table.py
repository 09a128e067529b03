"""The executors of this worker, by the name of their action on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Self

from schedclient.handlers import registered
from schedkit.egress.policy import Egress
from workerd.config import WorkerConfig
from workerd.core.outcome import AttemptOutcome, given_back
from workerd.core.resource_limits import at_limit
from workerd.executors import plugins
from workerd.executors.base import ActionExecutor, AttemptStart, Stop
from workerd.executors.grpc import GrpcExecutor
from workerd.executors.handlers.handler_loops import HandlerLoops
from workerd.executors.handlers.handler_subprocess import SubprocessHandlers
from workerd.executors.python import HandlerCaller, PythonExecutor, import_all
from workerd.executors.shell import ShellExecutor
from workerd.metrics import WorkerMetrics
from workerd.process.process_supervisor import ProcessSupervisor

if TYPE_CHECKING:
    from workerd.executors.http import HttpExecutor


class LazyHttpExecutor(ActionExecutor):
    """The executor of HTTP jobs. Its module is imported in a thread for the first job, because its
    client would slow down every start of a worker.
    """

    def __init__(self, egress: Egress, secrets: Sequence[Path]) -> None:
        self._egress, self._secrets = egress, secrets
        self._opened: HttpExecutor | None = None

    async def run(self, attempt: AttemptStart, stop: Stop) -> AttemptOutcome:
        if self._opened is None:
            try:
                http = await asyncio.to_thread(import_module, "workerd.executors.http")
            except OSError as error:
                if at_limit(error):
                    return given_back(error.strerror or str(error))
                raise
            self._opened = self._opened or http.HttpExecutor(self._egress, secrets=self._secrets)
        return await self._opened.run(attempt, stop)

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()


class ExecutorTable:
    """All executors. A context manager that closes them at its end."""

    def __init__(
        self,
        config: WorkerConfig,
        supervisor: ProcessSupervisor,
        scratch: Path,
        points: Mapping[str, EntryPoint],
        metrics: WorkerMetrics,
    ) -> None:
        """`points`: plug-ins. Raises Misconfigured: a module of handlers, or a plug-in, can't be
        imported.
        """
        secrets = [*map(Path, config.secrets)]
        self.loops = HandlerLoops(metrics)
        caller = HandlerCaller(self.loops)
        subprocesses = SubprocessHandlers(supervisor, config.handlers, secrets)
        self._http = LazyHttpExecutor(config.egress, secrets)
        self._grpc = GrpcExecutor(config.egress)
        import_all(config.handlers)
        self.handlers: Sequence[str] = sorted(registered)
        python = PythonExecutor(registered, subprocesses, caller)
        self._plugged = plugins.loaded(points, caller)
        self.by_action: Mapping[str, ActionExecutor] = {
            "shell": ShellExecutor(supervisor, scratch, secrets),
            "http": self._http,
            "grpc": self._grpc,
            "python": python,
            **self._plugged,
        }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()
        await self._grpc.close()
        await plugins.close(self._plugged)
        await self.loops.close()
