"""Executors of others: each entry point of `schedd.executors` that this worker's packages have.

    plugin: {executor: sqlite, config: {…}}  ─→ action "plugin/sqlite" ─→ config fits ─→ its `run`

Invariants
- They run as handlers do, on the loop or in a thread; what one raises is its own run's outcome.
- One that can't be loaded keeps the worker from starting: runs would wait for it without a word.
- However one closes, or doesn't, the others are closed and the worker ends.
- What a config may say is the plug-in's to know: it is checked here, not where jobs are stored.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from schedclient.executors import GROUP, Executor
from schedkit.errors import Misconfigured
from schedproto.v1 import worker_service_pb2 as pb
from workerd.core.outcome import AttemptOutcome
from workerd.executors.base import AttemptStart, Stop, content_of
from workerd.executors.handlers.attempt_call import HandlerCall
from workerd.executors.handlers.payload_types import fit_of
from workerd.executors.python import HandlerCaller

log = logging.getLogger(__name__)

CLOSE_WITHIN: Final = 5.0
"""Seconds."""
PREFIX: Final = "plugin/"
"""Before its name, in what a worker says that it can do."""
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")


class PluginExecutor:
    """One of them, as an executor of this worker."""

    def __init__(self, executor: Executor, caller: HandlerCaller) -> None:
        """Raises TypeError: by its annotations nothing can be read."""
        self.executor = executor
        self._caller = caller
        self._config = fit_of(executor.run, 0, "config")
        self._payload = fit_of(executor.run, 1)

    def objection(self, assignment: pb.Assignment) -> str:
        """It can do what it is told, as far as can be seen here."""
        del assignment
        return ""

    async def run(self, attempt: AttemptStart, stop: Stop) -> AttemptOutcome:
        """Have it carry out."""
        given = attempt.assignment.plugin
        arguments = [
            (self._config, content_of(given.config)),
            (self._payload, attempt.content),
        ]
        executor = self.executor
        work = HandlerCall(attempt, given.executor, executor.run, arguments, executor.check)
        loop = inspect.iscoroutinefunction(executor.run)
        return await self._caller.call(work, attempt, stop, loop=loop)

    async def close(self) -> None:
        """Let it close what it holds, where its coroutines ran."""
        await self._caller.await_there(self.executor.close)


def found() -> Mapping[str, EntryPoint]:
    """Those that are installed, by name.

    Raises:
        Misconfigured: two have one name, or a name can't be one.
    """
    named: dict[str, EntryPoint] = {}
    for each in entry_points(group=GROUP):
        if not _NAME.fullmatch(each.name):
            raise Misconfigured(f"executors: {each.name!r} must match {_NAME.pattern}")
        if named.get(each.name, each) != each:
            values = f"{named[each.name].value} and {each.value}"
            raise Misconfigured(f"executors: {each.name!r} is given twice: {values}")
        named[each.name] = each
    return named


def loaded(points: Mapping[str, EntryPoint], caller: HandlerCaller) -> Mapping[str, PluginExecutor]:
    """One of each, by its action.

    Raises:
        Misconfigured: one can't be imported or made, or isn't an executor.
    """
    return {f"{PREFIX}{name}": _loaded(name, point, caller) for name, point in points.items()}


async def close(plugins: Mapping[str, PluginExecutor]) -> None:
    """Each lets go of what it holds, all at once, within `CLOSE_WITHIN`; whatever one does there
    is in nobody's way. (What neither waits nor lets itself be cancelled is left behind: `app`.)
    """
    closing = [
        asyncio.create_task(_closed(*each), name=f"close {each[0]}") for each in plugins.items()
    ]
    if not closing:
        return
    _, late = await asyncio.wait(closing, timeout=CLOSE_WITHIN)
    for each in late:
        log.warning("%s takes longer than %g s: left as it is", each.get_name(), CLOSE_WITHIN)
        each.cancel()


async def _closed(action: str, plugin: PluginExecutor) -> None:
    try:
        await plugin.close()
    except asyncio.CancelledError:
        raise
    except BaseException:  # not even a SystemExit keeps the others from being closed
        log.exception("the executor of %s doesn't close as it should", action)


def _loaded(name: str, point: EntryPoint, caller: HandlerCaller) -> PluginExecutor:
    try:
        executor = point.load()()
        if not isinstance(executor, Executor):
            raise TypeError(f"{executor!r} is no schedclient.executors.Executor")
        return PluginExecutor(executor, caller)
    except (Exception, SystemExit) as error:  # it is another's code and may raise anything
        raise Misconfigured(
            f"executors: can't load {name!r} ({point.value}): {type(error).__name__}: {error}"
        ) from error
