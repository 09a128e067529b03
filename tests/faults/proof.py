"""The section of docs/evidence/fault-tests.md on the mutants that the checker caught."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from faults.mutants.catalogue import MUTANTS
from faults.mutants.mutant import Mutant

HEAD = """
## The checker finds broken guarantees

A mutant is schedd or workerd with one guarantee removed. A mutant counts as caught only if it
breaks the named [invariant](../reliability.md#invariants). The last rows are the same tests without
a mutant. In these tests, the unchanged programs must break no invariant.

| mutant: change | test | invariant that must break | invariants that broke | measured |
|---|---|---|---|---|
"""
PRODUCT = "(the product)"
EARLIER_NAMES = {
    "fold-unwritten": "merged-rows-unwritten",
    "handed-out-late": "dispatched-late",
    "calm": "no faults",
    "calm, owners untold of changes": "no faults, owners unaware of changes",
    "calm, assignments sent twice": "no faults, assignments sent twice",
}
"""Present names of mutants and trials, by their names in evidence, which is never edited."""


def proof(results: Iterable[Mapping[str, Any]]) -> str:
    """The section; of several results of one build in one trial the last counts."""
    latest = {_key(result): result for result in results}
    trials = dict.fromkeys(mutant.trial.name for mutant in MUTANTS)
    lines = [_of_mutant(mutant, latest.get((mutant.name, mutant.trial.name))) for mutant in MUTANTS]
    return "".join((HEAD, *lines, *_of_product(latest, trials)))


def present_name(recorded: str) -> str:
    """Return the present name of a recorded build or trial."""
    return EARLIER_NAMES.get(recorded, recorded)


def _key(result: Mapping[str, Any]) -> tuple[str, str]:
    """Return the names of a result's build and trial. Older evidence calls the trial `ride`."""
    trial = result["trial"] if "trial" in result else result["ride"]
    return present_name(result["build"]), present_name(trial)


def _of_mutant(mutant: Mutant, result: Mapping[str, Any] | None) -> str:
    what = f"| `{mutant.name}`: {mutant.lacks} | {mutant.trial.name} | {mutant.caught_by} |"
    return f"{what} {_came_out(result)} |\n"


def _of_product(
    latest: Mapping[tuple[str, str], Mapping[str, Any]], trials: Iterable[str]
) -> Iterator[str]:
    for trial in trials:
        result = _came_out(latest.get((PRODUCT, trial)))
        yield f"| no mutant: no change | {trial} | none | {result} |\n"


def _came_out(result: Mapping[str, Any] | None) -> str:
    if result is None:
        return "not measured yet |"
    broken = " ".join(result["broken"]) or "none"
    fate = "" if result["right"] else " **not as expected**"
    return f"{broken}{fate} | {result['date']}, {result['commit']}"
