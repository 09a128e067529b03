"""The checker: a history in, a verdict out. Pure: it reads no clock, no file, no product.

    History ─→ World (tables through time, lives of jobs, assignments, what the oracle owes)
                 └─→ one named function an invariant ─→ violations with their evidence ─→ Verdict

A history in which the cluster's clock was moved is converted to it first (`cluster_time`); one
in whose midst the database was put back is judged as two (`restored`).

What decides is what happened outside of the product (the lines of the probe jobs, the oracle's
instants) and the order in which the database committed; the product's own accounts are what is
judged. The invariants of docs/reliability.md, by family:

    results    S1 S2 S3     overlap   S9      coverage   L1 L2
    epochs     S4 S13       attempts  S10     liveness   L3 L4
    instants   S5 … S8      calls     S11     extras     L5
                            terminal  S12     resources  L6      validity  N1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from faults.checker import restored
from faults.checker.attempts import s10
from faults.checker.calls import s11
from faults.checker.cluster_time import in_cluster_time
from faults.checker.coverage import l1, l2
from faults.checker.epochs import s4, s13
from faults.checker.extras import l5
from faults.checker.figures import figures_of
from faults.checker.instants import s5, s6, s7, s8
from faults.checker.liveness import l3, l4
from faults.checker.overlap import s9
from faults.checker.resources import l6
from faults.checker.results import s1, s2, s3
from faults.checker.terminal import s12
from faults.checker.validity import n1
from faults.checker.verdict import Figures, Status, Verdict, Violation, render
from faults.checker.world import World
from faults.history import History

__all__ = ["INVARIANTS", "Figures", "Status", "Verdict", "Violation", "check", "table"]


@dataclass(frozen=True, slots=True)
class Invariant:
    """A name, its sentence, and the function that finds where it doesn't hold."""

    name: str
    sentence: str
    broken: Callable[[World], Iterable[Violation]]


INVARIANTS = (
    Invariant("S1", "each run has at most one accepted result, which a worker sent", s1),
    Invariant("S2", "no result is accepted after a greater token of its run was stored", s2),
    Invariant("S3", "tokens, epochs and terms only grow", s3),
    Invariant("S4", "an owner writes only under the newest epoch of its shard", s4),
    Invariant("S5", "a job has at most one scheduled run for each scheduled time", s5),
    Invariant("S6", "each scheduled time is a time of the job's schedule", s6),
    Invariant("S7", "no run starts before its due time", s7),
    Invariant(
        "S8",
        "after a pause, edit or delete has answered ok, no run starts that contradicts the call",
        s8,
    ),
    Invariant("S9", "runs of a job overlap only as the job's policy permits", s9),
    Invariant("S10", "an attempt starts only after the previous attempt has ended", s10),
    Invariant("S11", "acknowledged calls are durable; failed calls change nothing", s11),
    Invariant("S12", "the state of an ended run never changes", s12),
    Invariant("S13", "at most one member at a time writes for a shard", s13),
    Invariant("L1", "each due time runs, or a row says why it didn't run", l1),
    Invariant("L2", "each run starts on time, or within the delay that the fault permits", l2),
    Invariant(
        "L3",
        "soon after the fault, the cluster has a leader, all shards have an owner, all workers run",
        l3,
    ),
    Invariant(
        "L4",
        "after a test no run is unfinished, no result is unsent, and no process of a run is left",
        l4,
    ),
    Invariant("L5", "a fault or a retry explains each second start of a run", l5),
    Invariant("L6", "memory, descriptors, connections and spools shrink to their first size", l6),
    Invariant("N1", "the records of the test are complete enough to show a violation", n1),
)


def check(history: History) -> Verdict:
    """Judge a history. Never raises for what a product may have done; a bug here does.

    Where no commit was recorded nothing can be judged, and only that is said.
    """
    worlds = [World(each) for each in _parts(in_cluster_time(history))]
    judges = INVARIANTS if history.commits else INVARIANTS[-1:]
    found = [violation for world in worlds for each in judges for violation in each.broken(world)]
    figures = figures_of(worlds[0])
    if history.restore is not None:
        found += restored.between(history, *worlds)
        figures = restored.added(figures, figures_of(worlds[1]))
    return Verdict(
        scenario=history.meta.scenario,
        seed=history.meta.seed,
        figures=figures,
        violations=tuple(each for each in found if each.invariant != "N1"),
        doubts=tuple(each for each in found if each.invariant == "N1"),
    )


def _parts(history: History) -> Sequence[History]:
    return restored.split(history) if history.restore is not None else [history]


def table(verdict: Verdict) -> str:
    """The verdict for people: each invariant, the figures, the evidence."""
    return render(verdict, [(each.name, each.sentence) for each in INVARIANTS])
