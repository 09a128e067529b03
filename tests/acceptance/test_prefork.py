"""The SDK in programs that fork after their first call. FORK_SUBMITS=1000 for full figures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from schedctl.dev.servers.etcd import fetch
from schedctl.dev.servers.processes import reserve
from support.cluster import DevCluster
from support.wait import wait_until

SUBMITS = int(os.environ.get("FORK_SUBMITS", "30"))
APPLICATIONS = Path(__file__).parents[1] / "support" / "prefork"


@contextmanager
def running(log: Path, env: Mapping[str, str], *args: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *args],
            cwd=APPLICATIONS,
            env={**os.environ, **env, "HOME": str(log.parent)},
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def test_gunicorn_preload_submits_in_its_sync_workers(quiet_cluster: DevCluster, tmp_path: Path):
    [port] = reserve(1)
    env = {"SCHEDCTL_ENDPOINTS": ",".join(quiet_cluster.endpoints)}
    options = ("--preload", "-w", "2", "-k", "sync", "-t", "300", "-b", f"127.0.0.1:{port}")
    with running(tmp_path / "log", env, "gunicorn", *options, "web:app"):
        wait_until(lambda: fetch(f"http://127.0.0.1:{port}/1"), 30, "gunicorn's answer")
        answer = fetch(f"http://127.0.0.1:{port}/{SUBMITS}", timeout=110)
    assert answer is not None, (tmp_path / "log").read_text()
    assert answer.body.decode() == f"{SUBMITS} runs", (tmp_path / "log").read_text()


def test_celery_prefork_submits_in_its_pool(quiet_cluster: DevCluster, tmp_path: Path):
    for folder in ("queue", "control", "results"):
        (tmp_path / folder).mkdir()
    env = {"SCHEDCTL_ENDPOINTS": ",".join(quiet_cluster.endpoints), "BROKER_FOLDER": str(tmp_path)}
    options = ("worker", "-P", "prefork", "-c", "2", "--without-mingle", "--without-gossip")
    with running(tmp_path / "log", env, "celery", "-A", "tasks", *options):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                f"import tasks; print(tasks.submit.delay({SUBMITS}).get(timeout=100))",
            ],
            cwd=APPLICATIONS,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=115,
            check=False,
        )
    assert done.stdout.strip() == f"{SUBMITS} runs", done.stderr + (tmp_path / "log").read_text()
