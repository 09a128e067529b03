"""Runs seeds: each is one world, judged until an invariant breaks or its steps are over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from faults.model import cycles
from faults.model.nemesis import Nemesis, end_faults
from faults.model.owner import Member
from faults.model.promises import Broken
from faults.model.rules import Rule
from faults.model.weather import Weather
from faults.model.worker import Worker
from faults.model.world import World

STEPS = 9_000
NONE: frozenset[Rule] = frozenset()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one seed: what was judged in it, and what broke, if anything."""

    seed: int
    seen: Counter[str]
    broken: Broken | None


@dataclass(slots=True)
class Tally:
    """Outcome of many seeds."""

    seeds: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    first: dict[str, Outcome] = field(default_factory=dict)
    """By invariant, the first seed that broke it."""

    def add(self, outcome: Outcome) -> None:
        """Count it."""
        self.seeds += 1
        self.seen.update(outcome.seen)
        if outcome.broken is not None:
            self.broken[outcome.broken.invariant] += 1
            self.first.setdefault(outcome.broken.invariant, outcome)


def world_of(seed: int, without: frozenset[Rule] = NONE, weather: Weather | None = None) -> World:
    """Two members, three workers, and what is against them; `weather` None: the seed's own."""
    world = World(seed, without, weather)
    world.workers += [Worker(world, number) for number in range(3)]
    nemesis = Nemesis(world)
    world.members += [Member(world) for _ in range(2)]
    for process in (nemesis.faults(), nemesis.users(), nemesis.network(), nemesis.network()):
        world.spawn(process)
    return world


def live(world: World) -> None:
    """From its beginning to its end. Raises Broken."""
    world.run(STEPS)
    if world.chained:
        end_faults(world)
        cycles.await_joins(world)


def outcome(seed: int, without: frozenset[Rule] = NONE, weather: Weather | None = None) -> Outcome:
    """Run one seed, from its beginning to its end."""
    world = world_of(seed, without, weather)
    try:
        live(world)
    except Broken as broken:
        return Outcome(seed, world.judge.seen, broken)
    return Outcome(seed, world.judge.seen, None)


def outcomes(seeds: Iterable[int], without: frozenset[Rule] = NONE) -> Iterator[Outcome]:
    """Run the seeds one after the other."""
    return (outcome(seed, without) for seed in seeds)


def tally(seeds: Iterable[int], without: frozenset[Rule] = NONE) -> Tally:
    """All of them, counted."""
    counted = Tally()
    for each in outcomes(seeds, without):
        counted.add(each)
    return counted
