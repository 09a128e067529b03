"""Chains on a real cluster: a cycle has its runs once, by its rows, whatever process is killed.

`CHAIN_CYCLES` cycles of each chain: 200 at full size.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from uuid import uuid4

import pytest

from schedclient import InvalidArgument, Run, SyncClient
from schedd.core.cluster.partition import shard_of_job
from schedd.core.ids import Id, JobId
from support.cluster import DevCluster
from support.owners import owner_of
from support.wait import wait_until

CYCLES = int(os.environ.get("CHAIN_CYCLES", "8"))
END_TIMEOUT = 90.0 + 2 * CYCLES
"""Seconds until all have ended, with two fail-overs in between, on a busy machine."""
CHAINS = ("success", "failure", "any")
JOBS = ("a", "b", "c", "d", "e")
FAILS = 'case "$SCHEDD_SCHEDULED_AT" in *[02468]Z) exit 3;; esac'
"""Every other cycle or so: those of an even millisecond."""


def fails(at: datetime) -> bool:
    return at.microsecond // 1000 % 2 == 0


@pytest.fixture
def chains(client: SyncClient) -> Iterator[str]:
    """A → b, c; d after both, on success, failure or any; e after c and d, whatever became of
    them. b fails in some cycles. The prefix of their names.
    """
    prefix = f"chain-{uuid4().hex[:6]}"
    made: list[str] = []

    def make(name: str, program: str, **when: object) -> str:
        job = client.jobs.create(
            name,
            {
                "shell": {"argv": ["/bin/sh", "-c", program]},
                "overlap": "allow",
                "retry": {"max_attempts": 1},
                **when,
            },
        )
        made.append(job.name)
        return job.name

    for when in CHAINS:
        a = make(f"{prefix}-{when}-a", "true", on_demand=True)
        b = make(f"{prefix}-{when}-b", FAILS, after={"jobs": [a]})
        c = make(f"{prefix}-{when}-c", "sleep 0.1", after={"jobs": [a]})
        d = make(f"{prefix}-{when}-d", "true", after={"jobs": [b, c], "when": when})
        make(f"{prefix}-{when}-e", "true", after={"jobs": [c, d], "when": "any"})
    yield prefix
    for name in reversed(made):
        client.jobs.delete(name)


def expected(when: str, job: str, at: datetime) -> str:
    if job == "b":
        return "FAILED" if fails(at) else "SUCCEEDED"
    runs = {"success": not fails(at), "failure": fails(at), "any": True}[when]
    return "SUCCEEDED" if job != "d" or runs else "SKIPPED"


def runs_of(client: SyncClient, name: str) -> list[Run]:
    return list(client.runs.list(job=name, limit=10 * CYCLES))


def owner_of_job(client: SyncClient, name: str) -> str:
    shard = shard_of_job(JobId(Id.parse(client.jobs.get(name).job_id)), "default", "")
    return owner_of(client, shard)


def ended(cluster: DevCluster, chains: str, job: str, count: int) -> bool:
    """Whether so many cycles have come past this job, of each chain."""
    names = [f"{chains}-{when}-{job}" for when in CHAINS]
    [(found,)] = cluster.sql(
        "SELECT count(*) FROM runs JOIN jobs USING (job_id) WHERE name = ANY (%s)"
        " AND state NOT IN ('PENDING', 'RUNNING', 'RETRYING')",
        names,
    )
    return found >= count * len(CHAINS)


@pytest.mark.timeout(2 * END_TIMEOUT)
def test_a_chain_of_five_with_two_joins_runs_once_a_cycle_although_its_owners_are_killed(
    fault_cluster: DevCluster, client: SyncClient, chains: str, figure
) -> None:
    roots = [client.jobs.trigger(f"{chains}-{when}-a") for _ in range(CYCLES) for when in CHAINS]
    cycles = {run.scheduled_at for run in roots}
    for part in (4, 2):
        wait_until(
            lambda most=CYCLES // part: ended(fault_cluster, chains, "b", most),
            END_TIMEOUT,
            f"the first of {part} parts",
        )
        fault_cluster.kill(owner_of_job(client, f"{chains}-success-d"))
        fault_cluster.up()
    wait_until(
        lambda: ended(fault_cluster, chains, "e", CYCLES), END_TIMEOUT, "the end of all chains"
    )
    for when in CHAINS:
        mine = sorted(str(run.scheduled_at) for run in roots if f"-{when}-" in str(run.job))
        for job in JOBS[1:]:
            runs = runs_of(client, f"{chains}-{when}-{job}")
            assert sorted(str(run.scheduled_at) for run in runs) == mine, f"{when} {job}"
            for run in runs:
                assert run.scheduled_at is not None
                assert run.state == expected(when, job, run.scheduled_at), f"{run}"
                assert run.trigger == "CHAIN"
                assert run.attempt <= 1
    assert fault_cluster.sql("SELECT count(*) FROM chain_arrivals") == [(0,)]
    figure(f"chains: {len(CHAINS)} of 5 jobs, {len(cycles)} cycles, over two killed owners")


def test_a_skipped_run_names_its_parent_and_a_cycle_is_rejected_with_its_path(
    fault_cluster: DevCluster, client: SyncClient, chains: str
) -> None:
    del fault_cluster
    name = f"{chains}-failure"
    refused = pytest.raises(InvalidArgument, match=f"{name}-a → {name}-b → {name}-d → {name}-a")
    with refused as error:
        client.jobs.update(f"{name}-a", after={"jobs": [f"{name}-d"]})
    assert error.value.reason == "CHAIN_CYCLE"
    while True:
        root = client.jobs.trigger(f"{name}-a")
        assert root.scheduled_at is not None
        if not fails(root.scheduled_at):
            break

    def of_the_cycle() -> list[Run]:
        return [one for one in runs_of(client, f"{name}-d") if one.scheduled_at == at]

    at = root.scheduled_at
    [skipped] = wait_until(of_the_cycle, END_TIMEOUT, "d of that cycle")
    assert (skipped.state, skipped.reason) == ("SKIPPED", "AFTER")
    assert {one.job for one in skipped.parents} == {f"{name}-b", f"{name}-c"}
    answer = client.runs.why(skipped.run_id).answer
    assert f"of {name}-b is SUCCEEDED" in answer
    assert "after.when is failure" in answer


def test_results_of_parents_are_the_payload_of_their_child(
    fault_cluster: DevCluster, client: SyncClient, chains: str
) -> None:
    """A shell gives nothing back: its child is handed null, and several a map by their names."""
    del fault_cluster
    name = f"{chains}-any"
    client.jobs.update(
        f"{name}-e",
        shell={"argv": ["cat"]},
        after={"jobs": [f"{name}-c", f"{name}-d"], "when": "any", "with_output": True},
    )
    client.jobs.trigger(f"{name}-a")
    [run] = wait_until(
        lambda: [one for one in runs_of(client, f"{name}-e") if one.ended],
        END_TIMEOUT,
        "the end of e",
    )
    text = b"".join(piece.data for piece in client.runs.logs(run.run_id)).decode()
    assert text == f'{{"{name}-c": null, "{name}-d": null}}'
