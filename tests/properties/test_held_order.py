"""Held timers get slots in the order in which the ready queue would take their runs."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from schedd.core.dispatch.ready_queue import ReadyQueue
from schedd.core.jobs.definition import Definition, Priority
from schedd.core.runs.model import Firing, LiveRun, NewRun, Timer
from schedd.core.schedule import compiled_schedule
from schedd.core.timers.pre_dispatch import EarlyRuns
from schedd.dispatch.held_timers import Planned
from support.definitions import cached_definition
from support.firing import EVERY, Rows, World
from support.runs import NOW, run, worker

entries = st.lists(
    st.tuples(st.sampled_from(Priority), st.integers(0, 300), st.sampled_from((0, 0, 90))),
    max_size=30,
    unique_by=lambda each: each[1] % 60,
)
"""Priority, seconds since the run was ready, and how late it was then. No two ranks are equal."""


@given(entries=entries, count=st.integers(1, 9))
def test_punctual_and_late_timers_get_slots_in_the_order_of_their_runs(
    entries: list[tuple[Priority, int, int]], count: int
) -> None:
    runs = [entry(number, *each) for number, each in enumerate(entries, 1)]
    world, ready = World(Rows()), ReadyQueue()
    world.attach(worker(slots=99), slots=99)
    held = world.run_index.held_timers
    held.hold([planned(each) for each in runs])
    ready.add(runs)

    chosen, left_room = [], False
    with world.workers.choosing() as choice:
        while held:
            queues = ReadyQueue(), EarlyRuns()
            some = held.choose(count, NOW, world.workers.offers(), choice, queues)
            classes = {priority_class(runs, one.job_id) for one, _ in some}
            assert len(classes) == 1 or left_room
            left_room = not left_room and len(some) < count
            chosen += [one.job_id for one, _ in some]

    assert chosen == [each.job_id for each in ready.take_runs(len(runs))]


def priority_class(runs: list[LiveRun], job: object) -> int:
    [one] = [each for each in runs if each.job_id == job]
    return one.priority - one.late


def entry(number: int, priority: Priority, waited: int, late: int) -> LiveRun:
    """A run that became ready so many seconds ago, `late` seconds after it was due."""
    ready = NOW - timedelta(seconds=waited)
    due = ready - timedelta(seconds=late)
    return run(number, priority=priority, due_at=due, ready_at=ready)


def planned(run: LiveRun) -> Planned:
    """The step that makes this run."""
    ready_at = run.ready_at if run.late else None
    definition = Definition(1, "default", action="shell", priority=run.priority)
    compiled = compiled_schedule.compile(EVERY, "default/j", run.job_id)
    step = Firing(
        run.job_id,
        run.shard,
        1,
        run.due_at,
        None,
        None,
        run.due_at,
        run.priority,
        (NewRun(run.key, run.due_at, ready_at=ready_at),),
    )
    timer = Timer(run.job_id, run.shard, 1, run.due_at, run.key.scheduled_at)
    return Planned([(timer, cached_definition(definition, compiled))], step)
