"""`python -m bench.peers` (from tests/): schedd's drain beside its peers, in turns. JSON lines.

A line that says how it is measured, one for each contestant of each round, and at the end one for
each contestant: its rate (median, least, greatest) and how many times as fast schedd was in the
same rounds. A peer that can't run here is reported with the reason, and the others run.
"""

from __future__ import annotations

import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.numbers import positive, some_seconds
from bench.peers.environments import CACHE
from bench.peers.racing import Race
from bench.peers.roster import OURSELVES, PEERS, Contestant
from bench.rig import note, tell

MEASURED: Final = (
    "jobs / (the moment its own store says that all are complete - the first start, by the line"
    " that each no-op appends to a file)"
)


def main(arguments: Sequence[str]) -> int:
    """Race, print. 1 when schedd came to no end, or lost or doubled anything."""
    options = _options(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and all that was started ends
    race = Race(options.jobs, options.cache, options.deadline)
    chosen = [peer for peer in PEERS if peer.name in options.peer]
    contestants: list[Contestant] = [OURSELVES, *chosen]
    tell("peers", rounds=options.rounds, jobs=options.jobs, measured=MEASURED)
    for number in range(1, options.rounds + 1):
        for contestant in contestants:
            note(f"round {number}: {contestant.name}")
            if figures := race.run(number, contestant):
                tell("peers", **figures)
    for contestant in contestants:
        tell("peers", **race.summary(contestant))
    return 0 if race.clean(OURSELVES) else 1


def _options(arguments: Sequence[str]) -> Namespace:
    names = [peer.name for peer in PEERS]
    asked = ArgumentParser(prog="python -m bench.peers", description=__doc__)
    asked.add_argument(
        "--jobs", type=positive, default=20_000, help="of schedd; some peers get a share"
    )
    asked.add_argument("--rounds", type=positive, default=3)
    asked.add_argument(
        "--deadline",
        type=some_seconds,
        default=300.0,
        help="seconds for a drain, and for putting its jobs in",
    )
    asked.add_argument(
        "--peer", action="append", choices=names, help="none but these; may be given often"
    )
    asked.add_argument("--cache", type=Path, default=CACHE, help="where peers are installed")
    options = asked.parse_args(arguments)
    options.peer = options.peer or names
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
