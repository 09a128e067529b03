"""In which order runs that wait for another of their job are tried."""

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
    return [each.key.run_id.int for each in iter(held.pop, None)]


def test_the_first_that_was_due_goes_first_whenever_it_was_ready():
    held = Held()
    for each in (due(1, 20), due(2, 10, ready=100), due(3, 0, ready=50)):
        held.add(each)
    assert order(held) == [3, 2, 1]


def test_a_class_is_worth_a_minute_and_of_equal_ones_the_smaller_id_goes_first():
    held = Held()
    for each in (due(4, 0), due(2, 0), due(1, 59, priority=Priority.HIGH), due(3, -61)):
        held.add(each)
    assert order(held) == [3, 1, 2, 4]


def test_one_that_is_taken_out_or_seen_again_is_there_once_or_not_at_all():
    held = Held()
    one, two = due(1, 0), due(2, 1)
    for each in (one, two, replace(one, ready_at=NOW + timedelta(hours=1))):
        held.add(each)
    assert (len(held), one.key.run_id in held) == (2, True)
    assert held.discard(one.key.run_id) is not None
    assert held.discard(one.key.run_id) is None
    held.add(one)
    assert [each.key.run_id.int for each in sorted(held, key=lambda run: run.due_at)] == [1, 2]
    assert order(held) == [1, 2]
    assert held.pop() is None


def test_what_comes_and_goes_a_thousand_times_leaves_nothing_behind():
    held = Held()
    for _ in range(1_000):
        held.add(due(1, 0))
        held.discard(due(1, 0).key.run_id)
    assert len(held._heap) < 300
    assert held.pop() is None


def test_a_shard_that_is_lost_takes_its_runs_with_it():
    held = Held()
    held.add(due(1, 0, shard=1))
    held.add(due(2, 1))
    held.drop_shards([ShardId(1)])
    assert order(held) == [2]
