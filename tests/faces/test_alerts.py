"""Alerts, as shipped: by promtool, and on a live cluster with the fault that each is about."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from faces.prometheus import SHIPPED, Prometheus
from schedclient import SyncClient
from support.cluster import DevCluster
from support.wait import wait_until

WITHIN = 60.0
"""Seconds until an alert fires, or ends: its rule's own time is cut to a few seconds."""

pytestmark = pytest.mark.timeout(200)


def test_each_rule_fires_and_is_quiet_as_its_test_says(figure: Callable[[str], None]) -> None:
    for argv in (["check", "rules", "alerts.yml"], ["check", "config", "prometheus.yml"]):
        subprocess.run(["promtool", *argv], cwd=SHIPPED, check=True, capture_output=True)
    tried = subprocess.run(
        ["promtool", "test", "rules", "alerts.test.yml"],
        cwd=SHIPPED,
        capture_output=True,
        text=True,
        check=False,
    )
    assert tried.returncode == 0, tried.stdout + tried.stderr
    figure("promtool test rules: " + " ".join(tried.stdout.split()))


@pytest.fixture(name="client")
def calling(cluster: DevCluster) -> Iterator[SyncClient]:
    with SyncClient(cluster.endpoints) as client:
        yield client


def test_a_healthy_cluster_fires_no_alert(cluster: DevCluster, prometheus: Prometheus) -> None:
    assert cluster.endpoints
    wait_until(lambda: prometheus.value("sum(schedd_leader)") == 1, WITHIN, "what members export")
    wait_until(lambda: not prometheus.firing(), WITHIN, "no alert")
    quiet = time.monotonic()
    wait_until(lambda: prometheus.firing() or time.monotonic() > quiet + 5, 10, "five seconds")
    assert prometheus.firing() == set()


def test_missed_runs_fire_an_alert(
    client: SyncClient, prometheus: Prometheus, figure: Callable[[str], None]
) -> None:
    client.jobs.create(
        "never-placed",
        cron="* * * * * *",
        require={"disk": "no-worker-has-it"},
        start_deadline="1s",
        overlap="allow",
        shell={"argv": ["true"]},
    )
    fires(prometheus, "ScheddMissedRuns", "runs whose start deadline passed", figure)
    client.jobs.delete("never-placed")


def test_growing_dead_letters_fire_an_alert(
    client: SyncClient, prometheus: Prometheus, figure: Callable[[str], None]
) -> None:
    client.jobs.create(
        "fails", cron="* * * * * *", retry={"max_attempts": 1}, shell={"argv": ["false"]}
    )
    fires(prometheus, "ScheddDeadLettersGrowing", "a job that fails each second", figure)
    client.jobs.delete("fails")


def test_a_pool_without_workers_fires_an_alert(
    client: SyncClient, prometheus: Prometheus, figure: Callable[[str], None]
) -> None:
    client.pools.set("gpus", limit=2)
    client.jobs.create(
        "on-a-gpu",
        on_demand=True,
        pool="gpus",
        require={"gpu": "a100"},
        shell={"argv": ["true"]},
    )
    fires(prometheus, "ScheddPoolWithoutWorkers", "a pool whose job no worker can run", figure)
    client.jobs.delete("on-a-gpu")
    client.pools.delete("gpus")


def test_alerts_fire_without_a_leader_and_end_with_a_new_leader(
    cluster: DevCluster, prometheus: Prometheus, figure: Callable[[str], None]
) -> None:
    cluster.kill("etcd")
    fires(prometheus, "ScheddNoLeader", "etcd was killed", figure)
    fires(prometheus, "ScheddShardsWithoutOwner", "the same", figure)
    cluster.up()
    ends(prometheus, "ScheddNoLeader", "ScheddShardsWithoutOwner", "ScheddNotReady")


def test_alerts_fire_without_postgresql_and_end_when_it_is_back(
    cluster: DevCluster, prometheus: Prometheus, figure: Callable[[str], None]
) -> None:
    cluster.kill("postgres")
    fires(prometheus, "ScheddNotReady", "PostgreSQL was killed", figure)
    fires(prometheus, "ScheddDatabaseAway", "the same", figure)
    assert "ScheddNoLeader" not in prometheus.firing(), "who leads still does"
    cluster.up()
    ends(prometheus, "ScheddNotReady", "ScheddDatabaseAway")


def test_a_rejected_login_fires_with_its_reason_until_it_is_corrected(
    cluster: DevCluster, prometheus: Prometheus, figure: Callable[[str], None]
) -> None:
    cluster.admin("ALTER ROLE schedd PASSWORD 'other'")
    cluster.admin("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'schedd'")
    try:
        fires(prometheus, "ScheddDependencyFailing", "the role's password was changed", figure)
        reasons = 'ALERTS{alertname="ScheddDependencyFailing",reason="login_rejected"}'
        wait_until(lambda: prometheus.answers(reasons) == 2, WITHIN, "the reason of both members")
    finally:
        cluster.admin(f"ALTER ROLE schedd PASSWORD '{cluster.password}'")
    corrected = time.monotonic()
    ends(prometheus, "ScheddDependencyFailing")
    figure(
        f"ScheddDependencyFailing ended {time.monotonic() - corrected:.1f} s after its correction"
    )
    ends(prometheus, "ScheddNotReady", "ScheddDatabaseAway")


def fires(prometheus: Prometheus, alert: str, fault: str, figure: Callable[[str], None]) -> None:
    began = time.monotonic()
    wait_until(lambda: alert in prometheus.firing(), WITHIN, alert)
    figure(f"{alert} fired {time.monotonic() - began:.1f} s after: {fault}")


def ends(prometheus: Prometheus, *alerts: str) -> None:
    wait_until(lambda: not prometheus.firing() & {*alerts}, 2 * WITHIN, f"the end of {alerts}")
