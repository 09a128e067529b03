"""Simulate the protocol under random faults, with all rules and without each rule (`make model`).

Exit codes:
0  With all rules, no invariant broke. Without each rule, an invariant broke.
1  With all rules, an invariant broke.
2  Without a rule, no invariant broke; or the simulations had too few events to prove anything.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from faults.model import search, story, table
from faults.model.rules import MEANINGS, Rule, taken_out

SEEDS = 2_000
SEEDS_WITHOUT = 500
UNSEEN = 2


def main(arguments: Sequence[str]) -> int:
    """Simulate, print the results, and return the exit code."""
    options = _parser().parse_args(arguments)
    without = options.without
    if options.seed is not None:
        return _replay(options.seed, frozenset().union(*map(taken_out, without)))
    code = 0
    if not without:
        code = _all(options.seeds or SEEDS, options.first)
    print(table.heading())
    idle: list[str] = []
    seeds = range(options.first, options.first + (options.seeds or SEEDS_WITHOUT))
    for rule in sorted(without or Rule, key=list(Rule).index):
        tally = search.tally(seeds, taken_out(rule))
        print(table.rule(rule, tally), flush=True)
        if without:
            print("\n".join(table.examples(tally)))
        if not tally.broken:
            idle.append(rule)
    if idle:
        print(f"no invariant broke in {len(seeds)} seeds without these rules: {', '.join(idle)}")
        print(f"{SEEDS_WITHOUT} seeds are enough to show the effect of a rule (make model SEEDS=…)")
    return code or (UNSEEN if idle else 0)


def _all(seeds: int, first: int) -> int:
    tally = search.tally(range(first, first + seeds))
    print(table.all_rules(tally), flush=True)
    for line in table.examples(tally):
        print(f"  {line}   (make model SEED=…)")
    if meager := table.meager(tally):
        print(f"too few events of these kinds to prove anything: {', '.join(meager)}")
    return 1 if tally.broken else UNSEEN if meager else 0


def _replay(seed: int, without: frozenset[Rule]) -> int:
    outcome = story.replay(seed, without, print)
    return 1 if outcome.broken else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m faults.model",
        description=__doc__,
        epilog="rules:\n" + "\n".join(f"  {rule:25} {MEANINGS[rule].text}" for rule in Rule),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seeds",
        type=_count,
        help=f"seeds to simulate (default: {SEEDS} with all rules, {SEEDS_WITHOUT} without a rule)",
    )
    parser.add_argument("--first", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument("--seed", type=int, help="simulate this seed, and print its last events")
    parser.add_argument(
        "--without",
        type=_rule,
        action="append",
        default=[],
        metavar="RULE",
        help="rule to remove, from the list below; repeatable (default: each rule in turn)",
    )
    return parser


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text} isn't valid: give a whole number, 1 or more")
    return int(text)


def _rule(name: str) -> Rule:
    try:
        return Rule(name)
    except ValueError:
        valid = ", ".join(Rule)
        raise argparse.ArgumentTypeError(f"unknown rule {name!r}; valid rules: {valid}") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
