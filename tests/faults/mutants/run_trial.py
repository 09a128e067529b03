"""Run one trial: a copy of the tree, a small world that runs it, faults, the checker's verdict."""

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
from faults.mutants.trials import Trial
from faults.scenario import Run
from faults.world import daemons
from faults.world.world import World
from schedkit.errors import Unavailable

MEMBERS = WORKERS = 2
TROUBLES = (AssertionError, RuntimeError, OSError, SubprocessError, Unavailable, DoesNotApply)
"""Errors that may end a trial early: a mutant may break anything, a trial's own waits included."""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """Outcome of a trial. `trouble`: why the trial didn't end normally; the verdict is then about
    the history until that time. `verdict` None: nothing was recorded.
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
        """Whether the trial went to its end and everything holds, N1 included."""
        return not self.trouble and self.verdict is not None and not self.broken


def run_trial(trial: Trial, edits: Sequence[Edit], home: Path) -> TrialResult:
    """Run a trial once, with the edits of its setting and these. What is left lies in `home`."""
    began = time.monotonic()
    history = home / "history"
    shutil.rmtree(home, ignore_errors=True)
    (home / "logs").mkdir(parents=True)
    trouble = ""
    try:
        tree = Tree(home / "tree", (*trial.setting, *edits))
        tree.prove()
        clock = clock_before(trial.day) if trial.day else None
        world = World(home / "logs", members=MEMBERS, workers=WORKERS, clock=clock)
        _set_failpoints(world, tree, trial)
        with world:
            trial.prepare(world)
            users = trial.day is None
            with Run(
                world, trial.name, history, mix=trial.mix, timings=trial.timings, load=users
            ) as run:
                trial.go(run, world)
    except TROUBLES as error:
        trouble = f"{type(error).__name__}: {error}"
    verdict = None
    try:
        verdict = check(History.read(history))
    except NoHistory as none:
        trouble = trouble or str(none)
    shutil.rmtree(home / "tree", ignore_errors=True)
    return TrialResult(verdict, trouble, time.monotonic() - began, history)


def _set_failpoints(world: World, tree: Tree, trial: Trial) -> None:
    for member in world.members.values():
        points = daemons.armed({**daemons.MEMBER_POINTS, **trial.points}, world.tickets)
        member.environ = {**points, **tree.environ}
    for name, worker in world.workers.items():
        armed = daemons.armed(trial.hands, world.tickets) if trial.hands and name == "w1" else {}
        worker.environ = {**armed, **tree.environ}
