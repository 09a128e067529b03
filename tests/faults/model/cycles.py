"""Invariants of chains: at the commit of a child's row, and at the end of a quiet time.

C1 a cycle has one decision, and one run of the child; C2 none before every parent has succeeded in
it; C3 none is skipped for want of a parent whose run is there; C4 what ended isn't forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from faults.model.chains import CHILD, PARENTS, may_come
from faults.model.promises import Broken, Promises
from faults.model.rows import Database, JobId, Run, RunId, Transaction
from faults.model.timing import AGAIN, SECOND, TRIGGERED, cycle_of

if TYPE_CHECKING:
    from faults.model.world import World

QUIET = 600 * SECOND
"""At most: as a rule it ends at once. The model's processes take turns, so after a storm of
restarts one that has to take a shard again gets there late; what is forgotten never does.
"""


class Cycles:
    """Looks at each row of the child that is inserted."""

    def __init__(self) -> None:
        self._since: dict[RunId, int] = {}
        """When the runs of parents were inserted."""

    def inserted(self, transaction: Transaction, key: RunId, new: Run, promises: Promises) -> bool:
        """Whether it is the child's, of a cycle. Raises Broken."""
        cycle = cycle_of(key[1])
        if key[0] in PARENTS:
            self._since[key] = transaction.database.now
        if key[0] != CHILD or not cycle:
            return False
        promises.begins(key, first=False)
        again = AGAIN <= key[1] < AGAIN + TRIGGERED
        if cycle in promises.decided and not again:
            raise Broken("C1", f"cycle {cycle} has two rows of the child job: {key}")
        promises.decided.add(cycle)
        ends = _of_cycle(transaction.database, cycle)
        if new.state == "PENDING":
            if cycle in promises.joined:
                raise Broken("C1", f"cycle {cycle} has two runs of the child job: {key}")
            promises.joined.add(cycle)
            for parent, runs in ends.items():
                if not any(run.state == "SUCCEEDED" for run in runs.values()):
                    raise Broken("C2", f"{key} is created, but parent {parent} hasn't succeeded")
        elif new.parent_states is not None:
            for parent, runs in ends.items():
                there = [each for each in runs if self._since[each] < transaction.began]
                if parent not in dict(new.parent_states) and there:
                    raise Broken(
                        "C3", f"{key} is skipped as if the parent's run {there[0]} were missing"
                    )
        return True


def await_joins(world: World) -> None:
    """Without faults, the ends of parents reach the child, however
    long that takes. Raises Broken.
    """
    until = world.now + QUIET
    forgotten = _unjoined(world)
    while forgotten and world.now < until:
        world.run(world.now + SECOND)
        forgotten &= _unjoined(world)
    if forgotten:
        raise Broken("C4", f"cycle {min(forgotten)}: the parents ended, and the child has no run")


def _unjoined(world: World) -> set[int]:
    """Return cycles in which parents have ended and none may still come, without the due row."""
    rows = world.database
    cycles = {cycle_of(key[1]) for parent in PARENTS for key, _ in rows.runs_of(parent)} - {0}
    if rows.timers.get(CHILD) is None:
        return set()
    return {cycle for cycle in cycles if _misses(world, cycle)}


def _misses(world: World, cycle: int) -> bool:
    if any(may_come(world, parent, cycle) for parent in PARENTS):
        return False
    ends = _of_cycle(world.database, cycle)
    met = all(any(run.state == "SUCCEEDED" for run in runs.values()) for runs in ends.values())
    made = [run for key, run in world.database.runs_of(CHILD) if cycle_of(key[1]) == cycle]
    return not made or (met and all(run.parent_states is not None for run in made))


def _of_cycle(rows: Database, cycle: int) -> dict[JobId, dict[RunId, Run]]:
    """The runs of each parent in it."""
    return {
        parent: {key: run for key, run in rows.runs_of(parent) if cycle_of(key[1]) == cycle}
        for parent in PARENTS
    }
