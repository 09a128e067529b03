"""Dead letters on a real cluster: listed in groups, and redriven once their job was fixed, by name,
or many at a rate. The rate holds when a redrive is stopped and resumed and its owner is killed.

REDRIVE_LETTERS=10000 make test TESTS=tests/acceptance/test_redrives.py: so many, 100 a second.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from uuid import uuid4

import pytest

from schedclient import Run, SyncClient
from support.cluster import DevCluster
from support.owners import owner_of
from support.probe import DatabaseProbe
from support.wait import WAIT_TIMEOUT, wait_until

FULL = int(os.environ.get("REDRIVE_LETTERS", "0"))
LETTERS = FULL or 40
RATE = 100 if FULL else 8
END_TIMEOUT = 60.0 + FULL / 20
"""Seconds until all are redriven, with a failover in between, on a busy machine."""


@pytest.fixture
def broken(
    fault_cluster: DevCluster, client: SyncClient, tmp_path: Path
) -> tuple[str, DatabaseProbe]:
    """A job that fails until it is fixed, and says when it ran since."""
    del fault_cluster
    name = f"broken-{uuid4().hex[:6]}"
    fails = {"argv": ["/bin/sh", "-c", "echo row $$ has no total >&2; exit 3"]}
    client.jobs.create(name, on_demand=True, shell=fails, retry={"max_attempts": 1})
    return name, DatabaseProbe(tmp_path / "starts")


def create_failed_runs(client: SyncClient, name: str, count: int) -> list[Run]:
    """So many of its runs, triggered, that failed for good."""
    runs = [client.jobs.trigger(name, overlap="allow") for _ in range(count)]

    def dead() -> bool:
        return sum(group.count for group in client.dead_letters.groups(job=name)) == count

    wait_until(dead, END_TIMEOUT, "the dead letters")
    return runs


def fix(client: SyncClient, name: str, probe: DatabaseProbe) -> None:
    client.jobs.update(name, shell=probe.shell(), overlap="allow")


def succeeded(client: SyncClient, name: str, count: int) -> list[Run]:
    """So many of its runs did, and here they are."""

    def all_did() -> list[Run] | None:
        found = list(client.runs.list(job=name, states=["SUCCEEDED"]))
        return found if len(found) == count else None

    return wait_until(all_did, END_TIMEOUT, "the runs that do them again")


def ran(client: SyncClient, redrive_id: str, count: int) -> None:
    """Wait until the redrive reports so many succeeded runs."""

    def succeeded() -> bool:
        return client.redrives.get(redrive_id).runs.get("SUCCEEDED", 0) == count

    wait_until(succeeded, END_TIMEOUT, "the runs that it made")


def largest_excess(times: list[datetime], rate: float) -> float:
    """By how many they were ever more than this rate allows, with what it kept of a second."""
    ahead = [place - rate * (time - times[0]).total_seconds() for place, time in enumerate(times)]
    least = accumulate(ahead, min)  # each against the earlier one that allows it the fewest
    most = max(now - then for now, then in zip(ahead, least, strict=True)) - rate
    return round(most, 2)  # rows' times are whole microseconds


def test_dead_letters_are_listed_and_redriven_once_their_job_is_fixed(
    fault_cluster: DevCluster, client: SyncClient, broken: tuple[str, DatabaseProbe]
) -> None:
    name, probe = broken
    first, *others = create_failed_runs(client, name, 3)
    [group] = fault_cluster.json("dlq", "groups", "--job", name)
    assert (group["count"], group["job"], group["reason"]) == (3, name, "EXIT_CODE")
    shown = fault_cluster.schedctl("dlq", "show", first.run_id)
    assert (
        "has no total" in shown.stdout + fault_cluster.schedctl("run", "logs", first.run_id).stderr
    )
    assert f"schedctl dlq redrive {first.run_id}" in shown.stderr

    fix(client, name, probe)
    [again] = fault_cluster.json("dlq", "redrive", first.run_id)
    assert again["redriveOf"] == first.run_id
    assert client.runs.wait(again["runId"], timeout=WAIT_TIMEOUT).succeeded
    [same] = fault_cluster.json("dlq", "redrive", first.run_id)
    assert same["runId"] == again["runId"], "twice gives the same run"
    chosen = ("--group", group["fingerprint"], "--job", name)
    many = fault_cluster.schedctl("dlq", "redrive", *chosen, "--wait")
    assert many.returncode == 0, many.stderr
    assert "2 of 2 created (2 succeeded)" in many.stderr

    made = succeeded(client, name, 3)
    assert {run.redrive_of for run in made} == {run.run_id for run in (first, *others)}
    assert {run.scheduled_at for run in made} == {run.scheduled_at for run in (first, *others)}
    assert {run.trigger for run in made} == {"REDRIVE"}
    assert fault_cluster.json("dlq", "groups", "--job", name) == []
    letter = client.dead_letters.get(first.run_id)
    assert (letter.resolution, letter.redriven_as) == ("REDRIVEN", again["runId"])
    assert client.runs.get(first.run_id).state == "FAILED", "what has ended never changes"


def test_many_dead_letters_are_redriven_at_a_rate_over_a_stop_a_resume_and_a_killed_owner(
    fault_cluster: DevCluster,
    client: SyncClient,
    broken: tuple[str, DatabaseProbe],
    figure: Callable[[str], None],
) -> None:
    name, probe = broken
    dead = create_failed_runs(client, name, LETTERS)
    fix(client, name, probe)
    begun = fault_cluster.json("dlq", "redrive", "--job", name, "--rate", f"{RATE}/s")
    redrive_id = begun["redriveId"]

    wait_until(
        lambda: client.redrives.get(redrive_id).created >= RATE, WAIT_TIMEOUT, "the first runs"
    )
    stopped = client.redrives.stop(redrive_id)
    assert (stopped.state, stopped.created + stopped.left) == ("STOPPED", LETTERS)
    assert stopped.left > 0
    ran(client, redrive_id, stopped.created)
    assert client.redrives.get(redrive_id).created == stopped.created, "nothing was made since"

    fault_cluster.schedctl("dlq", "resume", redrive_id)
    ((shard,),) = fault_cluster.sql(
        "SELECT shard FROM redrives WHERE redrive_id = %s::uuid", redrive_id
    )
    fault_cluster.kill(owner_of(client, shard))

    ran(client, redrive_id, LETTERS)
    made = succeeded(client, name, LETTERS)
    done = client.redrives.get(redrive_id)
    assert (done.state, done.created, done.runs) == ("DONE", LETTERS, {"SUCCEEDED": LETTERS})
    assert {run.redrive_of for run in made} == {run.run_id for run in dead}
    assert probe.repeated() == []
    assert len(probe.starts()) == LETTERS
    times = sorted(run.due_at for run in made if run.due_at is not None)
    assert largest_excess(times, RATE) <= 0
    figure(
        f"redrive: {LETTERS} at {RATE}/s, stopped, resumed and over a killed owner, were made in "
        f"{(times[-1] - times[0]).total_seconds():.1f} s, "
        f"{largest_excess(times, RATE):.1f} over the rate at the most"
    )
