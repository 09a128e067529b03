"""Processes that tests start end with them, even when the tests are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from support.wait import WAIT_TIMEOUT, wait_until

TESTS = Path(__file__).parents[1]


def run_and_kill(program: str) -> tuple[Path, int]:
    """Run a program that prints a folder and a pid, and kill it once it has; answers both."""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdin=subprocess.PIPE,  # input() waits on it until we kill
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        folder, pid = running.stdout.readline().rsplit(maxsplit=1)
        running.send_signal(signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL
    return Path(folder), int(pid)


def runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_the_scratch_server_ends_with_a_killed_session() -> None:
    folder, pid = run_and_kill(
        "from support.postgres import scratch_postgres\n"
        "with scratch_postgres() as server:\n"
        "    print(server.folder, server.process.pid, flush=True)\n"
        "    input()\n"
    )
    assert wait_until(lambda: not runs(pid), WAIT_TIMEOUT, "the end of PostgreSQL")
    assert wait_until(lambda: not folder.exists(), WAIT_TIMEOUT, "the removal of its folder")


def test_a_cluster_ends_with_a_killed_session() -> None:
    folder, pid = run_and_kill(
        "from support.cluster import dev_cluster\n"
        "with dev_cluster(members=0, workers=0) as cluster:\n"
        "    print(cluster.directory, cluster.process('etcd').pid, flush=True)\n"
        "    input()\n"
    )
    try:
        assert wait_until(lambda: not runs(pid), WAIT_TIMEOUT, "the end of etcd")
    finally:
        dev = [sys.executable, "-P", "-m", "schedctl.dev"]
        subprocess.run([*dev, "reset", "--dir", folder], check=True, capture_output=True)
