"""The page's worked example on a real cluster: a worker and its job sleep past the lease; awake,
they write what neither the table nor the file takes.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from schedclient import SyncClient, TableGuard
from schedctl.dev.servers import postgres
from schedctl.dev.servers.processes import DevProcess, find
from support.cluster import DevCluster
from support.repository import ROOT
from support.wait import WAIT_TIMEOUT, wait_until


@pytest.fixture
def shop(fault_cluster: DevCluster) -> str:
    """A database of the user's, with the example's table and the guard's."""
    dsn = postgres.prepare(fault_cluster.sql_port, database="shop", password=fault_cluster.password)
    with psycopg.connect(dsn) as connection:
        connection.execute(TableGuard("any").schema)
        connection.execute("CREATE TABLE totals AS SELECT 0 AS sum, '' AS writer")
    return dsn


@pytest.fixture
def example(tmp_path: Path) -> Iterator[Path]:
    """The page's program, in the folder that it works in; what it leaves stopped is ended."""
    page = (ROOT / "docs" / "fencing.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(import os\n.*?)```", page, re.DOTALL)
    (tmp_path / "report.py").write_text(code)
    yield tmp_path
    for name in ("w1", "w2", "w3"):
        if (process := at_work(tmp_path, name)) is not None:
            process.send(signal.SIGKILL)


def at_work(folder: Path, worker: str) -> DevProcess | None:
    """The example's process on this worker."""
    file = folder / f"{worker}.pid"
    return find(int(file.read_text())) if file.exists() and file.read_text() else None


def test_a_worker_that_slept_past_its_lease_is_refused_by_the_table_and_by_the_file(
    fault_cluster: DevCluster, client: SyncClient, shop: str, example: Path
) -> None:
    argv = [sys.executable, str(example / "report.py"), shop, str(example)]
    run = client.submit(name="report", shell={"argv": argv})

    def working(without: str = "") -> str:
        busy = (name for name in ("w1", "w2", "w3") if name != without)
        return next((name for name in busy if at_work(example, name) is not None), "")

    first = wait_until(working, WAIT_TIMEOUT, "its start")
    sleeper = at_work(example, first)
    assert sleeper is not None
    fault_cluster.pause(first)
    sleeper.send(signal.SIGSTOP)
    wait_until(sleeper.paused, WAIT_TIMEOUT, "the job to stand still")

    second = wait_until(lambda: working(first), WAIT_TIMEOUT, "it to be begun elsewhere")
    (example / "go").touch()
    done = client.runs.wait(run, timeout=WAIT_TIMEOUT)
    assert (done.state, done.worker, done.assignments) == ("SUCCEEDED", second, 2)
    lost = client.runs.attempts(run.run_id)[0]
    assert lost.fencing_token < done.fencing_token

    sleeper.send(signal.SIGCONT)
    wait_until(lambda: not sleeper.alive(), WAIT_TIMEOUT, "the end of the one that slept")
    refused = (example / f"{first}.log").read_text().splitlines()
    rejected = f"stale fencing token {lost.fencing_token} for "
    seen = f" the greater token {done.fencing_token} has already used it; a later attempt has"
    assert [rejected in line and seen in line for line in refused] == [True, True], refused
    assert not (example / f"{second}.log").exists()
    with psycopg.connect(shop) as connection:
        assert connection.execute("SELECT * FROM totals").fetchall() == [(42, second)]
    assert (example / "report.txt").read_text() == f"written by {second}\n"

    fault_cluster.resume(first)
    late = wait_until(
        lambda: [*client.audit.list(run_id=run.run_id, action="result")],
        WAIT_TIMEOUT,
        "its result to be refused too",
    )
    assert [(one.outcome, one.reason, one.fencing_token) for one in late] == [
        ("refused", "STALE", lost.fencing_token)
    ]
