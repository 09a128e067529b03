"""The agenda: items by due time, and due items by priority class."""

from __future__ import annotations

import tracemalloc
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from schedd.core.dispatch.priority_order import CLASS_STEP
from schedd.core.jobs.definition import Priority
from schedd.core.timers.due_index import DueIndex
from support.runs import NOW

LOW, MEDIUM, HIGH = Priority.LOW, Priority.MEDIUM, Priority.HIGH
SECOND = timedelta(seconds=1)


def test_due_items_of_a_higher_class_are_first() -> None:
    agenda: DueIndex[str, str] = DueIndex()
    agenda.put("low", NOW, "low", LOW)
    agenda.put("medium", NOW, "medium", MEDIUM)
    agenda.put("later", NOW + SECOND, "later", MEDIUM)
    agenda.put("high", NOW + 2 * SECOND, "high", HIGH)

    assert agenda.pop_due(NOW + 2 * SECOND, 3) == ["high"]
    assert agenda.pop_due(NOW + 2 * SECOND, 3) == ["medium", "later"]
    assert agenda.pop_due(NOW + 2 * SECOND, 3) == ["low"]
    assert not agenda


def test_an_item_that_isnt_due_blocks_no_other() -> None:
    agenda: DueIndex[str, str] = DueIndex()
    agenda.put("high", NOW + SECOND, "high", HIGH)
    agenda.put("low", NOW, "low", LOW)

    assert agenda.next_at() == NOW
    assert agenda.pop_due(NOW, 10) == ["low"]
    assert agenda.next_at() == NOW + SECOND


def test_an_item_due_for_longer_than_a_class_is_worth_has_priority() -> None:
    agenda: DueIndex[str, str] = DueIndex()
    agenda.put("old", NOW, "old", MEDIUM)
    agenda.put("high", NOW + CLASS_STEP + SECOND, "high", HIGH)

    assert agenda.pop_due(NOW + 2 * CLASS_STEP, 2) == ["old"]
    assert agenda.pop_due(NOW + 2 * CLASS_STEP, 2) == ["high"]


def test_items_above_a_class_can_be_taken_alone() -> None:
    agenda: DueIndex[str, str] = DueIndex()
    agenda.put("low", NOW, "low", LOW)
    agenda.put("medium", NOW, "medium", MEDIUM)
    agenda.put("high", NOW + SECOND, "high", HIGH)

    assert agenda.next_at(above=MEDIUM) == NOW + SECOND
    assert agenda.pop_due(NOW, 10, above=MEDIUM) == []
    assert agenda.pop_due(NOW + SECOND, 10, above=MEDIUM) == ["high"]
    assert agenda.next_at(above=MEDIUM) is None
    assert agenda.next_at() == NOW


def test_a_key_whose_class_changes_is_listed_once() -> None:
    agenda: DueIndex[str, str] = DueIndex()
    agenda.put("one", NOW, "as it was", MEDIUM)
    agenda.put("other", NOW, "other", MEDIUM)
    agenda.put("one", NOW, "as it is", HIGH)
    agenda.put("third", NOW, "third", LOW)
    assert agenda.get("one") == (NOW, "as it is")
    assert agenda.get("none") is None

    assert [agenda.pop_due(NOW, 10) for _ in range(3)] == [["as it is"], ["other"], ["third"]]
    assert agenda.next_at() is None


def test_an_item_that_moves_often_uses_bounded_memory() -> None:
    agenda: DueIndex[int, int] = DueIndex()
    for turn in range(50_000):
        agenda.put(turn % 10, NOW + turn * SECOND, turn, Priority(1 + turn // 10 % 3))

    assert len(agenda) == 10
    assert agenda.pop_due(NOW + 50_000 * SECOND, 100) != []
    assert agenda._queued < 5_000
    assert sum(len(heap) for heap in agenda._heaps.values()) < 5_000  # stale entries


def test_an_item_with_a_time_of_its_own_takes_little_memory() -> None:
    agenda: DueIndex[int, int] = DueIndex()
    times = [NOW + number * SECOND for number in range(5_000)]
    tracemalloc.start()
    try:
        for number, at in enumerate(times):
            agenda.put(number, at, number)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / len(times) < 500


STEPS = st.tuples(
    st.sampled_from(["put", "put all", "keep", "discard", "pop"]),
    st.lists(st.integers(0, 9), max_size=6, unique=True),
    st.integers(0, 3),
)


@given(st.lists(STEPS, max_size=40))
def test_items_that_are_put_together_come_out_as_if_put_one_by_one(
    steps: list[tuple[str, list[int], int]],
) -> None:
    """Whatever is moved, removed or taken in between, and however few are taken at once."""
    together: DueIndex[int, int] = DueIndex()
    single: DueIndex[int, int] = DueIndex()
    for number, (step, keys, second) in enumerate(steps):
        at, values = NOW + second * SECOND, [100 * number + key for key in keys]
        if step == "put":
            for each in (together, single):
                for key, value in zip(keys, values, strict=True):
                    each.put(key, at, value)
        elif step == "put all":
            together.put_all(keys, at, values)
            for key, value in zip(keys, values, strict=True):
                single.discard(key)
                single.put(key, at, value)
        elif step == "keep":
            for each in (together, single):
                each.keep_all(keys, values)
        elif step == "discard":
            for each in (together, single):
                each.clear_where(keys)
        else:
            assert together.pop_due(at, len(keys)) == single.pop_due(at, len(keys))
        assert together.next_at() == single.next_at()
        assert sorted(together.values()) == sorted(single.values())


def test_items_that_are_put_together_again_and_again_use_bounded_memory() -> None:
    agenda: DueIndex[int, int] = DueIndex()
    for turn in range(5_000):
        agenda.put_all(range(10), NOW + turn * SECOND, range(10))
    assert agenda._queued < 1_100
    assert agenda.pop_due(NOW + 5_000 * SECOND, 100) == [*range(10)]
