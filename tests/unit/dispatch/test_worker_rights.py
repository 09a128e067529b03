"""A worker for some namespaces gets runs of no other, whichever moment it comes at with less."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from schedd.core.dispatch.dispatched_runs import DispatchedRuns
from schedd.core.dispatch.placement import able, need_of
from schedd.core.ids import JobId
from schedd.core.runs.model import Incarnation, LiveRun
from schedd.core.runs.records import Unstarted
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.results.result_collector import ResultCollector
from schedd.runtime.definition_texts import CachedDefinition
from support.dispatching import SHELL, World, of
from support.runs import NOW, RecordingLine, SetClock, run, running, worker

BILLING = frozenset({"billing"})


def less(one: Incarnation) -> Incarnation:
    """The same incarnation, with a certificate for another namespace alone."""
    return replace(one, namespaces=BILLING)


def test_slots_offered_before_a_reattach_arent_offered_any_more() -> None:
    workers = WorkerRegistry(SetClock(), lambda _event: None)
    workers.granted(workers.attach(worker(), RecordingLine()), 2, 0)
    assert workers.offers().slots == 2
    workers.granted(workers.attach(less(worker()), RecordingLine()), 2, 0)
    need = need_of(SHELL, run(1))
    assert not able(less(worker()), need)
    assert workers.still_offered().choose(run(1).job_id, SHELL, need, 0.0) is None


async def test_a_worker_that_reattaches_with_fewer_rights_isnt_pushed_a_run_being_assigned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, line = World(), RecordingLine()
    back: list[Unstarted] = []

    async def give_back(_claim: object, unstarted: Sequence[Unstarted]) -> list[LiveRun]:
        back.extend(unstarted)
        return []

    monkeypatch.setattr(world.rows, "give_back", give_back, raising=False)
    world.attach(worker(), grant=2)

    def reattach() -> None:
        world.rows.meanwhile = lambda: None
        world.workers.attach(less(worker()), line)

    world.rows.meanwhile = reattach
    world.run_index.put_runs([of(1, 1)], NOW)
    await world.run_until_idle()
    assert line.assigned == []
    assert [one.key for one in back] == [run(1).key]


async def test_a_worker_that_reattaches_with_fewer_rights_isnt_chosen_during_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, line = World(), RecordingLine()
    world.attach(worker(), grant=2)
    newest = world.definitions.newest
    came: list[Incarnation] = []

    async def reading(jobs: Iterable[JobId]) -> dict[JobId, CachedDefinition]:
        if not came:
            came.append(less(worker()))
            world.workers.granted(world.workers.attach(came[0], line), 2, 0)
        return await newest(jobs)

    monkeypatch.setattr(world.definitions, "newest", reading)
    world.run_index.put_runs([of(1, 1)], NOW)
    await world.run_until_idle()
    assert came
    assert line.assigned == []


def test_a_run_of_another_worker_is_recognized_by_its_assignment() -> None:
    class Board:
        running = DispatchedRuns()

    theirs = running(1, worker())
    run_index = Board()
    run_index.running.add(theirs)

    class Judge(ResultCollector):
        def __init__(self) -> None:
            self.run_index = run_index  # type: ignore[assignment]  # what is asked of it

    assert theirs.incarnation is not None
    judge, other = Judge(), replace(worker(), id=run(9).key.run_id)  # type: ignore[arg-type]  # an id
    assert not judge.is_anothers(theirs.key, theirs.token, theirs.incarnation)
    assert judge.is_anothers(theirs.key, theirs.token, other.id)
    assert not judge.is_anothers(run(2).key, theirs.token, other.id), "nothing is known of it"
