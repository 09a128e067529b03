"""A member looks through its old objects when they are few, and else seldom."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from schedd.app.daemon import AT_LATEST, EVERY, FEW, Sweeper


@dataclass
class Clock:
    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now


@dataclass(eq=False)
class Loose:
    """An object that only refers to itself."""

    itself: list[Loose] = field(default_factory=list)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sweeper(clock: Clock) -> Iterator[Sweeper]:
    """Yield an active sweeper, and restore the collector afterwards."""
    before = gc.get_threshold()
    sweeper = Sweeper(clock)
    sweeper.take_over()
    yield sweeper
    gc.set_threshold(*before)


def old_and_loose() -> weakref.ref[Loose]:
    loose = Loose()
    gc.collect(1)  # it lived for as long as that: it counts as old
    loose.itself.append(loose)
    return weakref.ref(loose)


def held(count: int) -> list[list[int]]:
    much = [[number] for number in range(count)]
    gc.collect(1)
    return much


async def test_a_few_objects_are_collected_each_minute(sweeper: Sweeper, clock: Clock) -> None:
    loose = old_and_loose()
    assert loose() is not None

    clock.now += EVERY
    await sweeper.step()

    assert loose() is None


async def test_many_objects_are_collected_after_15_minutes_at_the_latest(
    sweeper: Sweeper, clock: Clock
) -> None:
    loose, much = old_and_loose(), held(2 * FEW)

    clock.now += AT_LATEST - 1
    await sweeper.step()
    assert loose() is not None
    clock.now += 1
    await sweeper.step()

    assert loose() is None
    assert len(much) == 2 * FEW


async def test_no_full_collection_runs_while_many_objects_are_created(sweeper: Sweeper) -> None:
    """Full collections stalled an owner of a herd, each time that it had grown by a quarter."""
    looks: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            looks.append(info["generation"])

    gc.callbacks.append(note)
    try:
        much = [[number] for number in range(3 * FEW)]
    finally:
        gc.callbacks.remove(note)

    assert len(much) == 3 * FEW
    assert 1 in looks
    assert 2 not in looks
