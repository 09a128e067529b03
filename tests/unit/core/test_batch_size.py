"""A batch takes a moment, however slow the machine."""

from __future__ import annotations

from schedd.core.dispatch.batch_size import LEAST, MOMENT, BatchSize

MOST = 500


def ridden(size: BatchSize, batches: int, *, each: float, price: float = 0.0) -> list[float]:
    """Seconds that these full batches took, on a machine of so many seconds an item."""
    took = []
    for _ in range(batches):
        took.append(price + size.now * each)
        size.record_batch(size.now, took[-1])
    return took


def test_on_a_quick_machine_a_batch_is_soon_as_large_as_may_be() -> None:
    size = BatchSize(MOST)
    ridden(size, 4, each=0.0001)
    assert size.now == MOST


def test_once_each_takes_longer_the_next_batch_takes_a_moment_again() -> None:
    size = BatchSize(MOST)
    ridden(size, 10, each=0.0001)

    slow = ridden(size, 10, each=0.002)

    assert slow[0] == MOST * 0.002
    assert all(0.9 * MOMENT <= seconds <= MOMENT for seconds in slow[1:])


def test_however_slow_it_is_it_gets_on() -> None:
    size = BatchSize(MOST)
    ridden(size, 10, each=1.0)
    assert size.now == LEAST


def test_few_that_took_long_say_nothing_of_many() -> None:
    """Three that waited for a lane are no reason to do the herd in small pieces."""
    size = BatchSize(MOST)
    ridden(size, 10, each=0.0001)
    size.record_batch(3, 2.0)
    assert size.now == MOST


def test_one_that_wasnt_full_and_took_long_all_the_same_tells_enough() -> None:
    """There are so many slots, however many wait for them."""
    size = BatchSize(MOST)
    ridden(size, 10, each=0.0001)
    size.record_batch(80, 2 * MOMENT * 80 / 100)
    assert size.now == LEAST


def test_few_that_were_quick_are_no_reason_for_a_larger_batch() -> None:
    size = BatchSize(MOST)
    size.record_batch(LEAST - 1, 0.001)
    assert size.now == LEAST


def test_a_clock_that_stood_still_is_no_fault() -> None:
    size = BatchSize(MOST)
    size.record_batch(LEAST, 0.0)
    assert size.now > LEAST
