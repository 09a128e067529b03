"""PostgreSQL restored from a backup under a running cluster: which runs start, and which don't.

The backup is taken while the cluster is paused. The cluster then continues, and loses its later
writes: the server is killed and recovered, from the copy of its files, to a timeline of its own.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from psycopg2 import OperationalError

from schedclient import Run, SyncClient
from schedclient.errors import FailedPrecondition
from schedctl.dev.servers import binaries, postgres
from schedctl.dev.servers.processes import DevProcess
from schedd.config.member_config import LookaheadConfig
from schedd.core.cluster import data_loss_check
from schedd.etcd.client import connect
from support.cluster import DevCluster, dev_cluster
from support.probe import DatabaseProbe
from support.wait import WAIT_TIMEOUT, wait_until

TTL = "3s"
TICKS_OUT = """
SELECT count(*)::int FROM runs JOIN jobs USING (job_id) WHERE name = 'ticks' AND state = 'RUNNING'
"""


class Restorable:
    """The cluster's PostgreSQL, stopped, copied and put back."""

    def __init__(self, cluster: DevCluster) -> None:
        self.data = cluster.directory / "postgres"
        self.port, self.password = cluster.sql_port, cluster.password
        self.log = cluster.directory / "restored.log"
        self.backup = cluster.directory / "backup"
        self.process = cluster.process("postgres")

    def back_up(self) -> None:
        """Cold: the server is down for a moment."""
        postgres.stop(self.process, self.data)
        shutil.copytree(self.data, self.backup)
        self.start()

    def restore(self) -> None:
        """As after a disaster: nothing is left but the backup, recovered to a new timeline."""
        self.process.send(signal.SIGQUIT)
        wait_until(lambda: not self.process.alive(), WAIT_TIMEOUT, "the server to die")
        shutil.rmtree(self.data)
        shutil.copytree(self.backup, self.data)
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.write("restore_command = 'false'\n")
        (self.data / "recovery.signal").touch()
        self.start()

    def start(self) -> None:
        self.process = self._started()
        postgres.wait_ready(self.process, self.port, self.log, WAIT_TIMEOUT, self.password)

    def _started(self) -> DevProcess:
        return postgres.start(binaries.find_postgres(), self.data, self.port, self.log)


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[DevCluster]:
    leases = [f"schedd.member_ttl={TTL}", f"schedd.worker_ttl={TTL}"]
    with dev_cluster(request.session, members=1, workers=1, overrides=leases) as made:
        yield made


@pytest.fixture
def server(cluster: DevCluster) -> Iterator[Restorable]:
    made = Restorable(cluster)
    yield made
    postgres.stop(made.process, made.data)


@pytest.fixture
def client(cluster: DevCluster) -> Iterator[SyncClient]:
    with SyncClient(cluster.endpoints) as made:
        yield made


def test_a_restored_database_starts_the_runs_that_its_operator_chose(
    cluster: DevCluster,
    client: SyncClient,
    server: Restorable,
    tmp_path: Path,
    figure: Callable[[str], None],
) -> None:
    """P2.9"""
    ticks, once, late, long = probed_jobs(client, tmp_path)
    running = client.jobs.trigger("long")
    wait_until(lambda: ticks.starts() and long.starts(), WAIT_TIMEOUT, "firing to begin")
    client.cluster.pause(note="a backup")
    waiting = {name: client.jobs.trigger(name) for name in ("once", "late")}
    assert client.runs.get(running.run_id).state == "RUNNING"
    # What was pre-dispatched is back in its row: else the backup says that it may have run.
    wait_until(lambda: cluster.sql(TICKS_OUT) == [(0,)], WAIT_TIMEOUT, "ticks to be out no more")
    server.back_up()
    # Marks past the clock stand for a backup of an hour ago.
    wait_until(lambda: _marked_an_hour_on(cluster), WAIT_TIMEOUT, "the server to be back")
    wait_until(lambda: asyncio.run(_remembered(cluster)), WAIT_TIMEOUT, "etcd to remember the mark")
    wait_until(
        lambda: client.runs.get(running.run_id).succeeded, WAIT_TIMEOUT, "a result that is lost"
    )
    wait_until(lambda: _resumed(client), WAIT_TIMEOUT, "the future that will be lost")
    wait_until(once.starts, WAIT_TIMEOUT, "what has run when it is lost")
    lost = wait_until(late.starts, WAIT_TIMEOUT, "what runs when it is lost")[0]
    [before] = _counted(cluster)

    server.restore()
    restored = time.time()
    wait_until(lambda: _recovering(client), WAIT_TIMEOUT, "recovery")
    figure(f"restored under a running cluster: in recovery {time.time() - restored:.1f} s after")
    refused = wait_until(
        lambda: _stale(client, lost.run_id), WAIT_TIMEOUT, "the late result to be refused"
    )
    assert refused == {lost.token}
    horizon = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
    wait_until(lambda: datetime.now(UTC) > horizon + timedelta(seconds=2), 10, "more of the pause")
    # A worker that holds a pre-dispatched run starts it without the database.
    latest = restored + LookaheadConfig().dispatch.total_seconds()
    assert max(start.at for start in ticks.starts()) < latest, "nothing fires meanwhile"
    assert_recovery_is_reported(cluster, client)

    assert not client.cluster.resume(catch_up_since=horizon).paused
    resumed = time.time()
    expected = [horizon + timedelta(seconds=n) for n in range(5)]

    def started() -> list[datetime]:
        """Scheduled times since the resume. Runs that are due together may start in any order."""
        return sorted(start.scheduled_at for start in ticks.starts() if start.at > resumed - 1)

    wait_until(lambda: set(expected) <= set(started()), WAIT_TIMEOUT, "runs after the resume")
    assert started()[:5] == expected
    assert ticks.repeated() == []
    for run, probe in ((waiting["once"], once), (running, long)):
        assert_failed_after_one_start(client, run, probe)
    assert "may have run" in (client.runs.get(waiting["once"].run_id).error or "")
    again = client.runs.wait(waiting["late"], timeout=WAIT_TIMEOUT)
    assert again.succeeded
    assert again.fencing_token > lost.token
    [now] = _counted(cluster)
    assert all(new > old for new, old in zip(now, before, strict=True)), "epochs, term, timeline"


def probed_jobs(
    client: SyncClient, folder: Path
) -> tuple[DatabaseProbe, DatabaseProbe, DatabaseProbe, DatabaseProbe]:
    """Create a job that runs each second, two on-demand jobs that run at most once, one of them
    long, and one whose run still has to end after the restore.
    """
    ticks, once, late, long = (
        DatabaseProbe(folder / name) for name in ("ticks", "once", "late", "long")
    )
    every = {"cron": "* * * * * *", "overlap": "allow", "catch_up": {"policy": "all"}}
    client.jobs.create("ticks", shell=ticks.shell(), **every)
    client.jobs.create("once", on_demand=True, delivery="at_most_once", shell=once.shell())
    client.jobs.create("late", on_demand=True, shell=late.shell("sleep 5"))
    client.jobs.create("long", on_demand=True, delivery="at_most_once", shell=long.shell("sleep 8"))
    return ticks, once, late, long


def assert_failed_after_one_start(client: SyncClient, run: Run, probe: DatabaseProbe) -> None:
    """At most once."""
    ended = client.runs.get(run.run_id)
    assert (ended.state, ended.reason) == ("FAILED", "WORKER_LOST")
    assert len(probe.starts()) == 1


def assert_recovery_is_reported(cluster: DevCluster, client: SyncClient) -> None:
    """Check that the recovery is reported, and doesn't end without a choice."""
    findings = client.cluster.doctor().findings
    assert [one.severity for one in findings if one.check == "pause"] == ["BAD"]
    with pytest.raises(FailedPrecondition, match="restored to an earlier state"):
        client.cluster.resume()
    assert "RECOVERY" in cluster.schedctl("cluster", "status").stdout


def _resumed(client: SyncClient) -> bool:
    return not client.cluster.resume(catch_up=True).paused


def _recovering(client: SyncClient) -> bool:
    status = client.cluster.status()
    return status.recovering and status.owned == status.shards


def _counted(cluster: DevCluster) -> list[tuple[int, int, int]]:
    rows = cluster.sql("SELECT min(epoch), (SELECT term FROM term), min(timeline) FROM shards")
    return [(row[0], row[1], row[2]) for row in rows]


def _marked_an_hour_on(cluster: DevCluster) -> bool:
    try:
        cluster.sql("UPDATE cluster SET marked_at = clock_timestamp() + interval '1 hour'")
    except OperationalError:
        return False
    return True


async def _remembered(cluster: DevCluster) -> bool:
    """Whether etcd has a mark of the hour to come."""
    async with connect(cluster.etcd, deadline=1.0, root="schedd/") as etcd:
        entry = await etcd.get(data_loss_check.KEY)
    at = None if entry is None else data_loss_check.decode(entry.value).at
    return at is not None and at > datetime.now(UTC) + timedelta(minutes=30)


def _stale(client: SyncClient, run_id: str) -> set[int]:
    """Tokens of results of the run that were refused."""
    entries = client.audit.list(action="result", run_id=run_id)
    return {one.fencing_token for one in entries if one.reason == "STALE"}
