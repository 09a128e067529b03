"""The users of a load in a process of their own: they call by the SDK of the version that runs it.

    with calling(run, code) as users: …      their answers are in the run's history

Their numbers of calls and their names are other than those of the run's own load.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import schedclient
from faults.history import Recorder
from faults.load import WAIT_TIMEOUT, Load
from support.version_before import Code

if TYPE_CHECKING:  # what makes worlds is no business of another version's process
    from faults.scenario import Run

FIRST_OP = 1_000_000
"""Of their calls: a run's own load doesn't come so far."""
TESTS = Path(__file__).parents[1]


@contextmanager
def calling(run: Run, code: Code) -> Iterator[Path]:
    """Two users call by this code's SDK while this block lasts; gives the SDK's file.

    Raises:
        AssertionError: at the end, if they broke off before it.
    """
    arguments = [
        os.fspath(run.directory),
        f"{run.prefix}-before",
        str(run.seed),
        *run.world.endpoints,
    ]
    with subprocess.Popen(
        [os.fspath(code.python), "-P", "-m", __name__, *arguments],
        env={**os.environ, "PYTHONPATH": os.fspath(TESTS)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Path(process.stdout.readline().strip())
            assert process.poll() is None, f"the users of {code.name} broke off"
            process.stdin.close()
            assert process.wait(WAIT_TIMEOUT * 20) == 0, f"the users of {code.name} met a failure"
        finally:
            process.kill()


def main(directory: str, prefix: str, seed: str, *endpoints: str) -> None:
    """Call until nothing more comes in."""
    recorder = Recorder(Path(directory))
    ops = itertools.count(FIRST_OP)
    load = Load(endpoints, recorder, ops, Path(directory) / "probes", int(seed), prefix)
    load.begin()
    print(schedclient.__file__, flush=True)
    sys.stdin.read()
    load.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
