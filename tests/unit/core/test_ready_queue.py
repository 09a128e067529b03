"""The order in which runs get a slot."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from schedd.core.dispatch.placement import Need
from schedd.core.dispatch.priority_order import CLASS_STEP
from schedd.core.dispatch.ready_bucket_ids import LineId, line_id_of, line_of
from schedd.core.dispatch.ready_queue import QueueHead, ReadyQueue
from schedd.core.ids import Id, JobId, RunId, ShardId, Token
from schedd.core.jobs.definition import Priority
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import LiveRun, RunKey
from schedd.core.runs.pools import PoolKey, PoolRooms
from schedd.core.timers.catch_up_limits import CatchUpRoom

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def run(number: int, priority: Priority, waited: float = 0, shard: int = 0) -> LiveRun:
    ready = NOW - timedelta(seconds=waited)
    key = RunKey(NOW, RunId(Id.from_int(number)))
    job = JobId(Id.from_int(number))
    return LiveRun(key, job, ShardId(shard), State.PENDING, priority, due_at=ready, ready_at=ready)


def order(queue: ReadyQueue) -> list[int]:
    found = []
    while (one := queue.pop()) is not None:
        found.append(one.key.run_id.number)
    return found


def test_high_has_priority_over_medium_over_low():
    queue = ReadyQueue()
    queue.add([run(1, Priority.LOW), run(2, Priority.HIGH), run(3, Priority.MEDIUM)])
    assert order(queue) == [2, 3, 1]


def test_within_a_priority_the_oldest_run_is_first():
    queue = ReadyQueue()
    queue.add([run(1, Priority.HIGH, 1), run(2, Priority.HIGH, 3), run(3, Priority.HIGH, 2)])
    assert order(queue) == [2, 3, 1]


def test_a_low_run_overtakes_new_high_ones_only_after_two_steps():
    queue = ReadyQueue()
    queue.add([run(1, Priority.LOW, waited=119), run(2, Priority.HIGH)])
    assert order(queue) == [2, 1]
    queue.add([run(1, Priority.LOW, waited=121), run(2, Priority.HIGH)])
    assert order(queue) == [1, 2]


def test_a_run_is_queued_at_most_once():
    queue = ReadyQueue()
    queue.add([run(1, Priority.LOW)])
    queue.add([replace(run(1, Priority.LOW), priority=Priority.HIGH), run(2, Priority.MEDIUM)])
    assert len(queue) == 2
    assert order(queue) == [1, 2]


def test_a_removed_run_never_starts():
    queue = ReadyQueue()
    queue.add([run(1, Priority.HIGH), run(2, Priority.HIGH, shard=9), run(3, Priority.LOW)])
    queue.discard(RunId(Id.from_int(1)))
    queue.drop_shards([ShardId(9)])
    assert order(queue) == [3]


def test_heads_have_the_oldest_run_of_each_priority_and_the_requested_slots():
    queue = ReadyQueue()
    queue.add([run(1, Priority.LOW, 1), run(2, Priority.HIGH, 2), run(3, Priority.HIGH, 5)])
    queue.add([run(4, Priority.HIGH, 9)])
    queue.discard(RunId(Id.from_int(4)))
    queue.add([run(5, Priority.LOW, 3)], Need("shell"))
    assert queue.heads() == [
        QueueHead(Priority.HIGH, NOW - timedelta(seconds=5), 2),
        QueueHead(Priority.LOW, NOW - timedelta(seconds=3), 2),
    ]
    assert ReadyQueue().heads() == []


def test_a_head_has_only_runs_of_equal_width():
    """Otherwise a head has the age of a wide run and the width of another: a member that gets
    slots by such a head has no run for them.
    """
    queue = ReadyQueue()
    queue.add([run(1, Priority.LOW, 200)], Need("shell", slots=4))
    queue.add([run(2, Priority.LOW, 3), run(3, Priority.LOW, 7)], Need("shell", slots=2))
    queue.add([run(4, Priority.LOW, 9)], Need("python", "f", slots=2))
    queue.add([run(5, Priority.LOW, 1)])  # its need isn't known yet
    queue.add([run(6, Priority.HIGH)], Need("shell", slots=3))
    assert queue.heads() == [
        QueueHead(Priority.HIGH, NOW, 3, least=3),
        QueueHead(Priority.LOW, NOW - timedelta(seconds=200), 4, least=4),
        QueueHead(Priority.LOW, NOW - timedelta(seconds=9), 6, least=2),
        QueueHead(Priority.LOW, NOW - timedelta(seconds=1), 1, least=1),
    ]


def test_a_run_without_a_matching_worker_blocks_no_other_and_requests_no_slots():
    queue = ReadyQueue()
    queue.add([run(number, Priority.HIGH, 100) for number in range(1, 2_000)], Need("python", "f"))
    queue.add([run(5_000, Priority.LOW)], Need("shell"))

    def shell(need: Need | None) -> bool:
        return need == Need("shell")

    assert [head.priority for head in queue.heads(shell)] == [Priority.LOW]
    popped = queue.pop(lambda need, _: shell(need))
    assert popped is not None
    assert popped.key.run_id.number == 5_000
    assert queue.pop(lambda need, _: shell(need)) is None
    assert len(queue) == 1_999


def test_runs_are_checked_in_order_and_only_as_far_as_needed():
    """A check is expensive: each one reads all offers."""
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
    assert taken.key.run_id.number == 2
    assert asked == ["action 3", "action 2"]


def test_a_scan_that_adds_all_runs_again_moves_none_and_uses_no_memory():
    queue = ReadyQueue()
    queue.add([run(1, Priority.HIGH)], Need("python", "f"))
    for _ in range(10_000):
        queue.add([run(1, Priority.HIGH), run(2, Priority.LOW)])
    assert queue.pop(lambda need, _: need is None) == run(2, Priority.LOW)
    assert sum(len(line.queue) + len(line.heap) for line in queue._lines.values()) == 1


def test_a_queued_run_that_is_left_in_its_row_hides_no_new_run():
    queue = ReadyQueue(most=2)
    queue.add([run(number, Priority.LOW, waited=60 - number) for number in range(5)])
    assert queue.leaves_some
    later = replace(run(1, Priority.LOW), ready_at=NOW)
    assert queue.add([later, run(9, Priority.LOW, waited=90)]) == 1
    assert order(queue) == [9, 0]


def test_a_run_that_moves_often_uses_bounded_memory():
    queue = ReadyQueue()
    queue.add([run(1, Priority.HIGH)])
    for number in range(10_000):
        queue.add([run(2, Priority.HIGH, waited=number)])
    assert sum(len(line.queue) + len(line.heap) for line in queue._lines.values()) < 2_000


def test_needs_can_be_looked_up_again():
    queue = ReadyQueue()
    queue.add([run(1, Priority.HIGH)], Need("python", "f"))
    queue.add([run(2, Priority.HIGH)], Need("shell"))
    assert queue.unsort(lambda need: need == Need("python", "f")) == {run(1, Priority.HIGH).job_id}
    assert queue.pop(lambda need, _: need is None) == run(1, Priority.HIGH)


def late(number: int, *, due: float, made: float = 0, **changes: Any) -> LiveRun:
    """Return a run of catch-up, due and created so many seconds ago."""
    one = run(number, changes.pop("priority", Priority.MEDIUM), waited=made)
    return replace(one, due_at=NOW - timedelta(seconds=due), **changes)


def test_a_late_run_counts_as_one_class_lower():
    """For any age: an outage must not delay runs that are due now."""
    queue = ReadyQueue()
    queue.add([late(1, due=600), run(2, Priority.MEDIUM), run(3, Priority.LOW)])
    queue.add([run(4, Priority.LOW, waited=1), late(5, due=600, priority=Priority.HIGH)])
    assert order(queue) == [2, 5, 4, 3, 1]


def test_a_late_run_waits_a_bounded_time():
    queue = ReadyQueue()
    queue.add([late(1, due=600, made=61), run(2, Priority.MEDIUM)])
    assert order(queue) == [1, 2]


def test_the_oldest_due_of_late_runs_created_together_is_first():
    queue = ReadyQueue()
    queue.add([late(number, due=number) for number in (3, 9, 1, 7)])
    assert order(queue) == [9, 7, 3, 1]


def test_late_runs_without_room_block_no_other_and_request_no_slots():
    queue, shell = ReadyQueue(), Need("shell")
    queue.add([late(1, due=609, made=300), late(2, due=608, made=300)], shell, paced=True)
    queue.add([late(3, due=607, made=300), late(4, due=606, made=300)], shell)
    queue.add([run(5, Priority.LOW)], shell)
    room = CatchUpRoom(slots=2, releases=0)

    heads = queue.heads(room=room)
    assert [(head.priority, head.slots) for head in heads] == [(2, 2), (1, 1)]
    assert heads[0].waiting_since == NOW - timedelta(seconds=300) + CLASS_STEP

    popped = [queue.pop(room=room) for _ in range(4)]
    assert [one and one.key.run_id.number for one in popped] == [3, 4, 5, None]
    assert queue.paced == queue.late == 2
    assert [one.key.run_id.number for one in queue] == [1, 2]


def test_paced_runs_start_as_far_as_releases_allow_and_are_marked():
    queue = ReadyQueue()
    queue.add([late(1, due=9, paced=True), late(2, due=8, paced=True)])
    room = CatchUpRoom(slots=9, releases=1)
    assert queue.heads(room=room)[0].slots == 1
    first, second = queue.pop(room=room), queue.pop(room=room)
    assert first is not None
    assert (first.key.run_id.number, first.paced, second) == (1, True, None)


def test_a_scan_without_the_definition_leaves_a_paced_run_in_place():
    queue = ReadyQueue()
    queue.add([late(1, due=9, paced=True)])
    queue.add([late(1, due=9)])
    assert queue.paced == 1
    queue.add([late(1, due=9)], Need("shell"), paced=False)
    assert (queue.paced, queue.late, queue.unsorted_late) == (0, 1, 0)


def test_a_run_that_was_dispatched_and_returned_isnt_late():
    back = late(1, due=600, token=Token(7))
    assert not back.late
    assert replace(back, state=State.RUNNING, attempt=1).late
    assert not replace(back, state=State.RUNNING, attempt=2).late
    assert not replace(back, state=State.RETRYING, attempt=1).late


def test_an_unmatched_need_is_checked_once_for_any_number_of_taken_runs() -> None:
    """With a thousand jobs for a lost host, each has its own queue; dispatch holds the loop."""
    queue, asked = ReadyQueue(), list[Need]()
    for number in range(1, 101):
        queue.add([run(number, Priority.HIGH)], Need(f"gone {number}"))
    queue.add([run(200 + number, Priority.LOW) for number in range(50)], Need("shell"))

    def goes(need: Need | None, _rank: float) -> bool:
        assert need is not None
        asked.append(need)
        return need.action == "shell"

    assert len(queue.take_runs(40, goes)) == 40
    assert len([need for need in asked if need.action != "shell"]) == 100


def test_runs_taken_together_equal_runs_taken_one_by_one() -> None:
    def filled() -> ReadyQueue:
        queue = ReadyQueue()
        for number in range(1, 60):
            priority = [Priority.LOW, Priority.MEDIUM, Priority.HIGH][number % 3]
            waited = number * 37 % 101
            queue.add([run(number, priority, waited)], Need(f"action {number % 7}"))
        return queue

    def goes(need: Need | None, _rank: float) -> bool:
        return need is not None and need.action not in {"action 2", "action 5"}

    one_by_one, queue = [], filled()
    while (popped := queue.pop(goes)) is not None:
        one_by_one.append(popped)
    queue = filled()
    assert queue.take_runs(20, goes) + queue.take_runs(1_000, goes) == one_by_one
    assert len(one_by_one) + len(queue) == 59


# -- Pools --


def test_a_full_pool_limits_its_own_runs_and_blocks_no_other():
    queue, pool = ReadyQueue(), PoolKey("default/p")
    need = Need("shell", pool=pool)
    queue.add([run(n, Priority.MEDIUM, waited=50 - n) for n in range(4)], need)
    queue.add([run(9, Priority.HIGH, waited=1)], need)
    queue.add([run(7, Priority.LOW, waited=1)], Need("shell"))
    rooms = PoolRooms({pool: 2})
    taken = queue.take_runs(9, pools=rooms)
    assert [one.key.run_id.number for one in taken] == [9, 0, 7]
    assert rooms.left == {pool: 0}
    assert (len(queue), queue.pools()) == (3, {pool})


def test_runs_of_a_pool_request_no_more_slots_than_it_has_room_for():
    queue, pool = ReadyQueue(), PoolKey("default/p")
    need = Need("shell", slots=2, pool=pool)
    queue.add([run(n, Priority.MEDIUM) for n in range(40)], need)
    queue.add([run(n, Priority.LOW) for n in range(40, 80)], need)
    [head] = queue.heads(pools=PoolRooms({pool: 3}))
    assert (head.priority, head.slots, head.least) == (Priority.MEDIUM, 6, 2)
    assert queue.heads(pools=PoolRooms({pool: 0})) == []
    assert queue.count(lambda _: True) == 0


def test_the_room_of_a_pool_is_used_in_queue_order():
    """Both queues have a matching worker."""
    pool = PoolKey("default/p")
    a, b = (Need("shell", handler=name, pool=pool) for name in "ab")
    for first, second in ((a, b), (b, a)):
        queue = ReadyQueue()
        queue.add([run(n, Priority.LOW, waited=60) for n in (1, 2, 3)], first)
        queue.add([run(4, Priority.HIGH)], second)
        [head] = queue.heads(pools=PoolRooms({pool: 1}))
        assert (head.priority, head.slots) == (Priority.HIGH, 1)
        found = queue.heads(pools=PoolRooms({pool: 3}))
        assert [head.slots for head in found] == [1, 2]
        queue.add([run(5, Priority.LOW, waited=121)], first)
        [head] = queue.heads(pools=PoolRooms({pool: 1}))
        assert head.priority is Priority.LOW, "it waited for longer than that"


@pytest.mark.parametrize("notified", [True, False])
def test_a_run_whose_job_left_a_full_pool_is_looked_up_again(notified: bool):
    queue, pool = ReadyQueue(), PoolKey("default/p")
    left, stays = run(1, Priority.MEDIUM), run(2, Priority.MEDIUM)
    queue.add([left, stays], Need("shell", pool=pool))
    rooms = PoolRooms({pool: 0})
    assert queue.take_runs(9, pools=rooms) == []
    if notified:
        queue.unsort_pooled({left.job_id})
    else:  # a scan finds it in the shard that it has moved to
        queue.add([replace(left, shard=ShardId(7)), stays])
    [found] = queue.take_runs(9, pools=rooms)
    assert found.key == left.key


SHELL, HTTP = Need("shell"), Need("http")
SHELL_LINE, HTTP_LINE = line_id_of(("shell",)), line_id_of(("http",))


def of_line(number: int, line: LineId | None, **changes: Any) -> LiveRun:
    return replace(run(number, Priority.MEDIUM), line=line, **{"line_generation": 1, **changes})


def in_lines(queue: ReadyQueue) -> dict[Need | None, set[int]]:
    """Return the numbers of the runs in the queue of each need."""
    return {
        need: {one.key.run_id.number for one in replace_all(queue, need)}
        for need in (None, SHELL, HTTP)
    }


def replace_all(queue: ReadyQueue, need: Need | None) -> list[LiveRun]:
    taken = queue.take_runs(100, lambda its, _: its == need)
    queue.add(taken, need)
    return taken


def test_a_learned_need_applies_to_all_runs_with_its_number():
    queue = ReadyQueue()
    assert queue.learn(of_line(1, SHELL_LINE), SHELL, 1)
    queue.add([of_line(1, SHELL_LINE), of_line(2, SHELL_LINE), of_line(3, HTTP_LINE)])
    queue.add([of_line(4, None)])
    assert in_lines(queue) == {SHELL: {1, 2}, HTTP: set(), None: {3, 4}}


def test_a_run_whose_job_was_edited_moves_when_its_row_has_another_number():
    queue = ReadyQueue()
    queue.learn(of_line(1, SHELL_LINE), SHELL, 1)
    queue.learn(of_line(2, HTTP_LINE), HTTP, 1)
    queue.add([of_line(1, SHELL_LINE)])
    queue.add([of_line(1, HTTP_LINE)])
    assert in_lines(queue) == {SHELL: set(), HTTP: {1}, None: set()}


def test_an_old_definition_is_rejected_and_changes_nothing():
    queue = ReadyQueue()
    edited = of_line(1, HTTP_LINE, line_generation=2)
    assert not queue.learn(edited, SHELL, 1)
    assert queue.learn(edited, HTTP, 2)
    queue.add([of_line(2, HTTP_LINE)])
    assert in_lines(queue) == {SHELL: set(), HTTP: {2}, None: set()}


def test_a_newer_definition_than_that_of_the_row_changes_nothing():
    queue = ReadyQueue()
    assert queue.learn(of_line(1, SHELL_LINE), HTTP, 2)
    queue.add([of_line(2, SHELL_LINE)])
    assert in_lines(queue) == {SHELL: set(), HTTP: set(), None: {2}}


def test_with_conflicting_numbers_of_members_each_run_is_looked_up():
    queue = ReadyQueue()
    assert queue.learn(of_line(1, SHELL_LINE), SHELL, 1)
    assert queue.learn(of_line(2, SHELL_LINE), HTTP, 1)
    queue.add([of_line(3, SHELL_LINE)])
    assert in_lines(queue) == {SHELL: set(), HTTP: set(), None: {3}}


def test_a_run_with_an_unknown_number_leaves_its_old_queue():
    queue = ReadyQueue()
    queue.add([of_line(1, SHELL_LINE)], SHELL)
    queue.add([of_line(1, SHELL_LINE)])
    assert in_lines(queue) == {SHELL: {1}, HTTP: set(), None: set()}, "the same as before"
    queue.add([of_line(1, HTTP_LINE)])
    assert in_lines(queue) == {SHELL: set(), HTTP: set(), None: {1}}


def test_a_child_of_a_broadcast_neither_sets_nor_uses_the_need_of_its_job():
    queue = ReadyQueue()
    queue.learn(of_line(1, SHELL_LINE), SHELL, 1)
    child = of_line(2, SHELL_LINE, parent=RunId(Id.from_int(9)), target="w1")
    assert queue.learn(child, HTTP, 1)
    queue.add([child, of_line(3, SHELL_LINE)])
    assert in_lines(queue) == {SHELL: {3}, HTTP: set(), None: {2}}


def test_a_known_number_decides_if_a_late_run_is_paced():
    queue = ReadyQueue()
    paced = line_id_of(("shell",), paced=True)
    queue.learn(of_line(1, paced), SHELL, 1)
    late = of_line(2, paced, due_at=NOW - timedelta(hours=1))
    queue.add([late, of_line(3, paced)])
    assert queue.paced == 1


def test_only_runs_without_a_known_number_are_looked_up_again():
    queue = ReadyQueue()
    queue.learn(of_line(1, SHELL_LINE), SHELL, 1)
    queue.add([of_line(1, SHELL_LINE)])
    queue.add([of_line(2, None)], SHELL)
    assert queue.unsort(lambda need: need == SHELL) == {of_line(2, None).job_id}
    assert in_lines(queue) == {SHELL: {1}, HTTP: set(), None: {2}}


def test_a_run_whose_number_a_scan_adds_is_queued_once() -> None:
    """Each pop reads the queue, and a heap with every run twice takes twice as long."""
    queue, number = ReadyQueue(), line_id_of(("shell",))
    runs = [run(n, Priority.MEDIUM, n) for n in range(1, 50)]
    queue.add(runs)
    queue.add(replace(one, line=number) for one in runs)
    [line] = queue._lines.values()
    assert len(line.queue) + len(line.heap) == len(runs)
    assert [one.line for one in queue.take_runs(len(runs))] == [number] * len(runs)


def test_a_number_of_an_earlier_format_is_ignored() -> None:
    number = line_id_of(("shell",), hurried=True)
    assert line_of(number) == number
    assert line_of(None) is None
    assert line_of(number ^ 1 << 50) is None
    assert line_of(line_id_of(("http",), late=True)) is not None
