"""Text report of the simulations: the number of events, and the effect of each removed rule."""

from __future__ import annotations

from faults.model.rules import MEANINGS, Rule
from faults.model.search import Tally

JUDGED = ("fired", "assigned", "started", "accepted", "takeovers", "ok", "joined")
ENOUGH = {"fired": 10, "assigned": 8, "started": 5, "accepted": 4, "ok": 1, "joined": 0.3}
"""Average number of events in a seed, below which the simulations prove nothing."""


def all_rules(tally: Tally) -> str:
    """Return the line for the protocol with all rules."""
    each = ", ".join(f"{tally.seen[kind] / tally.seeds:.1f} {kind}" for kind in JUDGED)
    return (
        f"all {len(Rule)} rules: {sum(tally.broken.values())} violations in {tally.seeds} seeds"
        f" (average events in a seed: {each})"
    )


def meager(tally: Tally) -> list[str]:
    """Return kinds of events that were too rare to prove anything."""
    return [kind for kind, least in ENOUGH.items() if tally.seen[kind] < least * tally.seeds]


def heading() -> str:
    """Return the heading of the table."""
    return (
        f"{'removed rule':25} {'':5} {'broken in':>10}  {'invariants':26} behavior without the rule"
    )


def rule(name: Rule, tally: Tally) -> str:
    """Return the line for one removed rule."""
    broken = sum(tally.broken.values())
    by = " ".join(f"{invariant}:{count}" for invariant, count in tally.broken.most_common())
    meaning = MEANINGS[name]
    seeds = f"{broken}/{tally.seeds}"
    return f"{name:25} {meaning.place:5} {seeds:>10}  {by or 'none':26} {meaning.without}"


def examples(tally: Tally) -> list[str]:
    """Return, for each broken invariant, its first seed and the violation."""
    return [
        f"{invariant} seed {first.seed}: {first.broken.why}"
        for invariant, first in sorted(tally.first.items())
        if first.broken is not None
    ]
