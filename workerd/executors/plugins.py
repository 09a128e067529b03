"""Plug-in executors: the entry points of `schedd.executors` in this worker's packages.

    plugin: {executor: sqlite, config: {…}}  ─→ action "plugin/sqlite" ─→ config fits ─→ its `run`

Invariants
- Plug-ins run as handlers do, on the loop or in a thread. An exception is the run's outcome.
- If a plug-in can't be loaded, the worker doesn't start: runs would wait for it silently.
- If a plug-in doesn't close, the others are closed nevertheless and the worker ends.
- Configs are checked when a run starts, not where jobs are stored: only the plug-in knows their
  type.
"""

import asyncio
import inspect
import logging
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from schedclient.executors import GROUP, Executor
from schedkit.errors import Misconfigured
from schedproto.v1 import worker_service_pb2 as pb
from workerd import messages
from workerd.executors.base import ActionExecutor, StartedBatch
from workerd.executors.handlers.attempt_call import CalledFunction
from workerd.executors.handlers.payload_types import fit_of
from workerd.executors.python import HandlerCaller

log = logging.getLogger(__name__)

CLOSE_WITHIN: Final = 5.0
"""Seconds for all plug-ins to close."""
PREFIX: Final = "plugin/"
"""Prefix of plug-in names in the worker's list of actions."""
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")


class PluginExecutor(ActionExecutor):
    def __init__(self, executor: Executor, caller: HandlerCaller) -> None:
        """Raises TypeError: an annotation of the plug-in isn't a valid type."""
        self.executor = executor
        self._caller = caller
        self._config = fit_of(executor.run, 0, "config")
        self._payload = fit_of(executor.run, 1)

    def runs_many(self, common: pb.Assignment) -> bool:
        del common
        return True

    def begin(self, batch: StartedBatch, places: Sequence[int]) -> None:
        given, executor = batch.assigned.common.plugin, self.executor
        config = messages.content_of(given.config)
        target = CalledFunction(
            given.executor, executor.run, self._payload, [(self._config, config)], executor.check
        )
        loop = inspect.iscoroutinefunction(executor.run)
        self._caller.begin(target, batch, places, loop=loop)

    async def close(self) -> None:
        await self._caller.loops.await_there(self.executor.close)


def installed_plugins() -> Mapping[str, EntryPoint]:
    """Return the installed plug-ins, by name. Raises Misconfigured: two have the same name, or a
    name isn't valid.
    """
    named: dict[str, EntryPoint] = {}
    for each in entry_points(group=GROUP):
        if not _NAME.fullmatch(each.name):
            raise Misconfigured(
                f"executors: the plug-in name {each.name!r} isn't valid: rename it, so that it"
                f" matches the pattern {_NAME.pattern}"
            )
        if named.get(each.name, each) != each:
            values = f"{named[each.name].value} and {each.value}"
            raise Misconfigured(
                f"executors: two plug-ins have the name {each.name!r}: {values}; uninstall one"
            )
        named[each.name] = each
    return named


def loaded(points: Mapping[str, EntryPoint], caller: HandlerCaller) -> Mapping[str, PluginExecutor]:
    """Return an executor for each plug-in, by its action. Raises Misconfigured: a plug-in can't be
    imported or created, or isn't an executor.
    """
    return {f"{PREFIX}{name}": _loaded(name, point, caller) for name, point in points.items()}


async def close(plugins: Mapping[str, PluginExecutor]) -> None:
    """Close all plug-ins concurrently, within `CLOSE_WITHIN`, independently of each other. Plug-ins
    that block and ignore their cancel are abandoned (`app`).
    """
    closing = [
        asyncio.create_task(_closed(*each), name=f"close {each[0]}") for each in plugins.items()
    ]
    if not closing:
        return
    _, late = await asyncio.wait(closing, timeout=CLOSE_WITHIN)
    for each in late:
        log.warning("%s timed out after %g s", each.get_name(), CLOSE_WITHIN)
        each.cancel()


async def _closed(action: str, plugin: PluginExecutor) -> None:
    try:
        await plugin.close()
    except asyncio.CancelledError:
        raise
    except BaseException:  # the others are closed even after a SystemExit
        log.exception("closing the executor of %s failed", action)


def _loaded(name: str, point: EntryPoint, caller: HandlerCaller) -> PluginExecutor:
    try:
        executor = point.load()()
        if not isinstance(executor, Executor):
            raise TypeError(f"{executor!r} isn't a schedclient.executors.Executor")
        return PluginExecutor(executor, caller)
    except (Exception, SystemExit) as error:  # foreign code may raise anything
        raise Misconfigured(
            f"executors: the plug-in {name!r} ({point.value}) can't be loaded:"
            f" {type(error).__name__}: {error}; repair or uninstall it"
        ) from error
