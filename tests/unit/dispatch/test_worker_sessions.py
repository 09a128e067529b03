"""A member's memory of lost workers; the rest needs real servers (`worker lives`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from schedd.core.ids import IncarnationId
from schedd.core.runs.model import Incarnation
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.dispatch.workers.worker_sessions import WorkerSessions
from schedd.store.cluster.workers import WorkerStore
from support.fake_of import fake_of
from support.runs import RecordingLine, SetClock, worker


class Rows:
    """Incarnations that were all written off, and leases; `meanwhile` while they are read."""

    def __init__(self, *stored: Incarnation) -> None:
        self.stored = stored
        self.meanwhile: Callable[[], None] = lambda: None
        self.ended: list[IncarnationId] = []

    async def ended_and_drained(
        self, ids: Sequence[IncarnationId]
    ) -> tuple[frozenset[IncarnationId], frozenset[str]]:
        self.meanwhile()
        return frozenset(ids), frozenset()

    async def end(self, worker: str, incarnation: IncarnationId) -> None:
        self.ended.append(incarnation)

    def forget(self, incarnation: IncarnationId) -> None: ...


def greeting(rows: Any, workers: WorkerRegistry) -> WorkerSessions:
    return WorkerSessions(workers, rows, rows, rows, rows)


async def test_a_lost_worker_is_notified_until_its_stream_ends() -> None:
    one, workers = worker(), WorkerRegistry(SetClock(), lambda _event: None)
    rows = Rows(one)
    greets = greeting(rows, workers)
    attached = workers.attach(one, RecordingLine())
    reported: list[bool] = []

    await greets._look_after()
    greets.record_heartbeat(one, 0.0, lambda *, refreshed, lost: reported.append(lost))
    assert reported == [True]
    assert rows.ended == [one.id]

    workers.detach(attached)
    greets.forget_incarnation(one.id)
    assert not greets._lost


async def test_a_worker_whose_stream_ended_during_its_lookup_isnt_kept() -> None:
    one, workers = worker(), WorkerRegistry(SetClock(), lambda _event: None)
    rows = Rows(one)
    greets = greeting(rows, workers)
    attached = workers.attach(one, RecordingLine())

    def ends() -> None:
        workers.detach(attached)
        greets.forget_incarnation(one.id)

    rows.meanwhile = ends
    await greets._look_after()
    assert not greets._lost
    assert rows.ended == [one.id], "its key goes all the same"


async def test_a_worker_whose_row_a_restored_database_lacks_learns_that_it_is_lost() -> None:
    """P2.9: nothing of its life is known any more, so it starts a new one."""
    one, workers = worker(), WorkerRegistry(SetClock(), lambda _event: None)
    rows = Rows()
    greets = greeting(rows, workers)
    workers.attach(one, RecordingLine())
    reported: list[bool] = []

    await greets._look_after()
    greets.record_heartbeat(one, 0.0, lambda *, refreshed, lost: reported.append(lost))
    assert (reported, rows.ended) == ([True], [one.id])


class Refreshing(Rows):
    """Leases of which all are due, and are refreshed."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Sequence[Incarnation]] = []

    def due(self, _incarnation: IncarnationId, _since_refresh: float) -> bool:
        return True

    async def refresh(self, incarnations: Sequence[Incarnation]) -> frozenset[IncarnationId]:
        self.asked.append(incarnations)
        return frozenset(one.id for one in incarnations)


async def test_two_heartbeats_of_one_are_answered_both_and_refresh_it_once() -> None:
    one, leases = worker(), Refreshing()
    greets = greeting(leases, WorkerRegistry(SetClock(), lambda _event: None))
    reported: list[bool] = []
    for _ in range(2):
        greets.record_heartbeat(one, 9.0, lambda *, refreshed, lost: reported.append(refreshed))
    await greets._refresh()
    assert (leases.asked, reported) == ([[one]], [True, True])


@fake_of(WorkerStore)
class Registered(Rows):
    """Incarnations that are there already, for each hello with their ids."""

    looked: int = 0

    async def of_worker(self, worker: str) -> list[Incarnation]:
        return [one for one in self.stored if one.worker == worker]

    async def register(self, incarnation: Incarnation) -> Incarnation:
        return next((one for one in self.stored if one.id == incarnation.id), incarnation)

    async def incarnations(self, ids: Sequence[IncarnationId]) -> list[Incarnation]:
        self.looked += 1
        return [one for one in self.stored if one.id in ids]


async def test_a_hello_with_the_incarnation_of_another_worker_is_rejected() -> None:
    rows = Registered(worker(1, name="w1"))
    turned = await greeting(rows, WorkerRegistry(SetClock(), lambda _event: None)).greet(
        worker(1, name="w2"), []
    )
    assert turned is not None
    assert (turned.status, turned.reason) == ("PERMISSION_DENIED", "ANOTHER_WORKER")
    assert rows.ended == [], "the other's lease stands"


async def test_the_worker_of_an_incarnation_is_looked_up_once_and_an_unknown_one_is_accepted() -> (
    None
):
    rows = Registered(worker(1, name="w1"))
    greets = greeting(rows, WorkerRegistry(SetClock(), lambda _event: None))
    assert [await greets.is_of(name, worker(1).id) for name in ("w1", "w2", "w1")] == [
        True,
        False,
        True,
    ]
    assert rows.looked == 1
    assert await greets.is_of("w2", worker(9).id)
