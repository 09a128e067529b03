"""Batches take a bounded time on slow machines."""

from __future__ import annotations

from schedd.core.dispatch.batch_size import LEAST, MOMENT, BatchSize

MOST = 500


def run_batches(size: BatchSize, batches: int, *, each: float, price: float = 0.0) -> list[float]:
    """Return the seconds of full batches, on a machine that takes `each` seconds an item."""
    took = []
    for _ in range(batches):
        took.append(price + size.now * each)
        size.record_batch(size.now, took[-1])
    return took


def test_a_quick_machine_soon_uses_the_largest_batch() -> None:
    size = BatchSize(MOST)
    run_batches(size, 4, each=0.0001)
    assert size.now == MOST


def test_a_batch_shrinks_when_items_become_slower() -> None:
    size = BatchSize(MOST)
    run_batches(size, 10, each=0.0001)

    slow = run_batches(size, 10, each=0.002)

    assert slow[0] == MOST * 0.002
    assert all(0.9 * MOMENT <= seconds <= MOMENT for seconds in slow[1:])


def test_a_very_slow_machine_makes_progress() -> None:
    size = BatchSize(MOST)
    run_batches(size, 10, each=1.0)
    assert size.now == LEAST


def test_a_slow_small_batch_does_not_shrink_the_next_one() -> None:
    """Three items that waited for a lane are no reason for small batches."""
    size = BatchSize(MOST)
    run_batches(size, 10, each=0.0001)
    size.record_batch(3, 2.0)
    assert size.now == MOST


def test_a_very_slow_partial_batch_shrinks_the_next_one() -> None:
    """There is a fixed number of slots for any number of waiting items."""
    size = BatchSize(MOST)
    run_batches(size, 10, each=0.0001)
    size.record_batch(80, 2 * MOMENT * 80 / 100)
    assert size.now == LEAST


def test_a_quick_small_batch_does_not_grow_the_next_one() -> None:
    size = BatchSize(MOST)
    size.record_batch(LEAST - 1, 0.001)
    assert size.now == LEAST


def test_a_stopped_clock_causes_no_error() -> None:
    size = BatchSize(MOST)
    size.record_batch(LEAST, 0.0)
    assert size.now > LEAST
