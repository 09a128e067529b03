"""The checker's own proof, as a section of docs/reliability.md: which mutant it caught by what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from faults.checker import INVARIANTS
from faults.mutants.catalogue import MUTANTS
from faults.mutants.mutant import Mutant

HEAD = """
## The checker's own proof

The checker tests these invariants:

| invariant | meaning |
|---|---|
{invariants}
A mutant is the product with one guarantee removed. A mutant counts as caught only if it breaks the
named invariant. In the same test, the product itself must break no invariant.

| mutant: change | test | must break | has broken | measured |
|---|---|---|---|---|
"""
PRODUCT = "(the product)"


def proof(trials: Iterable[Mapping[str, Any]]) -> str:
    """The section; of several trials of one build on one ride the last counts."""
    latest = {(trial["build"], trial["ride"]): trial for trial in trials}
    rides = dict.fromkeys(mutant.ride.name for mutant in MUTANTS)
    lines = [_of_mutant(mutant, latest.get((mutant.name, mutant.ride.name))) for mutant in MUTANTS]
    invariants = "".join(f"| {each.name} | {each.sentence} |\n" for each in INVARIANTS)
    return "".join((HEAD.format(invariants=invariants), *lines, *_of_product(latest, rides)))


def _of_mutant(mutant: Mutant, trial: Mapping[str, Any] | None) -> str:
    what = f"| `{mutant.name}`: {mutant.lacks} | {mutant.ride.name} | {mutant.caught_by} |"
    return f"{what} {_came_out(trial)} |\n"


def _of_product(
    latest: Mapping[tuple[str, str], Mapping[str, Any]], rides: Iterable[str]
) -> Iterator[str]:
    for ride in rides:
        yield f"| the product | {ride} | none | {_came_out(latest.get((PRODUCT, ride)))} |\n"


def _came_out(trial: Mapping[str, Any] | None) -> str:
    if trial is None:
        return "not measured yet |"
    broken = " ".join(trial["broken"]) or "none"
    fate = "" if trial["right"] else " **not as expected**"
    return f"{broken}{fate} | {trial['date']}, {trial['commit']}"
