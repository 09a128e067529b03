"""`deploy/demo/run`, as `make demo` calls it: it judges truly, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.postgres import copying_programs, memory
from support.repository import DEMO
from support.wait import wait_until

UP = 90.0
"""Seconds within which runs must be seen, on a busy machine."""
END = 60.0


SMALL_DEMO = """
import sys
from showcase import cluster
cluster.MEMBERS, cluster.WORKERS = 1, 1
from showcase.app import main
sys.exit(main())
"""


def environment() -> dict[str, str]:
    """Return variables by which the demo's PostgreSQL is a copy of a migrated one, in memory."""
    programs = (copying_programs().initdb.parent, Path(sys.executable).parent)
    path = os.pathsep.join([*map(os.fspath, programs), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "TMPDIR": os.fspath(memory() or tempfile.gettempdir())}


@contextmanager
def demo(
    output: Path, command: Sequence[str] = (str(DEMO / "run"),)
) -> Iterator[subprocess.Popen[bytes]]:
    """The demo as a process of its own session; killed if the test leaves it running."""
    with output.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=DEMO,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(),
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def folder_of(text: str) -> Path:
    found = re.search(r"^started in .* s; data in (\S+)$", text, re.MULTILINE)
    assert found, text
    return Path(found[1])


def processes_of(folder: Path) -> list[str]:
    """Command lines that name the cluster's folder."""
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:  # it has ended meanwhile
                continue
            if str(folder) in line:
                lines.append(line)
    return lines


def watching(output: Path) -> str:
    """Wait until it shows runs, and return its output."""
    wait_until(lambda: "SUCCEEDED" in output.read_text(), UP, "runs", every=0.2)
    return output.read_text()


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output"


@pytest.mark.slow
def test_ctrl_c_ends_the_demo_with_a_verdict_and_nothing_is_left(output: Path) -> None:
    """Every due run is on time and ends as expected."""
    with demo(output) as process:
        watching(output)
        ready = time.monotonic()
        wait_until(lambda: time.monotonic() > ready + 16, 20, "16 seconds of runs", every=0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(END) == 0, output.read_text()
    text = output.read_text()
    assert "every due run ran once" in text
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if "✓ ok" in line}
    assert {"clock", "ping", "orders", "disk-usage", "archive", "welcome"} <= rows.keys(), text
    assert int(rows["clock"][0]) >= 16, "due each second"
    assert all(row[0] == row[1] for row in rows.values()), "as many fired as were due"
    due, fired, _, _, succeeded, retried, dead, *_ = rows["broken-import"]
    assert due == fired == dead, "each of its runs became a dead letter"
    assert (int(succeeded), int(retried)) == (0, 2 * int(due)), "after two more attempts"
    assert rows["nightly-etl"][0] == "0" or "02:" in text
    assert text.count("dashboard  http://127.0.0.1:") == 2
    assert "\x1b[" not in text, "no colour off a terminal"
    folder = folder_of(text)
    assert not folder.exists()
    assert processes_of(folder) == []


@pytest.mark.slow
def test_a_second_signal_ends_the_demo_at_once(output: Path) -> None:
    with demo(output, [sys.executable, "-c", SMALL_DEMO]) as process:
        folder = folder_of(watching(output))
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(END) == 130, output.read_text()
    assert processes_of(folder) == []


SMALL_CLUSTER = """
import asyncio, pathlib, sys
from showcase import cluster
cluster.MEMBERS, cluster.WORKERS = 1, 0
asyncio.run(cluster.Cluster(pathlib.Path(sys.argv[1]), ours=True).up())
print("up", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_killed_demo_ends_its_cluster(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with subprocess.Popen(
        [sys.executable, "-c", SMALL_CLUSTER, str(folder)],
        cwd=DEMO,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert processes_of(folder)
        process.kill()
    wait_until(lambda: not folder.exists(), END, "the cluster's folder to go")
    wait_until(lambda: not processes_of(folder), END, "its last process to end")
