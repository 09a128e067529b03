"""Failpoints: no effect unless armed, and then exactly the requested one."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from schedkit import failpoints
from schedkit.errors import Misconfigured, OutcomeUnknown, Unavailable
from schedkit.failpoints import VARIABLE, Failpoints
from support.repository import ROOT
from support.wait import wait_until

ALL: Callable[[str], bool] = bool


def test_an_unarmed_failpoint_is_bound_to_one_function_that_does_nothing():
    points = Failpoints("other=kill")
    assert points.blocking("here") is points.blocking("there")
    assert points.awaited("here") is points.awaited("there")
    assert points.blocking("here")() is None


async def test_an_armed_failpoint_fails_as_the_dependency_does():
    points = Failpoints("here=error; there = unknown; disk=error")
    with pytest.raises(Unavailable, match="failpoint here"):
        points.blocking("here")()
    with pytest.raises(OutcomeUnknown):
        await points.awaited("there")()
    with pytest.raises(OSError, match="failpoint disk"):
        points.blocking("disk", OSError)()


def test_a_failpoint_can_skip_the_first_passes_and_limit_its_acts():
    place = Failpoints("here=error,skip=2,count=1").blocking("here")
    place()
    place()
    with pytest.raises(Unavailable):
        place()
    place()


def test_a_ticket_limits_all_processes_to_one_act_and_is_removed_by_it(
    tmp_path: Path,
):
    ticket = tmp_path / "ticket"
    described = f"here=error,ticket={ticket}"
    one, other = (Failpoints(described).blocking("here") for _ in range(2))
    one()
    ticket.touch()
    with pytest.raises(Unavailable):
        one()
    assert not ticket.exists()
    other()


async def test_a_pause_on_the_loop_blocks_nothing_else_and_ends_with_the_file(
    tmp_path: Path,
):
    file = tmp_path / "go"
    waiting = asyncio.ensure_future(Failpoints(f"here=pause:{file}").awaited("here")())
    await asyncio.sleep(0)
    assert not waiting.done()
    file.touch()
    async with asyncio.timeout(5):
        await waiting


def test_a_pause_in_a_thread_lasts_until_the_file_is_there(tmp_path: Path):
    file = tmp_path / "go"
    place = Failpoints(f"here=pause:{file}").blocking("here")
    thread = threading.Thread(target=place)
    thread.start()
    assert thread.is_alive()
    file.touch()
    thread.join(5)
    assert not thread.is_alive()


PASSES = """
import os, threading
from schedkit import failpoints
place = failpoints.blocking("here")
def cross():
    os.write(1, b"before\\n")
    place()
    os.write(1, b"after\\n")
thread = threading.Thread(target=cross)
thread.start()
thread.join()
"""


def passing(described: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PASSES],
        env={**os.environ, VARIABLE: described},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_kill_ends_the_process_immediately():
    process = passing("here=kill")
    output, _ = process.communicate(timeout=20)
    assert (process.returncode, output) == (-signal.SIGKILL, "before\n")


def test_a_stop_lasts_until_the_process_is_continued():
    process = passing("here=stop")

    def stopped() -> bool:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].startswith("T")

    wait_until(stopped, 20, "the process to stop itself")
    assert process.stdout is not None
    assert os.read(process.stdout.fileno(), 100) == b"before\n", "its thread stops there"
    process.send_signal(signal.SIGCONT)
    output, _ = process.communicate(timeout=20)
    assert (process.returncode, output) == (0, "after\n")


@pytest.mark.parametrize(
    ("described", "why"),
    [
        ("here", "isn't a valid failpoint: write NAME=ACTION"),
        ("here=explode", "kill, stop, pause"),
        ("here=pause", "needs seconds or a file"),
        ("here=kill:5", "needs seconds or a file"),
        ("here=pause:soon", "could not convert"),
        ("here=kill,skip=many", "invalid literal"),
        ("here=pause:-1", "a pause of -1 seconds isn't valid"),
        ("here=pause:nan", "a pause of nan seconds isn't valid"),
        ("here=kill,skip=-1", "skip=-1 isn't valid: give 0 or more"),
        ("here=kill,count=-1", "count=-1 isn't valid: give 1 or more"),
        ("here=kill,count=0", "count=0 isn't valid: give 1 or more"),
        ("here=kill; here=stop", "the failpoint here is given twice"),
        ("here=kill,when=/x", "isn't skip=, count= or ticket="),
        ("elsewhere=kill", "an unknown failpoint, elsewhere: use one of deaf, here"),
        ("deaf=error", "doesn't support the action error"),
        ("disk.of=unknown", "an unknown failpoint, disk.of"),
    ],
)
def test_an_invalid_description_prevents_the_start(described: str, why: str):
    points = Failpoints(described)
    points.blocking("here")
    points.awaited("deaf", None)
    with pytest.raises(Misconfigured, match=why):
        points.check(ALL)


def test_a_daemon_ignores_failpoints_of_other_daemons():
    points = Failpoints("worker.here=kill")
    points.check(lambda name: not name.startswith("worker."))


@pytest.mark.slow
@pytest.mark.parametrize("daemon", ["schedd", "workerd"])
def test_a_daemon_rejects_an_unknown_failpoint(daemon: str, tmp_path: Path):
    name = {"schedd": "fire.nowhere", "workerd": "worker.nowhere"}[daemon]
    flags = {
        "schedd": ["--postgres-dsn", "postgresql://127.0.0.1/none"],
        "workerd": ["--spool", str(tmp_path), "--endpoints", "127.0.0.1:1"],
    }[daemon]
    started = subprocess.run(
        [sys.executable, "-m", daemon, *flags],
        env={**os.environ, VARIABLE: f"{name}=kill"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert started.returncode == 2, started.stderr
    assert f"an unknown failpoint, {name}: use one of " in started.stderr


def test_the_readme_of_the_tests_lists_every_failpoint_and_no_other():
    found = {
        name
        for daemon in ("schedd", "workerd")
        for file in (ROOT / daemon).rglob("*.py")
        for name in re.findall(
            r'failpoints\.(?:blocking|awaited)\("(.+?)"', file.read_text("utf-8")
        )
    }
    section = (ROOT / "tests" / "README.md").read_text("utf-8").split("## Failpoints")[1]
    rows = re.findall(r"^\| (`.*?) \|", section.split("\n## ")[0], re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(.+?)`", row)} == found


def test_no_failpoint_is_armed_in_the_tests_themselves():
    assert VARIABLE not in os.environ
    assert failpoints.blocking("a test's own") is failpoints.blocking("another")
