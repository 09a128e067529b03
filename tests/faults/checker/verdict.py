"""Verdict of the checker: each violation with its evidence, the figures, and a status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

SHOWN = 5
"""Violations of one invariant that a table prints in full."""


class Status(StrEnum):
    """INCONCLUSIVE is a failure too: the run of the test proves nothing."""

    OK = "ok"
    VIOLATED = "violated"
    INCONCLUSIVE = "inconclusive"

    @property
    def exit_code(self) -> int:
        """Of `python -m faults.checker`."""
        return {"ok": 0, "violated": 1, "inconclusive": 2}[self.value]


@dataclass(frozen=True, slots=True)
class Violation:
    """Violation of one invariant, in words that a person can act on."""

    invariant: str
    what: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a row in docs/evidence/fault-tests.md: counts, seconds, or per 10,000."""

    judged: int = 0
    on_time: int = 0
    late: int = 0
    missed: int = 0
    lost: int = 0
    doubled: int = 0
    explained: int = 0
    longest_gap: float = 0.0
    max_lateness: float = 0.0
    stale: int = 0
    overlaps: int = 0

    @property
    def misses_per_10_000(self) -> float:
        """Lost instants."""
        return 10_000 * self.lost / self.judged if self.judged else 0.0

    @property
    def duplicates_per_10_000(self) -> float:
        """All extra starts, the explained ones too."""
        extra = self.doubled + self.explained
        return 10_000 * extra / self.judged if self.judged else 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """All that was found. `violations`: S and L; `doubts`: why the run may prove nothing (N1)."""

    scenario: str
    seed: int
    figures: Figures
    violations: tuple[Violation, ...] = ()
    doubts: tuple[Violation, ...] = ()

    @property
    def status(self) -> Status:
        """A violation is one even where the run would otherwise prove nothing."""
        if self.violations:
            return Status.VIOLATED
        return Status.INCONCLUSIVE if self.doubts else Status.OK

    @property
    def broken(self) -> frozenset[str]:
        """The names of the invariants that were broken."""
        return frozenset(each.invariant for each in (*self.violations, *self.doubts))

    def lines(self, most: int) -> list[str]:
        """All that was found, each in a line; past the first `most`, how many more there are."""
        found = [f"{each.invariant}: {each.what}" for each in (*self.violations, *self.doubts)]
        more = len(found) - most
        return [*found[:most], f"and {more} more"] if more > 0 else found

    def as_json(self) -> dict[str, Any]:
        """For verdict.json and docs/evidence."""
        figures = self.figures
        return {
            "scenario": self.scenario,
            "seed": self.seed,
            "status": self.status.value,
            "figures": {
                "judged": figures.judged,
                "on_time": figures.on_time,
                "late": figures.late,
                "missed_with_reason": figures.missed,
                "lost": figures.lost,
                "doubled_without_explanation": figures.doubled,
                "extra_starts_explained": figures.explained,
                "longest_gap_s": round(figures.longest_gap, 3),
                "max_lateness_s": round(figures.max_lateness, 3),
                "misses_per_10000": round(figures.misses_per_10_000, 3),
                "duplicates_per_10000": round(figures.duplicates_per_10_000, 3),
                "stale_results_refused": figures.stale,
                "overlaps_explained": figures.overlaps,
            },
            "violations": [
                {"invariant": v.invariant, "what": v.what, "evidence": list(v.evidence)}
                for v in (*self.violations, *self.doubts)
            ],
        }


def render(verdict: Verdict, invariants: Sequence[tuple[str, str]]) -> str:
    """The verdict as a table; `invariants`: name and sentence of each."""
    found = (*verdict.violations, *verdict.doubts)
    counts = Counter(each.invariant for each in found)
    width = max(len(sentence) for _, sentence in invariants)
    lines = [f"{verdict.scenario} (seed {verdict.seed}): {verdict.status.value.upper()}", ""]
    for name, sentence in invariants:
        state = f"BROKEN {counts[name]}×" if counts[name] else "holds"
        lines.append(f"  {name:<4}{sentence:<{width}}  {state}")
    lines.append("")
    for key, value in verdict.as_json()["figures"].items():
        lines.append(f"  {key.replace('_', ' '):<30}{value:>10}")
    for name, _ in invariants:
        mine = [each for each in found if each.invariant == name]
        for violation in mine[:SHOWN]:
            lines += ["", f"{name}: {violation.what}"]
            lines += [f"    {line}" for line in violation.evidence]
        if len(mine) > SHOWN:
            lines += ["", f"{name}: … and {len(mine) - SHOWN} more"]
    return "\n".join(lines) + "\n"
