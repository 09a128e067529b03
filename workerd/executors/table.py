"""The executors of this worker, by the name of their action on the wire."""

from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Self

from workerd.config import WorkerConfig
from workerd.executors import plugins
from workerd.executors.base import ActionExecutor
from workerd.executors.grpc import GrpcExecutor
from workerd.executors.handlers.handler_loops import HandlerLoops
from workerd.executors.handlers.handler_subprocess import SubprocessHandlers
from workerd.executors.http import HttpExecutor
from workerd.executors.plugins import PluginExecutor
from workerd.executors.python import HandlerCaller, PythonExecutor
from workerd.executors.shell import ShellExecutor
from workerd.metrics import WorkerMetrics
from workerd.process.process_supervisor import ProcessSupervisor


class ExecutorTable:
    """A context manager that closes the executors at its end."""

    def __init__(
        self,
        shell: ShellExecutor,
        http: HttpExecutor,
        grpc: GrpcExecutor,
        python: PythonExecutor,
        plugged: Mapping[str, PluginExecutor],
        loops: HandlerLoops,
    ) -> None:
        self.loops = loops
        self.by_action: Mapping[str, ActionExecutor] = {
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

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()
        await self._grpc.close()
        await plugins.close(self._plugged)
        await self.loops.close()


def executors(
    config: WorkerConfig,
    supervisor: ProcessSupervisor,
    scratch: Path,
    points: Mapping[str, EntryPoint],
    metrics: WorkerMetrics,
) -> ExecutorTable:
    """Return all executors. `points`: plug-ins.

    Raises:
        Misconfigured: a module of handlers, or a plug-in, can't be imported.
    """
    secrets = [*map(Path, config.secrets)]
    loops = HandlerLoops(metrics)
    caller, subprocesses = (
        HandlerCaller(loops),
        SubprocessHandlers(supervisor, config.handlers, secrets),
    )
    return ExecutorTable(
        ShellExecutor(supervisor, scratch, secrets),
        HttpExecutor(config.egress, secrets=secrets),
        GrpcExecutor(config.egress),
        PythonExecutor.of_modules(config.handlers, subprocesses, caller),
        plugins.loaded(points, caller),
        loops,
    )
