"""The order in which runs get a slot."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from schedd.core.ids import JobId, RunId, ShardId
from schedd.core.lifecycle import State
from schedd.core.model import LiveRun, Priority, RunKey
from schedd.core.placement import Need
from schedd.core.ready_queue import Head, ReadyQueue

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def run(number: int, priority: Priority, waited: float = 0, shard: int = 0) -> LiveRun:
    ready = NOW - timedelta(seconds=waited)
    key = RunKey(NOW, RunId(UUID(int=number)))
    job = JobId(UUID(int=number))
    return LiveRun(key, job, ShardId(shard), State.PENDING, priority, due_at=ready, ready_at=ready)


def order(queue: ReadyQueue) -> list[int]:
    found = []
    while (one := queue.pop()) is not None:
        found.append(one.key.run_id.int)
    return found


def test_high_goes_before_medium_before_low():
    queue = ReadyQueue()
    queue.add([run(1, Priority.LOW), run(2, Priority.HIGH), run(3, Priority.MEDIUM)])
    assert order(queue) == [2, 3, 1]


def test_within_a_priority_the_oldest_goes_first():
    queue = ReadyQueue()
    queue.add([run(1, Priority.HIGH, 1), run(2, Priority.HIGH, 3), run(3, Priority.HIGH, 2)])
    assert order(queue) == [2, 3, 1]


def test_a_low_run_overtakes_fresh_high_ones_after_two_steps_and_no_sooner():
    queue = ReadyQueue()
    queue.add([run(1, Priority.LOW, waited=119), run(2, Priority.HIGH)])
    assert order(queue) == [2, 1]
    queue.add([run(1, Priority.LOW, waited=121), run(2, Priority.HIGH)])
    assert order(queue) == [1, 2]


def test_a_run_waits_at_most_once():
    queue = ReadyQueue()
    queue.add([run(1, Priority.LOW)])
    queue.add([replace(run(1, Priority.LOW), priority=Priority.HIGH), run(2, Priority.MEDIUM)])
    assert len(queue) == 2
    assert order(queue) == [1, 2]


def test_what_was_taken_out_never_comes_up():
    queue = ReadyQueue()
    queue.add([run(1, Priority.HIGH), run(2, Priority.HIGH, shard=9), run(3, Priority.LOW)])
    queue.discard(RunId(UUID(int=1)))
    queue.drop_shards([ShardId(9)])
    assert order(queue) == [3]


def test_heads_tell_the_oldest_of_each_priority_and_how_many_slots_they_ask_for():
    queue = ReadyQueue()
    queue.add([run(1, Priority.LOW, 1), run(2, Priority.HIGH, 2), run(3, Priority.HIGH, 5)])
    queue.add([run(4, Priority.HIGH, 9)])
    queue.discard(RunId(UUID(int=4)))
    queue.add([run(5, Priority.LOW, 3)], Need("shell"))
    assert queue.heads() == [
        Head(Priority.HIGH, NOW - timedelta(seconds=5), 2),
        Head(Priority.LOW, NOW - timedelta(seconds=3), 2),
    ]
    assert ReadyQueue().heads() == []


def test_a_head_is_of_runs_that_take_equally_many_slots():
    """Or it would be as old as a wide run and as narrow as another: who gets slots by such a head
    has nobody who may use them.
    """
    queue = ReadyQueue()
    queue.add([run(1, Priority.LOW, 200)], Need("shell", slots=4))
    queue.add([run(2, Priority.LOW, 3), run(3, Priority.LOW, 7)], Need("shell", slots=2))
    queue.add([run(4, Priority.LOW, 9)], Need("python", "f", slots=2))
    queue.add([run(5, Priority.LOW, 1)])  # its need isn't known yet
    queue.add([run(6, Priority.HIGH)], Need("shell", slots=3))
    assert queue.heads() == [
        Head(Priority.HIGH, NOW, 3, least=3),
        Head(Priority.LOW, NOW - timedelta(seconds=200), 4, least=4),
        Head(Priority.LOW, NOW - timedelta(seconds=9), 6, least=2),
        Head(Priority.LOW, NOW - timedelta(seconds=1), 1, least=1),
    ]


def test_a_line_that_no_worker_fits_holds_nobody_up_and_asks_for_nothing():
    queue = ReadyQueue()
    queue.add([run(number, Priority.HIGH, 100) for number in range(1, 2_000)], Need("python", "f"))
    queue.add([run(5_000, Priority.LOW)], Need("shell"))

    def shell(need: Need | None) -> bool:
        return need == Need("shell")

    assert [head.priority for head in queue.heads(shell)] == [Priority.LOW]
    popped = queue.pop(lambda need, _: shell(need))
    assert popped is not None
    assert popped.key.run_id.int == 5_000
    assert queue.pop(lambda need, _: shell(need)) is None
    assert len(queue) == 1_999


def test_whether_a_run_may_go_is_asked_in_order_and_no_further_than_needed():
    """It is dear to ask: each time all offers are looked at."""
    queue = ReadyQueue()
    for number in (1, 2, 3):
        queue.add([run(number, Priority.HIGH, waited=number)], Need(f"action {number}"))
    asked: list[str] = []

    def goes(need: Need | None, _rank: float) -> bool:
        assert need is not None
        asked.append(need.action)
        return need.action == "action 2"

    taken = queue.pop(goes)
    assert taken is not None
    assert taken.key.run_id.int == 2
    assert asked == ["action 3", "action 2"]


def test_a_scan_that_adds_all_runs_again_moves_none_and_costs_no_memory():
    queue = ReadyQueue()
    queue.add([run(1, Priority.HIGH)], Need("python", "f"))
    for _ in range(10_000):
        queue.add([run(1, Priority.HIGH), run(2, Priority.LOW)])
    assert queue.pop(lambda need, _: need is None) == run(2, Priority.LOW)
    assert sum(len(line.heap) for line in queue._lines.values()) == 1


def test_what_moves_about_leaves_little_behind():
    queue = ReadyQueue()
    queue.add([run(1, Priority.HIGH)])
    for number in range(10_000):
        queue.add([run(2, Priority.HIGH, waited=number)])
    assert sum(len(line.heap) for line in queue._lines.values()) < 2_000


def test_needs_can_be_looked_up_anew():
    queue = ReadyQueue()
    queue.add([run(1, Priority.HIGH)], Need("python", "f"))
    queue.add([run(2, Priority.HIGH)], Need("shell"))
    assert queue.unsort(lambda need: need == Need("python", "f")) == {run(1, Priority.HIGH).job_id}
    assert queue.pop(lambda need, _: need is None) == run(1, Priority.HIGH)
