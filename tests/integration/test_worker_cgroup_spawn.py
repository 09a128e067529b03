"""The process in which programs are born into cgroups, when it isn't well."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.wait import WAIT_TIMEOUT, wait_until
from workerd.process import cgroup_spawn, cgroups, proc_files
from workerd.process.cgroup_spawn import Launcher, Starter

pytestmark = pytest.mark.skipif(
    (place := cgroups.tree_of("x")) is None or not os.access(place.parent, os.W_OK),
    reason="no cgroups of version 2 that may be written",
)


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    mark = str(uuid.uuid4())
    tree = cgroups.tree_of(mark)
    assert tree is not None
    launcher = Launcher(tree, mark)
    yield launcher
    launcher.close()


def number(launcher: Launcher) -> int:
    """Of its process."""
    assert launcher._running is not None
    return launcher._running.pid


def late(launcher: Launcher) -> str:
    with pytest.raises(OSError, match="can't start a process in a cgroup") as refused:
        launcher.take_starter()
    assert refused.value.errno == errno.EAGAIN, "the attempt is given back"
    return str(refused.value)


def slots(launcher: Launcher) -> list[Path]:
    """The cgroups of its cradles."""
    return [*launcher.tree.glob("slot-*")]


def taken(launcher: Launcher) -> Starter | None:
    with contextlib.suppress(BlockingIOError):  # which EAGAIN is
        return launcher.take_starter()
    return None


def test_a_late_process_is_given_to_the_next_caller_and_awaited_once(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup_spawn, "ANSWER_TIMEOUT", 0.3)
    launcher.take_starter()  # the one of the trial
    stands_still = number(launcher)
    os.kill(stands_still, signal.SIGSTOP)
    began = time.monotonic()
    for _ in range(100):
        late(launcher)
    assert time.monotonic() - began < 10, "not a hundred times as long: the loop stands still"
    os.kill(stands_still, signal.SIGCONT)
    cradle = wait_until(lambda: taken(launcher), WAIT_TIMEOUT, "the birth")
    assert cradle.reusable(), "its answer has its own number"
    assert number(launcher) == stands_still, "the launcher wasn't killed"
    assert launcher.take_starter().reusable(), "and the next one is another"


def test_a_launcher_that_takes_long_to_start_is_let_start(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed for its slowness, on a host that is slow enough, none would ever answer."""
    timeout, popen = 0.3, subprocess.Popen

    def slow(command: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
        *python, _, _ = command
        late = f"import sys, time; time.sleep({timeout + 1})"
        started = "from workerd.process import cgroup_launcher; sys.exit(cgroup_launcher.main())"
        return popen([*python, "-c", f"{late}; {started}"], **how)

    launcher.take_starter()
    os.kill(number(launcher), signal.SIGKILL)
    wait_until(lambda: proc_files.read_process(number(launcher)).zombie, WAIT_TIMEOUT, "its end")
    monkeypatch.setattr(cgroup_spawn, "ANSWER_TIMEOUT", timeout)
    monkeypatch.setattr(cgroup_spawn.subprocess, "Popen", slow)
    late(launcher)
    assert wait_until(lambda: taken(launcher), WAIT_TIMEOUT, "the birth").reusable()


def test_a_launcher_that_never_answers_is_replaced(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher.take_starter()
    stands_still = number(launcher)
    os.kill(stands_still, signal.SIGSTOP)
    monkeypatch.setattr(cgroup_spawn, "ANSWER_TIMEOUT", 0.1)
    monkeypatch.setattr(cgroup_spawn, "START_TIMEOUT", 0.3)
    late(launcher)
    assert wait_until(lambda: taken(launcher), WAIT_TIMEOUT, "a birth by the next one").reusable()
    assert number(launcher) != stands_still


def test_idle_processes_of_a_burst_end_when_no_longer_needed(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup_spawn, "IDLE_FOR", 0.5)
    before = _descriptors()
    burst = [launcher.take_starter() for _ in range(8)]
    of_seven = len(_descriptors() - before)  # one was there, of the trial
    for cradle in burst:
        launcher.give_back(cradle)

    def gone() -> bool:
        launcher.give_back(launcher.take_starter())  # one is needed all the time
        launcher.remove_idle_starters()
        return len(slots(launcher)) == 1

    wait_until(gone, WAIT_TIMEOUT, "one cgroup left")
    assert 7 * len(_descriptors() - before) <= of_seven, "only that of one is new"
    assert launcher.take_starter() is burst[-1], "and it is the one that was needed"


def _descriptors() -> set[tuple[str, str]]:
    """Return the descriptors of this process, each with its target; others may close meanwhile."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add((each.name, str(each.readlink())))
    return found
