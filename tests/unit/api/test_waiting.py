"""Waiting runs that no worker can execute, found from values."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import cast

from schedd.api.runs.waiting_runs import (
    WaitSummary,
    grouped,
    judged,
    read_wait_summary,
    waiting_for_slots,
)
from schedd.api.services import Services
from schedd.core.cluster.membership import EMPTY_VIEW, ClusterView
from schedd.core.ids import Id, JobId
from schedd.core.runs.model import Incarnation
from schedd.core.runs.pools import PoolKey, PoolUsage
from schedd.core.runs.records import Drain, SlotHolder, StoredDefinition, WaitingRuns, WorkerView
from schedproto.v1 import common_pb2, job_pb2
from support.store import incarnation

NOW = datetime(2026, 3, 4, 12, 0, 5, tzinfo=UTC)
OLD = NOW - timedelta(minutes=27)


def stored(at: int, name: str, namespace: str = "default", **spec: object) -> StoredDefinition:
    made = job_pb2.Job(name=name, on_demand=True, **spec)
    made.shell.argv.append("true")
    return StoredDefinition(
        JobId(Id.from_int(at)), 1, namespace, name, made.SerializeToString(), paused=False
    )


def wait(at: int, runs: int = 1, since: datetime = OLD, target: str | None = None) -> WaitingRuns:
    return WaitingRuns(JobId(Id.from_int(at)), target, runs, since)


PICKY = stored(1, "picky", require=[common_pb2.LabelMatch(key="disk", any_of=["ssd"])])
W1 = incarnation(worker="w1", actions=("shell",), namespaces=None)
W7 = incarnation(worker="w7", actions=("shell",), namespaces=frozenset({"billing"}))


ROOM = PoolUsage(limit=1, rate=None, paused=False, running=0, recent=0)


class World:
    """A job of which a run waits, and the worker that is attached."""

    def __init__(self, attached: WorkerView) -> None:
        self.attached = attached
        self.store = self.worker_store = self.lines = self.cluster = self.clock = self
        self.pools, self.pool = self, ROOM
        self.job = stored(1, "etl")

    async def waits(self) -> list[WaitingRuns]:
        return [wait(1)]

    async def definitions(self, _: object) -> dict[JobId, StoredDefinition]:
        return {self.job.job_id: self.job}

    def now(self) -> datetime:
        return NOW

    async def usage(self, pools: Collection[PoolKey]) -> dict[PoolKey, PoolUsage]:
        return dict.fromkeys(pools, self.pool)

    async def slot_holders(self, workers: Sequence[str]) -> list[SlotHolder]:
        assert workers == ["w1"]
        return [HANG, replace(HANG, name="new", since=NOW)]

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
    view = WorkerView(W1, False, free=1, running=0, lease_age=0.0)
    full = replace(view, refusal_reason="spool rejects writes: No space left on device")
    assert await read_wait_summary(World(view).services()) == WaitSummary(since=OLD)
    held_up = WaitSummary(held_up=WaitSummary(1, (("default", "etl"),)))
    for refuses in (full, replace(view, draining=True)):
        assert await read_wait_summary(World(refuses).services()) == held_up


FULL = WorkerView(replace(W1, slots=4), False, free=0, running=4, lease_age=0.0)
HANG = SlotHolder("w1", "default", "hang", 3, OLD - timedelta(minutes=1))


async def test_a_full_worker_is_found_with_the_runs_that_keep_its_slots() -> None:
    [found] = (await read_wait_summary(World(FULL).services())).full
    assert (found.jobs, found.since) == ((("default", "etl"),), OLD)
    assert (found.workers, found.used, found.slots) == (("w1",), 4, 4)
    assert found.stuck == (HANG,)
    assert found.visible_in("billing").stuck == ()


async def test_a_run_is_not_said_to_wait_for_a_slot_that_is_free_unknown_or_not_its_cause() -> None:
    for other in (
        replace(FULL, free=1),
        replace(FULL, heartbeats_missing=True),
        replace(FULL, silent=99.0),
    ):
        assert (await read_wait_summary(World(other).services())).full == ()
    world = World(FULL)
    world.job = stored(1, "etl", pool="slow")
    assert (await read_wait_summary(world.services())).full
    world.pool = replace(ROOM, running=1)
    assert (await read_wait_summary(world.services())).full == ()


def test_workers_are_grouped_by_the_runs_that_need_them() -> None:
    """Also: a job's runs on several workers are one entry."""
    views = [replace(FULL, incarnation=replace(W1, slots=4, worker=name)) for name in ("w1", "w2")]
    waits = [wait(1), wait(2, since=OLD + timedelta(1)), wait(2, target="w2")]
    jobs = {one.job_id: one for one in (stored(1, "etl"), stored(2, "bill"))}
    holders = [HANG, replace(HANG, worker="w2", runs=4)]
    both, second = grouped([*waiting_for_slots(waits, jobs, views)], holders)
    assert (both.workers, both.used, len(both.jobs)) == (("w1", "w2"), 8, 2)
    assert [one.runs for one in both.holders] == [7]
    assert (second.workers, [one.runs for one in second.holders]) == (("w2",), [4])


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
