"""A machine that stood still leaves a line."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from faults.history import History, Meta, Recorder
from faults.stalls import watched
from support.wait import wait_until


def watcher() -> int:
    """The process that sleeps: our child that runs the module."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    [found] = [c for c in children if b"faults.stalls" in Path(f"/proc/{c}/cmdline").read_bytes()]
    return int(found)


def test_a_stopped_stall_watcher_records_a_stall(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.meta(Meta("no faults", 1, 0.0, 1.0, 3.0, 3.0, 5.0, 4.0))

    def late(at_least: float) -> bool:
        return any(stall.late >= at_least for stall in History.read(tmp_path).stalls)

    with watched(recorder):
        sleeper = watcher()

        def stopped_for_a_while() -> bool:
            os.kill(sleeper, signal.SIGSTOP)
            until = time.monotonic() + 0.6
            wait_until(lambda: time.monotonic() >= until, 5, "time to pass")
            os.kill(sleeper, signal.SIGCONT)
            give_up = time.monotonic() + 1.0  # it may not have come to sleep before
            wait_until(
                lambda: late(0.25) or time.monotonic() >= give_up, 5, "a stall to be reported"
            )
            return late(0.25)

        wait_until(stopped_for_a_while, 20, "the sleeper to notice")
    assert not Path(f"/proc/{sleeper}/cmdline").exists()
