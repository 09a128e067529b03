"""Limits of programs, through the cluster: as a person sets them, and as errors report them."""

from __future__ import annotations

import sys

import pytest

from schedclient import SyncClient
from support import controllers
from support.cluster import DevCluster
from support.wait import WAIT_TIMEOUT


@pytest.mark.skipif(
    controllers.version() != 1, reason="a development cluster's workers have no cgroup delegated"
)
def test_a_job_out_of_memory_names_the_limit(
    quiet_cluster: DevCluster, quiet_client: SyncClient
) -> None:
    eater = ["--", sys.executable, "-c", "x = b'x' * (300 << 20)"]
    flags = ["--limit-memory", "64MiB", "--limit-processes", "10", "--max-attempts", "1"]
    made = quiet_cluster.schedctl("job", "create", "eater", "--on-demand", *flags, *eater)
    assert made.returncode == 0, made.stderr
    limits = quiet_client.jobs.get("eater").to_json(snake=True)["shell"]["limits"]
    assert limits == {"memory_bytes": 64 << 20, "processes": 10, "files": 0}
    run = quiet_client.runs.wait(quiet_client.jobs.trigger("eater"), timeout=WAIT_TIMEOUT)
    assert (run.state, run.reason) == ("FAILED", "SIGNAL")
    (attempt,) = quiet_client.runs.attempts(run.run_id)
    assert attempt.error == "killed: out of memory (limit 64 MiB)"
