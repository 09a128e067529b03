"""Whatever is left in its row: runs go in the order in which they would if all were in memory."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedd.core.dispatch.placement import Need
from schedd.core.dispatch.priority_order import Place, places_of
from schedd.core.dispatch.ready_bucket_ids import line_id_of
from schedd.core.dispatch.ready_queue import ReadyQueue
from schedd.core.ids import RunId
from schedd.core.jobs.definition import Priority
from schedd.core.runs.model import LiveRun, RunKey
from support.runs import NOW, run

MOST = 2
NEEDS = (Need("shell"), Need("http"))

KINDS = ("come", "go", "cancel", "scan", "refill", "break off", "break refill", "look up")
Deed = tuple[str, list[int]]
deeds = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.lists(st.integers(0, 40), min_size=1, max_size=6),
    ),
    max_size=60,
)


class World:
    """Rows, of which a queue holds some. Odd runs need what even ones don't. Some are late, or
    HIGH.
    """

    def __init__(self) -> None:
        self.queue = ReadyQueue(MOST)
        self.rows: dict[RunId, LiveRun] = {}
        self.number = 0

    def come(self, *ages: int) -> None:
        for age in ages:
            self.come_one(age)

    def come_one(self, age: int) -> None:
        self.number += 1
        ready = NOW - timedelta(seconds=age)
        line = line_id_of((NEEDS[self.number % 2].action,))
        priority = Priority.MEDIUM if self.number % 7 else Priority.HIGH
        due = ready if self.number % 5 else ready - timedelta(seconds=20)
        one = run(self.number, due_at=due, ready_at=ready, line=line, line_generation=1)
        scheduled = due - timedelta(seconds=age % 3)  # some became ready after their time
        one = replace(one, key=RunKey(scheduled, one.key.run_id), priority=priority)
        self.rows[one.key.run_id] = one
        self.queue.add([one])

    def go(self, count: int) -> None:
        """So many of one need go, those before all others of that need."""
        need = NEEDS[count % 2]
        for one in self.queue.take_runs(count, lambda its, _: its == need):
            mine = [each for each in self.rows.values() if bucket_of(each) == bucket_of(one)]
            assert one.key.run_id == min(map(place_of, mine)).run
            del self.rows[one.key.run_id]

    def look_up(self) -> None:
        """Put runs of unknown need into their lines."""
        unsorted = self.queue.take_runs(100, lambda its, _: its is None)
        for one in unsorted:
            assert self.queue.learn(one, need_of(one), 1)
            self.queue.add([one], need_of(one))

    def cancel(self, *which: int) -> None:
        for at in which:
            if self.rows:
                run_id = [*self.rows][at % len(self.rows)]
                del self.rows[run_id]
                self.queue.discard(run_id)

    def scan(self, *meanwhile: int, most: int | None = None) -> None:
        """With runs that come meanwhile, when their rows were read. `most`: it breaks off then."""
        with suppress(TimeoutError), self.queue.scanning():
            for one in [*self.rows.values()][:most]:
                self.queue.add([one])
            self.come(*meanwhile)
            if most is not None:
                raise TimeoutError

    def refill(self, *meanwhile: int, most: int | None = None) -> bool:
        """Read the next rows, as `scan` reads all, with two runs that come before; return False if
        there are too few.
        """
        first = self.queue.first_left
        keys = sorted(one.key for one in self.rows.values() if first and one.key >= first)
        if first is None or len(keys) <= MOST:
            return False
        since, end = first.scheduled_at, keys[MOST]
        until = end.scheduled_at
        self.come(*meanwhile[:2])
        rows = [one for one in self.rows.values() if one.key < end]
        read = [one for one in rows if since <= one.ready_at <= until]
        with suppress(TimeoutError), self.queue.refilling(since, end):
            for one in read[:most]:
                self.queue.add([one])
            self.come(*meanwhile[2:])
            if most is not None:
                raise TimeoutError
        return True

    def run_until_idle(self) -> None:
        """As its owner does: look up, and refill or scan while some line is short."""
        self.look_up()
        for _ in range(len(self.rows) + 2):
            if not self.queue.short:
                return
            if not self.refill():
                self.scan()
            self.look_up()
        raise AssertionError("scans come to an end once all is where it belongs")


def place_of(one: LiveRun) -> Place:
    return places_of([one], one.priority, late=one.late)[0]


def bucket_of(one: LiveRun) -> tuple[Need, Priority, bool]:
    return need_of(one), one.priority, one.late


def need_of(one: LiveRun) -> Need:
    return NEEDS[one.key.run_id.number % 2]


@pytest.mark.slow
@given(deeds)
@settings(deadline=None, max_examples=300)
def test_a_dispatched_run_has_priority_over_all_of_its_need_and_class(asked: list[Deed]) -> None:
    world = World()
    for what, ages in asked:
        if what == "come":
            world.come(*ages)
        elif what == "scan":
            world.scan(*ages)
        elif what == "refill":
            world.refill(*ages)
        elif what == "break off":
            world.scan(*ages[1:], most=ages[0])
        elif what == "break refill":
            world.refill(*ages[1:], most=ages[0])
        elif what == "look up":
            world.look_up()
        elif what == "cancel":
            world.cancel(*ages)
        else:
            world.run_until_idle()
            world.go(ages[0])
    assert len(world.queue) <= 2 * MOST * (len(NEEDS) + 1) * 4, "twice what each line keeps"


@pytest.mark.slow
@given(deeds)
@settings(deadline=None, max_examples=100)
def test_all_runs_are_dispatched_in_the_end(asked: list[Deed]) -> None:
    world = World()
    for what, ages in asked:
        if what == "scan":
            world.scan(*ages)
        elif what == "cancel":
            world.cancel(*ages)
        elif what == "refill":
            world.refill(*ages)
        elif what == "break off":
            world.scan(*ages[1:], most=ages[0])
        elif what == "break refill":
            world.refill(*ages[1:], most=ages[0])
        else:
            world.come(*ages)
    for turn in range(2 * world.number + 2):
        world.run_until_idle()
        world.go(2 + turn % 2)
    assert world.rows == {}
    assert not world.queue.leaves_some


@pytest.mark.slow
@given(
    st.lists(st.integers(0, 40), max_size=40), st.lists(st.integers(0, 5), min_size=1, max_size=9)
)
@settings(deadline=None, max_examples=100)
def test_an_overfull_line_is_complete_again_although_each_scan_adds_runs(
    ages: list[int], later: list[int]
) -> None:
    world = World()
    world.come(*ages)
    world.run_until_idle()
    world.cancel(*range(len(ages)))
    assert world.rows == {}
    for age in later:  # one, while there is room for all
        world.scan(age)
        world.look_up()
        assert not world.queue.leaves_some
        world.cancel(0)
