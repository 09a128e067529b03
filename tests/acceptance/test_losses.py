"""A lost member and a lost worker stay visible wherever an operator looks, until they return."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from acceptance.conftest import TTL
from support import fork_server
from support.cluster import DevCluster
from support.wait import PROCESS_POLL, WAIT_TIMEOUT, wait_until

SEEN = TTL + 5.0
"""Seconds within which a loss is listed."""
DOCTOR_POLL = 3 * PROCESS_POLL
"""Seconds between two diagnoses, each of which takes 0.15 s of CPU time."""


def state_of(fault_cluster: DevCluster, name: str, *listing: str) -> dict[str, Any]:
    found = [one for one in fault_cluster.json(*listing) if one["name"] == name]
    return found[0] if found else {"state": "absent", "lostAt": None}


def findings(fault_cluster: DevCluster, check: str) -> dict[str, str]:
    answer = fault_cluster.schedctl("cluster", "doctor", "-o", "json")
    return {
        one["subject"]: one["severity"]
        for one in json.loads(answer.stdout)
        if one["area"] == "work" and one["check"] == check and one["subject"]
    }


def metric(fault_cluster: DevCluster, name: str) -> float | None:
    leader = fault_cluster.leader()
    answer = fault_cluster.get(leader, "/metrics") if leader else None
    found = re.search(rf"^{name} (\S+)$", answer.body.decode() if answer else "", re.MULTILINE)
    return float(found[1]) if found else None


@contextmanager
def stream_of(fault_cluster: DevCluster, file: Path) -> Iterator[None]:
    """Write the events to the file; it is attached, as it shows a job of each second."""
    words = ["--endpoints", ",".join(fault_cluster.endpoints), "-o", "jsonl", "events"]
    fault_cluster.schedctl(
        "job", "create", "seen", "--every", "1s", "--", "true"
    ).check_returncode()
    with (
        file.open("w") as out,
        fork_server.Popen([sys.executable, "-m", "schedctl", *words], stdout=out) as stream,
    ):
        try:
            wait_until(file.read_text, WAIT_TIMEOUT, "the stream to be attached")
            yield
        finally:
            stream.kill()
            fault_cluster.schedctl("job", "delete", "seen", "--yes")


def state_is(fault_cluster: DevCluster, name: str, state: str, *listing: str) -> None:
    wait_until(
        lambda: state_of(fault_cluster, name, *listing)["state"] == state,
        SEEN + WAIT_TIMEOUT,
        f"{name} to be listed as {state}",
        every=PROCESS_POLL,
    )


def assert_lost_everywhere(fault_cluster: DevCluster, member: str, worker: str) -> None:
    state_is(fault_cluster, worker, "LOST", "worker", "list")
    state_is(fault_cluster, member, "LOST", "cluster", "members")
    assert state_of(fault_cluster, worker, "worker", "list")["lostAt"]
    assert state_of(fault_cluster, member, "cluster", "members")["lostAt"]
    status = fault_cluster.json("cluster", "status")
    assert (status["lostMembers"], status["lostWorkers"]) == ([member], [worker])
    assert findings(fault_cluster, "lost members") == {member: "BAD"}
    assert findings(fault_cluster, "lost workers") == {worker: "BAD"}
    for name in ("schedd_lost_members", "schedd_lost_workers"):
        wait_until(lambda name=name: metric(fault_cluster, name) == 1, WAIT_TIMEOUT * 2, name)
    other = next(one["name"] for one in fault_cluster.record["members"] if one["name"] != member)
    for page in ("/", "/workers"):
        shown = fault_cluster.get(other, page)
        assert shown is not None, page
        assert "lost" in shown.body.decode(), page


@pytest.mark.timeout(300)
def test_a_killed_member_and_a_killed_worker_are_listed_as_lost_everywhere_until_they_return(
    fault_cluster: DevCluster, tmp_path: Path
) -> None:
    leader = wait_until(fault_cluster.leader, WAIT_TIMEOUT, "a leader")
    file = tmp_path / "events"
    wanted = {
        "leader-changed",
        "member-lost",
        "member-returned",
        "worker-lost",
        "worker-returned",
    }
    with stream_of(fault_cluster, file):
        fault_cluster.kill(leader)
        fault_cluster.kill("w3")
        assert_lost_everywhere(fault_cluster, leader, "w3")
        fault_cluster.up()
        state_is(fault_cluster, "w3", "LIVE", "worker", "list")
        state_is(fault_cluster, leader, "LIVE", "cluster", "members")
        assert (
            findings(fault_cluster, "lost members") == findings(fault_cluster, "lost workers") == {}
        )
        wait_until(lambda: wanted <= kinds(file), WAIT_TIMEOUT, "the stream to have each event")
    lines = fault_cluster.json("audit", "list", "--limit", "200")
    assert wanted <= {line["action"] for line in lines}
    logs = "".join(fault_cluster.log(one["name"]) for one in fault_cluster.record["members"])
    assert f"member lost member={leader}" in logs
    assert "worker lost worker=w3" in logs


def kinds(file: Path) -> set[str]:
    lines = file.read_text().splitlines()
    events = [json.loads(line) for line in lines if line.endswith("}")]
    return {one["cluster"]["kind"] for one in events if one["cluster"]}


def test_a_daemon_that_is_stopped_on_purpose_is_not_lost(fault_cluster: DevCluster) -> None:
    wait_until(fault_cluster.leader, WAIT_TIMEOUT, "a leader")
    fault_cluster.terminate("w3")
    fault_cluster.terminate("m3")
    wait_until(
        lambda: (
            len(fault_cluster.json("cluster", "members")) == 2
            and len(fault_cluster.json("worker", "list")) == 2
        ),
        SEEN + WAIT_TIMEOUT,
        "both to leave the lists",
        every=PROCESS_POLL,
    )
    assert findings(fault_cluster, "lost members") == findings(fault_cluster, "lost workers") == {}


def test_a_drained_worker_that_is_stopped_is_listed_as_stopped_and_is_not_lost(
    fault_cluster: DevCluster,
) -> None:
    wait_until(fault_cluster.leader, WAIT_TIMEOUT, "a leader")
    fault_cluster.schedctl("worker", "drain", "w3", "--wait").check_returncode()
    try:
        fault_cluster.terminate("w3")
        state_is(fault_cluster, "w3", "STOPPED", "worker", "list")
        assert state_of(fault_cluster, "w3", "worker", "list")["lostAt"] is None
        assert fault_cluster.json("cluster", "status")["lostWorkers"] == []
    finally:
        fault_cluster.schedctl("worker", "undrain", "w3").check_returncode()
    assert "w3" not in {one["name"] for one in fault_cluster.json("worker", "list")}


def test_a_job_without_a_worker_is_found_by_the_doctor(fault_cluster: DevCluster) -> None:
    fault_cluster.schedctl(
        "job", "create", "stuck", "--every", "2s", "--python", "no.such.handler"
    ).check_returncode()
    wait_until(
        lambda: findings(fault_cluster, "jobs without a worker") == {"stuck": "BAD"},
        WAIT_TIMEOUT * 3,
        "the stuck job",
        every=DOCTOR_POLL,
    )
    fault_cluster.schedctl("job", "delete", "stuck", "--yes").check_returncode()
    wait_until(
        lambda: findings(fault_cluster, "jobs without a worker") == {},
        WAIT_TIMEOUT,
        "no finding",
        every=DOCTOR_POLL,
    )
