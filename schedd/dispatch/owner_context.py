"""The parts of an owner in one tenure: their base class and their shared context."""

from collections.abc import Callable

from schedd.cluster.cluster_pause import ClusterPause
from schedd.cluster.owner_transactions import Transactor
from schedd.core.events import Emit
from schedd.dispatch.run_index import RunIndex
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.ports import ClusterClock, WakeUps
from schedd.runtime.definition_cache import DefinitionCache
from schedd.store.owner import OwnerStore
from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class OwnerContext:
    run_index: RunIndex
    definition_cache: DefinitionCache
    workers: WorkerRegistry
    store: OwnerStore
    transactor: Transactor
    clock: ClusterClock
    cluster_pause: ClusterPause
    wake_ups: WakeUps
    emit: Emit


class OwnerPart:
    """Base class of an owner's loops and their helpers."""

    def __init__(self, context: OwnerContext) -> None:
        self._run_index = context.run_index
        self._definition_cache = context.definition_cache
        self._workers = context.workers
        self._store = context.store
        self._transactor = context.transactor
        self._clock = context.clock
        self._cluster_pause = context.cluster_pause
        self._wake_ups = context.wake_ups
        self._emit = context.emit
        self._ready: Callable[[], None] = lambda: None

    def on_ready(self, callback: Callable[[], None]) -> None:
        """Call `callback()` when runs became ready."""
        self._ready = callback
