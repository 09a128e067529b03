"""A lost member and a lost worker stay visible wherever an operator looks, until they return."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from acceptance.conftest import TTL
from support.cluster import DevCluster
from support.wait import WAIT_TIMEOUT, wait_until

SEEN = TTL + 5.0
"""Seconds within which a loss is listed."""


def state_of(rough: DevCluster, name: str, *listing: str) -> dict[str, Any]:
    found = [one for one in rough.json(*listing) if one["name"] == name]
    return found[0] if found else {"state": "absent", "lostAt": None}


def findings(rough: DevCluster, check: str) -> dict[str, str]:
    answer = rough.schedctl("cluster", "doctor", "-o", "json")
    return {
        one["subject"]: one["severity"]
        for one in json.loads(answer.stdout)
        if one["area"] == "work" and one["check"] == check and one["subject"]
    }


def metric(rough: DevCluster, name: str) -> float | None:
    leader = rough.leader()
    answer = rough.get(leader, "/metrics") if leader else None
    found = re.search(rf"^{name} (\S+)$", answer.body.decode() if answer else "", re.MULTILINE)
    return float(found[1]) if found else None


@contextmanager
def stream_of(rough: DevCluster, file: Path) -> Iterator[None]:
    """Write the events to the file; it is attached, as it shows a job of each second."""
    words = ["--endpoints", ",".join(rough.endpoints), "-o", "jsonl", "events"]
    rough.schedctl("job", "create", "seen", "--every", "1s", "--", "true").check_returncode()
    with (
        file.open("w") as out,
        subprocess.Popen([sys.executable, "-m", "schedctl", *words], stdout=out) as stream,
    ):
        try:
            wait_until(file.read_text, WAIT_TIMEOUT, "the stream to be attached")
            yield
        finally:
            stream.kill()
            rough.schedctl("job", "delete", "seen", "--yes")


def state_is(rough: DevCluster, name: str, state: str, *listing: str) -> None:
    wait_until(
        lambda: state_of(rough, name, *listing)["state"] == state,
        SEEN + WAIT_TIMEOUT,
        f"{name} to be listed as {state}",
    )


def assert_lost_everywhere(rough: DevCluster, member: str, worker: str) -> None:
    state_is(rough, worker, "LOST", "worker", "list")
    state_is(rough, member, "LOST", "cluster", "members")
    assert state_of(rough, worker, "worker", "list")["lostAt"]
    assert state_of(rough, member, "cluster", "members")["lostAt"]
    status = rough.json("cluster", "status")
    assert (status["lostMembers"], status["lostWorkers"]) == ([member], [worker])
    assert findings(rough, "lost members") == {member: "BAD"}
    assert findings(rough, "lost workers") == {worker: "BAD"}
    wait_until(lambda: metric(rough, "schedd_lost_members") == 1, WAIT_TIMEOUT * 2, "the metric")
    assert metric(rough, "schedd_lost_workers") == 1
    other = next(one["name"] for one in rough.record["members"] if one["name"] != member)
    for page in ("/", "/workers"):
        shown = rough.get(other, page)
        assert shown is not None, page
        assert "lost" in shown.body.decode(), page


@pytest.mark.timeout(300)
def test_a_killed_member_and_a_killed_worker_are_listed_as_lost_everywhere_until_they_return(
    rough: DevCluster, tmp_path: Path
) -> None:
    leader = wait_until(rough.leader, WAIT_TIMEOUT, "a leader")
    file = tmp_path / "events"
    wanted = {
        "leader-changed",
        "member-lost",
        "member-returned",
        "worker-lost",
        "worker-returned",
    }
    with stream_of(rough, file):
        rough.kill(leader)
        rough.kill("w3")
        assert_lost_everywhere(rough, leader, "w3")
        rough.up()
        state_is(rough, "w3", "LIVE", "worker", "list")
        state_is(rough, leader, "LIVE", "cluster", "members")
        assert findings(rough, "lost members") == findings(rough, "lost workers") == {}
        wait_until(lambda: wanted <= kinds(file), WAIT_TIMEOUT, "the stream to have each event")
    lines = rough.json("audit", "list", "--limit", "200")
    assert wanted <= {line["action"] for line in lines}
    logs = "".join(rough.log(one["name"]) for one in rough.record["members"])
    assert f"member lost member={leader}" in logs
    assert "worker lost worker=w3" in logs


def kinds(file: Path) -> set[str]:
    lines = file.read_text().splitlines()
    events = [json.loads(line) for line in lines if line.endswith("}")]
    return {one["cluster"]["kind"] for one in events if one["cluster"]}


def test_a_daemon_that_is_stopped_on_purpose_is_not_lost(rough: DevCluster) -> None:
    wait_until(rough.leader, WAIT_TIMEOUT, "a leader")
    rough.terminate("w3")
    rough.terminate("m3")
    wait_until(
        lambda: (
            len(rough.json("cluster", "members")) == 2 and len(rough.json("worker", "list")) == 2
        ),
        SEEN + WAIT_TIMEOUT,
        "both to leave the lists",
    )
    assert findings(rough, "lost members") == findings(rough, "lost workers") == {}


def test_a_job_without_a_worker_is_found_by_the_doctor(rough: DevCluster) -> None:
    rough.schedctl(
        "job", "create", "stuck", "--every", "2s", "--python", "no.such.handler"
    ).check_returncode()
    wait_until(
        lambda: findings(rough, "jobs without a worker") == {"stuck": "BAD"},
        WAIT_TIMEOUT * 3,
        "the stuck job",
    )
    rough.schedctl("job", "delete", "stuck", "--yes").check_returncode()
    wait_until(lambda: findings(rough, "jobs without a worker") == {}, WAIT_TIMEOUT, "no finding")
