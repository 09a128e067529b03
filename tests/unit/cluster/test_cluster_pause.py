"""Cluster pause: reads of the pauses, and the notifications of changes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from schedd.cluster.cluster_pause import ClusterPause
from schedd.core.events import ClusterPauseChanged, Event
from schedd.core.runs.model import AuditRecord
from schedd.core.timers.cluster_pauses import NO_PAUSES, Pause, Pauses
from schedd.store.cluster.cluster_pauses import PauseStore
from support.fake_of import fake_of
from support.runs import NOW

PAUSED = Pauses(1, (Pause(NOW, "ops", "disks"),))
RESUMED = Pauses(2, (Pause(NOW, "ops", "disks", NOW),))

Entry = Callable[[Pauses, Pauses], AuditRecord]


@fake_of(PauseStore)
class Rows:
    """The row as the test sets it."""

    now: Pauses = NO_PAUSES

    async def read(self, known: Pauses = NO_PAUSES) -> Pauses:
        return self.now

    async def present(self) -> Pause | None:
        return self.now.present

    async def pause(self, by: str, note: str, entry: Entry) -> Pauses:
        raise AssertionError("the cluster pause only reads")

    async def resume(self, catch_up: bool | None, since: datetime | None, entry: Entry) -> Pauses:
        raise AssertionError("the cluster pause only reads")


async def test_a_pause_and_a_resume_are_each_reported_once() -> None:
    rows, events, notified = Rows(), list[Event](), list[bool]()
    cluster_pause = ClusterPause(rows, events.append)
    cluster_pause.on_change(lambda: notified.append(cluster_pause.is_paused))

    for now in (NO_PAUSES, PAUSED, PAUSED, RESUMED, RESUMED):
        rows.now = now
        await cluster_pause.step()

    assert notified == [True, False]
    assert events == [ClusterPauseChanged("ops", "disks"), ClusterPauseChanged(None)]


async def test_a_pause_and_a_resume_between_two_reads_are_reported() -> None:
    """The run index was computed without them."""
    rows, events, notified = Rows(), list[Event](), list[bool]()
    cluster_pause = ClusterPause(rows, events.append)
    cluster_pause.on_change(lambda: notified.append(cluster_pause.is_paused))
    rows.now = RESUMED
    await cluster_pause.step()
    assert notified == [False]
    assert events == [], "the pause itself was never reported"
