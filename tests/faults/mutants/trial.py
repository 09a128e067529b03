"""Trial: a copy of the tree, a small world that runs it, a ride, and the checker's verdict."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import SubprocessError

from faults.checker import check
from faults.checker.verdict import Verdict
from faults.day import clock_before
from faults.history import History, NoHistory
from faults.mutants.edits import DoesNotApply, Edit, Tree
from faults.mutants.rides import Ride
from faults.scenario import Run
from faults.world import daemons
from faults.world.world import World
from schedkit.errors import Unavailable

MEMBERS = WORKERS = 2
TROUBLES = (AssertionError, RuntimeError, OSError, SubprocessError, Unavailable, DoesNotApply)
"""Errors that may end a ride early: a mutant may break anything, a ride's own waits included."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Outcome of a trial. `trouble`: why the ride didn't end normally; with it a verdict is of what
    was recorded until then. `verdict` None: nothing was recorded.
    """

    verdict: Verdict | None
    trouble: str
    seconds: float
    history: Path

    @property
    def broken(self) -> frozenset[str]:
        """The names of the invariants that don't hold."""
        return self.verdict.broken if self.verdict is not None else frozenset()

    @property
    def whole(self) -> bool:
        """Whether the ride went to its end and everything holds, N1 included."""
        return not self.trouble and self.verdict is not None and not self.broken


def ride_on(ride: Ride, edits: Sequence[Edit], home: Path) -> Trial:
    """Ride once, with the edits of the ride's setting and these. What is left lies in `home`."""
    began = time.monotonic()
    history = home / "history"
    shutil.rmtree(home, ignore_errors=True)
    (home / "logs").mkdir(parents=True)
    trouble = ""
    try:
        tree = Tree(home / "tree", (*ride.setting, *edits))
        tree.prove()
        clock = clock_before(ride.day) if ride.day else None
        world = World(home / "logs", members=MEMBERS, workers=WORKERS, clock=clock)
        _arm(world, tree, ride)
        with world:
            ride.prepare(world)
            users = ride.day is None
            with Run(
                world, ride.name, history, mix=ride.mix, timings=ride.timings, load=users
            ) as run:
                ride.go(run, world)
    except TROUBLES as error:
        trouble = f"{type(error).__name__}: {error}"
    verdict = None
    try:
        verdict = check(History.read(history))
    except NoHistory as none:
        trouble = trouble or str(none)
    shutil.rmtree(home / "tree", ignore_errors=True)
    return Trial(verdict, trouble, time.monotonic() - began, history)


def _arm(world: World, tree: Tree, ride: Ride) -> None:
    for member in world.members.values():
        points = daemons.armed({**daemons.MEMBER_POINTS, **ride.points}, world.tickets)
        member.environ = {**points, **tree.environ}
    for name, worker in world.workers.items():
        armed = daemons.armed(ride.hands, world.tickets) if ride.hands and name == "w1" else {}
        worker.environ = {**armed, **tree.environ}
