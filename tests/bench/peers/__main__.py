"""Compare how fast schedd and other schedulers run a backlog of jobs, in alternating order.

The output has JSON lines: the method of measurement, then one line for each scheduler in each
round. The last lines have each scheduler's rate (median, least, greatest), and how many times
faster schedd was in the same rounds. If a scheduler can't run on this machine, its line has the
reason, and the other schedulers run.
"""

from __future__ import annotations

import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.numbers import plain_parser, positive, some_seconds
from bench.peers.environments import CACHE
from bench.peers.racing import Race
from bench.peers.roster import OURSELVES, PEERS, Contestant
from bench.rig import note, tell

MEASURED: Final = (
    "jobs / (time at which the scheduler's own store reports all jobs as complete - time of the"
    " first start, from the line that each job appends to a file)"
)


def main(arguments: Sequence[str]) -> int:
    """Compare, print, and return 1 if schedd didn't finish, or lost or doubled a job."""
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
    asked = plain_parser("bench.peers", __doc__)
    asked.add_argument(
        "--jobs",
        type=positive,
        default=20_000,
        help="jobs in each share; fast schedulers get up to five, slow ones less than one",
    )
    asked.add_argument("--rounds", type=positive, default=3, help="rounds to run")
    asked.add_argument(
        "--deadline",
        type=some_seconds,
        default=300.0,
        help="timeout in seconds, for queueing the jobs and for running the jobs",
    )
    asked.add_argument(
        "--peer",
        action="append",
        choices=names,
        help="scheduler to compare; repeatable",
    )
    asked.add_argument(
        "--cache",
        type=Path,
        default=CACHE,
        help="folder in which the other schedulers are installed",
    )
    options = asked.parse_args(arguments)
    options.peer = options.peer or names
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
