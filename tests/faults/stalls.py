"""Stalls of the machine itself, seen by a process beside the test cluster that only sleeps.

    with watched(recorder): …        a line in the history each time it woke too late

It wants next to nothing of a processor and competes for it as the daemons do. When it is late,
they were: no verdict changes by it, but who reads that a run was late sees what it waited for.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from faults.history import Recorder, Stall

NAP = 0.05
LATE = 0.25
"""Seconds beyond its nap from which on a waking is written down."""


@contextmanager
def watched(recorder: Recorder) -> Iterator[None]:
    """Watch the machine while this block lasts."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, os.fspath(recorder.directory), str(os.getpid())],
        env={**os.environ, "PYTHONPATH": os.fspath(Path(__file__).parents[1])},
        stdout=subprocess.PIPE,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline(), "the sleeper ended"
            yield
        finally:
            process.kill()


def watch(recorder: Recorder, parent: int) -> None:
    """Say that it begins, then sleep and wake until the parent has gone."""
    print("watching", flush=True)
    while os.getppid() == parent:
        asleep = time.monotonic()
        time.sleep(NAP)
        late = time.monotonic() - asleep - NAP
        if late >= LATE:
            recorder.stall(Stall(time.time(), round(late, 3)))


if __name__ == "__main__":
    watch(Recorder(Path(sys.argv[1])), int(sys.argv[2]))
