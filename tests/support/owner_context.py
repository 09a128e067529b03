"""The context of an owner in tests, with the parts that a test names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from schedd.cluster.cluster_pause import ClusterPause
from schedd.cluster.owner_transactions import Transactor
from schedd.core.events import Event
from schedd.dispatch.owner_context import OwnerContext
from schedd.dispatch.run_index import RunIndex
from support.runs import SetClock


def owner_context(
    run_index: RunIndex,
    definition_cache: Any = None,
    *,
    workers: Any = None,
    store: Any = None,
    transactor: Transactor | None = None,
    clock: Any = None,
    cluster_pause: ClusterPause | None = None,
    wake_ups: Any = None,
    emit: Callable[[Event], object] = lambda _event: None,
) -> OwnerContext:
    """Return a context whose lease is trusted and whose cluster isn't paused; other parts that the
    test doesn't name don't exist.
    """
    pauses: Any = None
    return OwnerContext(
        run_index,
        definition_cache,
        workers,
        store,
        transactor or Transactor(run_index.ownership, lambda: True, lambda _event: None),
        clock or SetClock(),
        cluster_pause or ClusterPause(pauses, emit),
        wake_ups,
        emit,
    )
