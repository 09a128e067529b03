"""`schedctl dev` with one member and one worker, each test with a cluster of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from schedctl.dev.servers.processes import find
from support import fork_server
from support.cluster import dev_cluster
from support.wait import WAIT_TIMEOUT, wait_until


def test_down_leaves_no_process_of_a_job_either(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f'trap "" TERM; sleep 3000 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; sleep 3000'
    quick = ["workerd.drain_timeout=1s"]
    with dev_cluster(members=1, workers=1, overrides=quick) as cluster:
        cluster.schedctl(
            "submit", "--kill-after", "1s", "--", "sh", "-c", script
        ).check_returncode()
        wait_until(pids.exists, WAIT_TIMEOUT, "the job's start")
        processes = [find(int(pid)) for pid in pids.read_text().split()]
        assert all(processes)
        cluster.down()
        assert not any(process and process.alive() for process in processes)


def test_a_cluster_without_a_folder_is_in_the_home_and_becomes_the_context(
    tmp_path: Path,
) -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "SCHED"))}
    env["HOME"] = str(tmp_path)

    def schedctl(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "schedctl", *args]
        return fork_server.run(command, env=env, timeout=90)

    try:
        up = schedctl("dev", "up", "--members", "1", "--workers", "1", "--detach")
        assert (up.returncode, up.stdout) == (0, "")
        assert (tmp_path / ".local/share/schedd/dev/cluster.json").exists()
        assert schedctl("submit", "--wait", "--", "true").returncode == 0
        assert schedctl("dev", "down").returncode == 0
        assert schedctl("config", "contexts", "-o", "name").stdout == "dev\n", (
            "`up` continues with it"
        )
    finally:
        down = schedctl("dev", "reset")
    assert down.returncode == 0
    assert schedctl("config", "contexts", "-o", "name").stdout == ""
