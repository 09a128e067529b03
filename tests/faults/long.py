"""Faults drawn at random, one after another, from the folder `tests`:

    ../.venv/bin/python -m faults.long --seconds 1800 --seed 7

No fault begins after that time, a minute at least; healing, the last quiet time and the verdict
come on top. Prints the seed first, each fault as it comes, the verdict at the end. The same seed
draws the same faults. Exit code: the checker's (0 all holds, 1 violated, 2 inconclusive). The
history is kept when it failed, or with --keep.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from faults import evidence
from faults.checker import check, table
from faults.checker.verdict import Status, Verdict
from faults.history import History
from faults.nemesis.catalogue import Planned, draw
from faults.scenario import Run
from faults.world.needs import lacking_here
from faults.world.world import World

LEAST = 5.0
"""Seconds a fault takes with its quiet time, at least: so many are drawn that a run never ends
for want of faults.
"""
QUIET = 4.0
SHORTEST = 60.0
"""Seconds of a run, at least: in less, hardly a fault begins."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; gives its exit code."""
    parser = argparse.ArgumentParser(prog="python -m faults.long")
    parser.add_argument("--seconds", type=_length, default=600)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--keep", action="store_true", help="keep the history of a good run too")
    asked = parser.parse_args(arguments)
    if lack := lacking_here():
        print(f"faults can't be injected here: {lack}", file=sys.stderr)
        return 64
    seed = random.SystemRandom().randrange(10**6) if asked.seed is None else asked.seed
    command = f"make faults-long SECONDS={asked.seconds:g} SEED={seed}"
    print(command, flush=True)
    home = Path(tempfile.mkdtemp(prefix=f"schedd-faults-long-{seed}-"))
    (home / "logs").mkdir()
    kept = (
        f"the history is kept: {home}/history\n"
        f"check again:         cd tests && python -m faults.checker {home}/history"
    )
    try:
        history, verdict = suffer(home, asked.seconds, seed, command)
    except AssertionError as broken:
        print(f"the run broke off: {_and_before(broken)}\n{kept}", file=sys.stderr)
        return 1
    print(table(verdict), end="")
    if os.environ.get("EVIDENCE"):
        evidence.append(home / "history", history, verdict)
    if verdict.status is Status.OK and not asked.keep:
        shutil.rmtree(home)
    else:
        print(kept)
    return verdict.status.exit_code


def _length(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not SHORTEST <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: a run takes {SHORTEST:g} seconds or more")
    return seconds


def suffer(home: Path, seconds: float, seed: int, command: str) -> tuple[History, Verdict]:
    """Run one world under the faults of this seed for so long, and judge its history."""
    plan = draw(seed, int(seconds / LEAST) + 1)
    with World(home / "logs") as world:
        run = Run(world, "faults-long", home / "history", seed=seed, command=command)
        (run.directory / "plan.json").write_text(json.dumps([asdict(each) for each in plan]))
        began = time.monotonic()
        try:
            with run:
                for planned in plan:
                    if time.monotonic() - began > seconds:
                        break
                    _once(run, planned, time.monotonic() - began)
                    run.figures["faults"] = run.figures.get("faults", 0) + 1
        finally:
            world.postgres.dump(run.directory / "pg_dump.sql")
    history = History.read(run.directory)
    verdict = check(history)
    run.recorder.verdict(verdict.as_json())
    return history, verdict


def _and_before(broken: BaseException) -> str:
    """Return the verdict, after earlier errors: the end of a broken run may break too."""
    first = f"; before it: {_and_before(broken.__context__)}" if broken.__context__ else ""
    return f"{broken}{first}"


def _once(run: Run, planned: Planned, at: float) -> None:
    who = f" of {planned.target}" if planned.target else ""
    print(f"{at:6.0f} s  {planned.fault}{who}, {planned.seconds:g} s", flush=True)
    with planned.begin(run.journal, run.world):
        run.wait(planned.seconds)
    run.between_faults(QUIET)


if __name__ == "__main__":
    sys.exit(main())
