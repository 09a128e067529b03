"""`python -m faults.model` (from tests/): what `make model` runs.

Exit code 0: no invariant broke with all rules, and each rule's absence was seen. 1: a violation
of the protocol itself. 2: a rule was taken out and nothing broke, or too little happened.
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
    """Search, print, and say by the exit code what was found."""
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
        summary = f"taken out, these broke nothing in {len(seeds)} seeds: {', '.join(idle)}"
        print(f"{summary}; a rule with an effect shows in {SEEDS_WITHOUT} (make model SEEDS=…)")
    return code or (UNSEEN if idle else 0)


def _all(seeds: int, first: int) -> int:
    tally = search.tally(range(first, first + seeds))
    print(table.all_rules(tally), flush=True)
    for line in table.examples(tally):
        print(f"  {line}   (make model SEED=…)")
    if meager := table.meager(tally):
        print(f"too little was judged: {', '.join(meager)}")
    return 1 if tally.broken else UNSEEN if meager else 0


def _replay(seed: int, without: frozenset[Rule]) -> int:
    outcome = story.replay(seed, without, print)
    return 1 if outcome.broken else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="faults.model", description=__doc__)
    parser.add_argument("--seeds", type=_count, help="how many seeds each line has")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="one seed, with what happened last in it")
    parser.add_argument(
        "--without",
        type=_rule,
        action="append",
        default=[],
        metavar="RULE",
        help="take this rule out: "
        + ", ".join(f"{rule} ({MEANINGS[rule].within})" for rule in Rule),
    )
    return parser


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text}: a whole number of seeds, at least 1, is wanted")
    return int(text)


def _rule(name: str) -> Rule:
    try:
        return Rule(name)
    except ValueError:
        there = ", ".join(Rule)
        raise argparse.ArgumentTypeError(f"there is no rule {name!r}; there are: {there}") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
