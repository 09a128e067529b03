"""The cluster pause, as far as this member knows it.

    row ──read each second and at each wake-up──→ pauses ──changed──→ wake fire and dispatch

This copy only saves work and answers questions. The fire and assign statements check the row
(docs/protocol-rules.md, P3.11). It exists as long as the daemon, with or without a tenure.
"""

from collections.abc import Callable
from typing import Final

from schedd.core.events import ClusterPauseChanged, Emit
from schedd.core.timers.cluster_pauses import NO_PAUSES, Pauses
from schedd.store.cluster.cluster_pauses import PauseStore
from schedkit.tasks import Loop

READ_EVERY: Final = 1.0


class ClusterPause:
    """The cluster pause, read at intervals. `pauses`: the last reading."""

    def __init__(self, store: PauseStore, emit: Emit) -> None:
        self._store = store
        self._emit = emit
        self.pauses: Pauses = NO_PAUSES
        self._on_change: Callable[[], None] = lambda: None
        self.loop = Loop("cluster pause", self.step, interval=READ_EVERY)

    @property
    def is_paused(self) -> bool:
        return self.pauses.present is not None

    def read_soon(self) -> None:
        self.loop.wake()

    def on_change(self, notify: Callable[[], None]) -> None:
        self._on_change = notify

    async def step(self) -> None:
        known, self.pauses = self.pauses, await self._store.read(self.pauses)
        if known.switched != self.pauses.switched:
            present = self.pauses.present
            if present is not None:
                self._emit(ClusterPauseChanged(present.by, present.note))
            elif known.present is not None:
                self._emit(ClusterPauseChanged(None))
            self._on_change()
