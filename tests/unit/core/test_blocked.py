"""The order in which blocked runs of a job are tried."""

from dataclasses import replace
from datetime import timedelta

from schedd.core.dispatch.blocked import Held
from schedd.core.ids import ShardId
from schedd.core.jobs.definition import Priority
from schedd.core.runs.model import LiveRun
from support.runs import NOW, run


def due(number: int, seconds: float, *, ready: float = 0.0, **changes: object) -> LiveRun:
    at = NOW + timedelta(seconds=seconds)
    return run(number, due_at=at, ready_at=at + timedelta(seconds=ready), **changes)


def order(held: Held) -> list[int]:
    return [each.key.run_id.number for each in iter(held.pop, None)]


def test_the_first_due_run_has_priority_for_any_ready_time():
    held = Held()
    for each in (due(1, 20), due(2, 10, ready=100), due(3, 0, ready=50)):
        held.add(each)
    assert order(held) == [3, 2, 1]


def test_a_class_is_worth_a_minute_and_ties_are_ordered_by_id():
    held = Held()
    for each in (due(4, 0), due(2, 0), due(1, 59, priority=Priority.HIGH), due(3, -61)):
        held.add(each)
    assert order(held) == [3, 1, 2, 4]


def test_a_removed_run_is_not_listed_and_a_repeated_run_is_listed_once():
    held = Held()
    one, two = due(1, 0), due(2, 1)
    for each in (one, two, replace(one, ready_at=NOW + timedelta(hours=1))):
        held.add(each)
    assert (len(held), held.get(one.key.run_id)) == (
        2,
        replace(one, ready_at=NOW + timedelta(hours=1)),
    )
    assert held.discard(one.key.run_id) is not None
    assert held.discard(one.key.run_id) is None
    held.add(one)
    assert [each.key.run_id.number for each in sorted(held, key=lambda run: run.due_at)] == [1, 2]
    assert order(held) == [1, 2]
    assert held.pop() is None


def test_a_thousand_adds_and_removals_use_bounded_memory():
    held = Held()
    for _ in range(1_000):
        held.add(due(1, 0))
        held.discard(due(1, 0).key.run_id)
    assert len(held._heap) < 300
    assert held.pop() is None


def test_a_lost_shard_removes_its_runs():
    held = Held()
    held.add(due(1, 0, shard=1))
    held.add(due(2, 1))
    held.drop_shards([ShardId(1)])
    assert order(held) == [2]
