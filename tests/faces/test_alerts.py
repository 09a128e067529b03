"""Alerts, as shipped: by promtool, and on a live cluster with the fault that each is about."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

import pytest

from faces.prometheus import SHIPPED, Prometheus
from schedclient import SyncClient
from support.cluster import DevCluster
from support.wait import wait_until

WITHIN = 60.0


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


@pytest.mark.timeout(420)
def test_missed_runs_dead_letters_a_pool_without_workers_and_what_is_away_are_told_of(
    cluster: DevCluster, prometheus: Prometheus, figure: Callable[[str], None]
) -> None:
    wait_until(lambda: prometheus.value("sum(schedd_leader)") == 1, WITHIN, "what members export")
    wait_until(lambda: not prometheus.firing(), WITHIN, "a quiet cluster to be seen as one")
    quiet = time.monotonic()
    wait_until(lambda: prometheus.firing() or time.monotonic() > quiet + 5, 10, "five seconds")
    assert prometheus.firing() == set()

    with SyncClient(cluster.endpoints) as client:
        client.jobs.create(
            "never-placed",
            cron="* * * * * *",
            require={"disk": "nobody-has-it"},
            start_deadline="1s",
            overlap="allow",
            shell={"argv": ["true"]},
        )
        fires(prometheus, "ScheddMissedRuns", "runs whose start deadline passed", figure)
        client.jobs.delete("never-placed")

        client.jobs.create(
            "fails",
            cron="* * * * * *",
            retry={"max_attempts": 1},
            shell={"argv": ["false"]},
        )
        fires(prometheus, "ScheddDeadLettersGrowing", "a job that fails each second", figure)
        client.jobs.delete("fails")

        client.pools.set("gpus", limit=2)
        client.jobs.create(
            "on-a-gpu",
            on_demand=True,
            pool="gpus",
            require={"gpu": "a100"},
            shell={"argv": ["true"]},
        )
        fires(prometheus, "ScheddPoolWithoutWorkers", "a pool whose job nobody can do", figure)
        client.jobs.delete("on-a-gpu")
        client.pools.delete("gpus")

    cluster.kill("etcd")
    fires(prometheus, "ScheddNoLeader", "etcd was killed", figure)
    assert "ScheddShardsWithoutOwner" in wait_until(
        lambda: prometheus.firing() & {"ScheddShardsWithoutOwner"}, WITHIN, "shards without owner"
    )
    cluster.up()
    wait_until(
        lambda: (
            not prometheus.firing()
            & {"ScheddNoLeader", "ScheddShardsWithoutOwner", "ScheddNotReady"}
        ),
        WITHIN,
        "the alerts to end with the fault",
    )

    cluster.kill("postgres")
    fires(prometheus, "ScheddNotReady", "PostgreSQL was killed", figure)
    fires(prometheus, "ScheddDatabaseAway", "the same", figure)
    assert "ScheddNoLeader" not in prometheus.firing(), "who leads still does"
    cluster.up()
    wait_until(
        lambda: not prometheus.firing() & {"ScheddNotReady", "ScheddDatabaseAway"},
        2 * WITHIN,
        "the alerts to end with the fault",
    )


def fires(prometheus: Prometheus, alert: str, fault: str, figure: Callable[[str], None]) -> None:
    began = time.monotonic()
    wait_until(lambda: alert in prometheus.firing(), WITHIN, alert)
    figure(f"{alert} fired {time.monotonic() - began:.1f} s after: {fault}")
