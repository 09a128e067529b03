"""Try each mutant, and the product as it is; print which invariant caught which mutant.

    ../.venv/bin/python -m faults.mutants [NAME…] [--jobs N] [--only-mutants | --only-product]

Exit code: 0 each mutant was caught by the invariant it names and the product passed each trial;
1 otherwise; 64 no such mutant, or no world can be built here. Histories of what failed are kept.
With EVIDENCE=1 each trial adds a line to docs/evidence/mutants.jsonl.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults import evidence
from faults.dump import commit_of_tree
from faults.mutants.catalogue import MUTANTS
from faults.mutants.edits import Edit
from faults.mutants.mutant import Mutant
from faults.mutants.run_trial import TrialResult, run_trial
from faults.mutants.trials import Trial
from faults.proof import PRODUCT
from faults.world.needs import lacking_here

KEPT = Path(tempfile.gettempdir()) / "schedd-mutants"
SHOWN = 3
NEEDS_AN_END = ("L1", "L2")
"""Errors that a scenario raises when it is cut short."""
NO_WORLD = 64


@dataclass(frozen=True, slots=True)
class Planned:
    """Trial of a plan. `expected`: an invariant; None: the product, and nothing may break."""

    name: str
    trial: Trial
    edits: Sequence[Edit] = ()
    expected: str | None = None

    @property
    def home(self) -> Path:
        """Where what it leaves lies."""
        return KEPT / re.sub("[^a-z]+", "-", f"{self.name} {self.trial.name}".lower()).strip("-")

    def right(self, result: TrialResult) -> bool:
        """Whether the result is as expected. Late or missing runs count only in a complete trial: a
        trial that was cut short has them anyway.
        """
        if self.expected is None:
            return result.whole
        cut_short = bool(result.trouble) and self.expected in NEEDS_AN_END
        return self.expected in result.broken and not cut_short


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; gives its exit code."""
    parser = argparse.ArgumentParser(prog="python -m faults.mutants")
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants; all if none is named")
    parser.add_argument("--list", action="store_true", help="list them, and try none")
    parser.add_argument("--jobs", type=int, default=1, help="mutants that are tried at once")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only-mutants", action="store_true")
    which.add_argument("--only-product", action="store_true", help="only the trials of the product")
    asked = parser.parse_args(arguments)
    known = {mutant.name: mutant for mutant in MUTANTS}
    if unknown := [name for name in asked.names if name not in known]:
        print(f"no mutant is called {', '.join(unknown)}; there are: {', '.join(known)}")
        return NO_WORLD
    chosen = [known[name] for name in asked.names] or list(MUTANTS)
    if asked.list:
        for mutant in chosen:
            print(f"{mutant.name:<24}{mutant.caught_by:<5}{mutant.trial.name:<38}{mutant.lacks}")
        return 0
    if lack := lacking_here(clocks=any(mutant.trial.day for mutant in chosen)):
        print(f"mutants can't be tried here: {lack}", file=sys.stderr)
        return NO_WORLD
    print(f"{'mutant':<24}{'trial':<38}{'expected':<10}{'broken':<28}{'s':>5}", flush=True)
    right = True
    if not asked.only_product:
        right &= _all(_mutants(chosen), asked.jobs)
    if not asked.only_mutants:  # one by one: the product must be on time
        right &= _all(_product(chosen), 1)
    return 0 if right else 1


def _mutants(chosen: Iterable[Mutant]) -> Iterator[Planned]:
    for mutant in chosen:
        yield Planned(mutant.name, mutant.trial, mutant.edits, mutant.caught_by)


def _product(chosen: Iterable[Mutant]) -> Iterator[Planned]:
    for trial in {mutant.trial.name: mutant.trial for mutant in chosen}.values():
        yield Planned(PRODUCT, trial)


def _all(planned: Iterable[Planned], jobs: int) -> bool:
    """Make these trials, so many at once; whether all came out as expected."""
    with ThreadPoolExecutor(jobs, "trial") as pool:
        trials = {pool.submit(run_trial, one.trial, one.edits, one.home): one for one in planned}
        right = [_report(trials[done], done.result()) for done in as_completed(trials)]
    return all(right)


def _report(planned: Planned, result: TrialResult) -> bool:
    right = planned.right(result)
    expected = planned.expected or "nothing"
    broken = " ".join(sorted(result.broken, key=_order)) or "nothing"
    fate = "" if right else "  BROKEN" if planned.expected is None else "  SURVIVED"
    print(
        f"{planned.name:<24}{planned.trial.name:<38}{expected:<10}{broken:<28}"
        f"{result.seconds:5.0f}{fate}",
        flush=True,
    )
    if os.environ.get("EVIDENCE"):
        evidence.write(_line(planned, result, right), evidence.TRIALS)
    if right:
        shutil.rmtree(planned.home, ignore_errors=True)
        return True
    if result.trouble:
        print(f"    {result.trouble}")
    if result.verdict is not None:
        for each in (*result.verdict.violations, *result.verdict.doubts)[:SHOWN]:
            print(f"    {each.invariant}: {each.what}")
    print(f"    the history is kept: {result.history}", flush=True)
    return False


def _line(planned: Planned, result: TrialResult, right: bool) -> dict[str, Any]:
    return {
        "build": planned.name,
        "trial": planned.trial.name,
        **evidence.when(time.time()),
        "commit": commit_of_tree(),
        "expected": planned.expected,
        "broken": sorted(result.broken, key=_order),
        "right": right,
        "trouble": result.trouble,
        "seconds": round(result.seconds, 1),
    }


def _order(invariant: str) -> tuple[str, int]:
    return invariant[0], int(invariant[1:])


if __name__ == "__main__":
    sys.exit(main())
