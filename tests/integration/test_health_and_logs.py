"""Health and logs of a live cluster while a dependency is unavailable."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from schedclient import SyncClient
from support.cluster import DevCluster, dev_cluster
from support.wait import wait_until

WITHIN = 30.0
SECRET = "hunter2-of-the-test"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

OF_LIBPQ = "FATAL:  "
"""PostgreSQL's own library writes on its own that its server was killed under a connection."""


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[DevCluster]:
    formats = ["schedd.log_format=json", "workerd.log_format=json", "schedd.log_level=debug"]
    ttl = ["schedd.member_ttl=3s"]
    with dev_cluster(request.session, members=2, workers=1, overrides=formats + ttl) as made:
        yield made


def reasons(cluster: DevCluster, member: str = "m1") -> list[str] | None:
    """Why it isn't ready; None: it didn't answer."""
    answer = cluster.get(member, "/readyz")
    if answer is None:
        return None
    said: dict[str, Any] = json.loads(answer.body)
    assert (answer.status == 503) == bool(said["reasons"])
    return list(said["reasons"])


def wait_for_reason(cluster: DevCluster, word: str) -> None:
    wait_until(
        lambda: any(word in reason for reason in reasons(cluster) or ()), WITHIN, f"{word!r}"
    )


def serves(cluster: DevCluster, service: str) -> int:
    with grpc.insecure_channel(cluster.entry("m1")["grpc"]) as channel:
        asked = health_pb2.HealthCheckRequest(service=service)
        return int(health_pb2_grpc.HealthStub(channel).Check(asked, timeout=10).status)


def exported(cluster: DevCluster, series: str) -> float:
    """Return the value of a series in m1's metrics now."""
    answer = cluster.get("m1", "/metrics")
    assert answer is not None
    lines = answer.body.decode().splitlines()
    [said] = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(f"{series} ")]
    return float(said)


@pytest.mark.timeout(180)
def test_an_unavailable_dependency_is_named_and_grpc_health_agrees(cluster: DevCluster) -> None:
    assert reasons(cluster) == []
    wait_until(lambda: serves(cluster, "schedd.v1.JobService") == SERVING, WITHIN, "gRPC too")

    cluster.pause("etcd")
    try:
        wait_for_reason(cluster, "the member hasn't joined the cluster yet")
        wait_for_reason(cluster, "etcd hasn't answered")
        wait_until(lambda: serves(cluster, "") == NOT_SERVING, WITHIN, "gRPC to say so")
        assert serves(cluster, "schedd.v1.JobService") == NOT_SERVING
        assert serves(cluster, "schedd.v1.WorkerService") == SERVING
        answer = cluster.get("m1", "/healthz")
        assert answer is not None
        assert answer.status == 200, "it is alive"
    finally:
        cluster.resume("etcd")
    wait_until(lambda: reasons(cluster) == [], WITHIN, "it to be ready again")
    wait_until(lambda: serves(cluster, "schedd.v1.JobService") == SERVING, WITHIN, "gRPC too")
    wait_until(lambda: exported(cluster, "schedd_shards_owned") > 0, WITHIN, "its shards")

    assert exported(cluster, "schedd_ready") == 1
    with SyncClient(cluster.endpoints) as client:
        names = [f"each-second-{number}" for number in range(8)]
        for name in names:
            client.jobs.create(name, every="1s", shell={"argv": ["true"]})
        wait_until(lambda: client.runs.list(job=names[-1], limit=1), WITHIN, "the first runs")
    cluster.kill("postgres")
    wait_for_reason(cluster, "PostgreSQL hasn't answered")
    wait_until(lambda: serves(cluster, "schedd.v1.JobService") == NOT_SERVING, WITHIN, "gRPC")
    wait_until(lambda: exported(cluster, "schedd_ready") == 0, WITHIN, "a scrape to say so")
    assert exported(cluster, 'schedd_not_ready_reasons{reason="database"}') == 1
    wait_until(
        lambda: exported(cluster, "schedd_catch_up_behind_seconds") > 4, WITHIN, "what isn't fired"
    )
    assert exported(cluster, "schedd_catch_up_timers") >= 1
    cluster.up()
    wait_until(lambda: reasons(cluster) == [], WITHIN, "it to be ready again")
    wait_until(
        lambda: exported(cluster, "schedd_catch_up_behind_seconds") == 0, WITHIN, "it to catch up"
    )
    with SyncClient(cluster.endpoints) as client:
        for name in names:
            client.jobs.delete(name)


@pytest.mark.timeout(180)
def test_each_line_of_a_log_is_one_object_and_none_has_a_secret(cluster: DevCluster) -> None:
    with SyncClient(cluster.endpoints) as client:
        job = client.jobs.create(
            "with-a-secret",
            on_demand=True,
            retry={"max_attempts": 1},
            shell={"argv": ["sh", "-c", "exit 3"], "env": {"PASSWORD": SECRET}},
        )
        run = client.jobs.trigger(job.name, payload=SECRET.encode())
        assert client.runs.wait(run, timeout=WITHIN).exit_code == 3
    for name in ("m1", "m2", "w1"):
        lines = [line for line in cluster.log(name).splitlines() if not line.startswith(OF_LIBPQ)]
        assert lines
        for line in lines:
            said = json.loads(line)
            assert {"at", "level", "service", "logger", "message"} <= said.keys()
            assert said["at"].endswith("Z")
        assert SECRET not in cluster.log(name)
        assert "postgresql://" not in cluster.log(name)
