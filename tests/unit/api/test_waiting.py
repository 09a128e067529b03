"""Waiting runs that no worker can execute, found from values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import cast
from uuid import UUID

from schedd.api.runs.waiting_runs import WaitSummary, judged, read_wait_summary
from schedd.api.services import Services
from schedd.core.cluster.membership import EMPTY_VIEW, ClusterView
from schedd.core.ids import JobId
from schedd.core.runs.model import Incarnation
from schedd.core.runs.records import Drain, StoredDefinition, WaitingRuns, WorkerView
from schedproto.v1 import common_pb2, job_pb2
from support.store import incarnation

NOW = datetime(2026, 3, 4, 12, 0, 5, tzinfo=UTC)
OLD = NOW - timedelta(minutes=27)


def stored(at: int, name: str, namespace: str = "default", **spec: object) -> StoredDefinition:
    made = job_pb2.Job(name=name, on_demand=True, **spec)
    made.shell.argv.append("true")
    return StoredDefinition(
        JobId(UUID(int=at)), 1, namespace, name, made.SerializeToString(), paused=False
    )


def wait(at: int, runs: int = 1, since: datetime = OLD, target: str | None = None) -> WaitingRuns:
    return WaitingRuns(JobId(UUID(int=at)), target, runs, since)


PICKY = stored(1, "picky", require=[common_pb2.LabelMatch(key="disk", any_of=["ssd"])])
W1 = incarnation(worker="w1", actions=("shell",), namespaces=None)
W7 = incarnation(worker="w7", actions=("shell",), namespaces=frozenset({"billing"}))


class World:
    """A job of which a run waits, and the worker that is attached."""

    def __init__(self, attached: WorkerView) -> None:
        self.attached = attached
        self.store = self.worker_store = self.lines = self.cluster = self

    async def waits(self) -> list[WaitingRuns]:
        return [wait(1)]

    async def definitions(self, _: object) -> dict[JobId, StoredDefinition]:
        return {(job := stored(1, "etl")).job_id: job}

    async def drains(self) -> list[Drain]:
        return []

    async def incarnations(self, _: object) -> list[Incarnation]:
        return [self.attached.incarnation]

    def workers(self) -> list[WorkerView]:
        return [self.attached]

    async def views(self, incarnations: Sequence[Incarnation]) -> list[WorkerView]:
        assert list(incarnations) == [self.attached.incarnation]
        return [self.attached]

    def view(self) -> ClusterView:
        return EMPTY_VIEW

    def services(self) -> Services:
        return cast("Services", self)


def test_a_run_that_a_worker_can_execute_is_not_stuck() -> None:
    assert judged([wait(1)], [stored(1, "etl")], [W1]) == WaitSummary(since=OLD)


def test_a_run_that_no_worker_may_execute_is_stuck() -> None:
    jobs = [stored(1, "etl"), stored(2, "bill", "billing")]
    found = judged([wait(1, 17), wait(2)], jobs, [W7])
    assert found == WaitSummary(17, (("default", "etl"),), since=OLD)
    assert judged([wait(2)], jobs, []) == WaitSummary(1, (("billing", "bill"),))


async def test_a_run_for_a_worker_that_takes_no_new_runs_is_held_up() -> None:
    view = WorkerView(W1, True, False, free=1, running=0, lease_age=0.0)
    full = replace(view, refusal_reason="spool rejects writes: No space left on device")
    assert await read_wait_summary(World(view).services()) == WaitSummary(since=OLD)
    held_up = WaitSummary(held_up=WaitSummary(1, (("default", "etl"),)))
    for refuses in (full, replace(view, draining=True)):
        assert await read_wait_summary(World(refuses).services()) == held_up


def test_a_run_with_a_label_that_no_worker_has_is_stuck() -> None:
    assert judged([wait(1)], [PICKY], [W1]) == WaitSummary(1, (("default", "picky"),))
    fast = incarnation(worker="w2", actions=("shell",), labels={"disk": "ssd"})
    assert judged([wait(1)], [PICKY], [W1, fast]).unrunnable == 0


def test_a_run_for_a_missing_worker_is_stuck() -> None:
    found = judged([wait(1, target="w2"), wait(1, target="w1")], [stored(1, "all")], [W1])
    assert found == WaitSummary(1, (("default", "all"),), since=OLD)


def test_a_run_blocked_by_its_own_job_is_not_old() -> None:
    job = stored(1, "etl", overlap=job_pb2.OVERLAP_BUFFER_ALL)
    assert judged([wait(1)], [job], [W1]) == WaitSummary()


def test_a_job_removed_meanwhile_is_not_reported() -> None:
    assert judged([wait(1)], [], [W1]) == WaitSummary()


def test_a_caller_of_one_namespace_sees_no_names_of_others() -> None:
    found = WaitSummary(3, (("default", "etl"), ("billing", "bill")), since=OLD)
    assert found.visible_in("billing") == WaitSummary(
        3, (("billing", "bill"),), elsewhere=True, since=OLD
    )
    held_up = WaitSummary(held_up=found).visible_in("ops").held_up
    assert held_up == WaitSummary(3, (), elsewhere=True, since=OLD)
    assert found.visible_in("ops") == WaitSummary(3, (), elsewhere=True, since=OLD)
    assert WaitSummary(1, (("ops", "a"),)).visible_in("ops") == WaitSummary(1, (("ops", "a"),))
