"""Report of a search, in lines for people: how much was judged, and the purpose of each rule."""

from __future__ import annotations

from faults.model.rules import MEANINGS, Rule
from faults.model.search import MinuteTally

JUDGED = ("fired", "assigned", "started", "accepted", "takeovers", "ok", "joined")
ENOUGH = {"fired": 10, "assigned": 8, "started": 5, "accepted": 4, "ok": 1, "joined": 0.3}
"""Events a seed, on the average, below which nothing was shown."""


def all_rules(tally: MinuteTally) -> str:
    """The line of the whole protocol."""
    each = ", ".join(f"{tally.seen[kind] / tally.seeds:.1f} {kind}" for kind in JUDGED)
    return (
        f"all {len(Rule)} rules: {sum(tally.broken.values())} violations in {tally.seeds} seeds"
        f" (a seed: {each})"
    )


def meager(tally: MinuteTally) -> list[str]:
    """Kinds of events of which too few happened for a search to have shown anything."""
    return [kind for kind, least in ENOUGH.items() if tally.seen[kind] < least * tally.seeds]


def heading() -> str:
    """Above the rules."""
    return f"{'without':25} {'':5} {'broken in':>10}  {'by':26} what is done instead"


def rule(name: Rule, tally: MinuteTally) -> str:
    """The line of one rule that was taken out."""
    broken = sum(tally.broken.values())
    by = " ".join(f"{invariant}:{count}" for invariant, count in tally.broken.most_common())
    meaning = MEANINGS[name]
    seeds = f"{broken}/{tally.seeds}"
    return f"{name:25} {meaning.place:5} {seeds:>10}  {by or 'nothing':26} {meaning.without}"


def examples(tally: MinuteTally) -> list[str]:
    """The first seed of each invariant that broke, and what it says."""
    return [
        f"{invariant} seed {first.seed}: {first.broken.why}"
        for invariant, first in sorted(tally.first.items())
        if first.broken is not None
    ]
