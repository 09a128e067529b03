"""Clusters on databases that people have: behind PgBouncer, and without the timeline functions."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from schedctl.dev.servers import postgres
from support.cluster import DevCluster, dev_cluster
from support.managed import without_timeline
from support.pgbouncer import pgbouncer
from support.postgres import ScratchServer, private_postgres
from support.wait import PROCESS_POLL, WAIT_TIMEOUT, wait_until

TTLS = ["schedd.member_ttl=3s", "schedd.worker_ttl=3s"]


@pytest.fixture
def server() -> Iterator[ScratchServer]:
    with private_postgres() as made:
        yield made


def runs_of(cluster: DevCluster, job: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = cluster.json("run", "list", "--job", job)
    return found


def fires(cluster: DevCluster, job: str) -> None:
    """A job of each second fires, also after the owner of its shard was killed."""
    made = cluster.schedctl("job", "create", job, "--every", "1s", "--", "true")
    assert made.returncode == 0, made.stderr

    def succeeded(since: str, least: int) -> bool:
        found = [each for each in runs_of(cluster, job) if each["state"] == "SUCCEEDED"]
        return len([each for each in found if each["scheduledAt"] > since]) >= least

    wait_until(lambda: succeeded("", 5), WAIT_TIMEOUT, "five runs to succeed", every=PROCESS_POLL)
    killed = cluster.record["members"][0]
    os.kill(killed["pid"], signal.SIGKILL)
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    wait_until(
        lambda: succeeded(at, 5),
        30,
        "five more runs after a member was killed",
        every=PROCESS_POLL,
    )


def doctor(cluster: DevCluster) -> str:
    return cluster.schedctl("cluster", "doctor").stdout


def test_a_cluster_behind_pgbouncer_in_transaction_mode_fires_and_fails_over(
    server: ScratchServer, tmp_path: Path
) -> None:
    """P7.2: nothing depends on the session; the timeouts are the role's."""
    server.create_database("bounced")
    with (
        pgbouncer(server, tmp_path, "bounced") as dsn,
        dev_cluster(members=2, workers=1, overrides=TTLS, postgres=dsn) as cluster,
    ):
        fires(cluster, "tick")
        assert "statement_timeout 3s, lock_timeout 2s" in doctor(cluster)


def test_a_cluster_on_a_server_without_the_timeline_functions_fires_and_fails_over(
    server: ScratchServer,
) -> None:
    """As Aurora is without logical replication."""
    dsn = server.create_database("aurora")
    without_timeline(postgres.dsn(server.port, database="aurora", role=postgres.ADMIN))
    with dev_cluster(members=2, workers=1, overrides=TTLS, postgres=dsn) as cluster:
        fires(cluster, "tick")
        report = doctor(cluster)
        assert "this server doesn't report its timeline" in report
        assert "detected only by marks" in report
