"""Pools on a real cluster: exact limits and rates, by their rows, whatever process is killed.

`POOL_RUNS` runs share the limit: 500 at full size, where the rate is 100 a minute, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from uuid import uuid4

import pytest

from schedclient import Attempt, Run, SyncClient
from schedd.core.cluster.partition import shard_of_pool
from support.cluster import DevCluster
from support.owners import owner_of
from support.wait import wait_until

FULL = "POOL_RUNS" in os.environ
RUNS = int(os.environ.get("POOL_RUNS", "60"))
LIMIT = 3
COUNT, PER = (100, timedelta(minutes=1)) if FULL else (10, timedelta(seconds=2))
END_TIMEOUT = 60.0 + RUNS / 2
"""Seconds until all have ended, with two fail-overs in between, on a busy machine."""


@pytest.fixture
def name(client: SyncClient) -> Iterator[str]:
    """Of a pool; what was submitted to it has ended by the end."""
    name = f"pool-{uuid4().hex[:6]}"
    yield name
    client.pools.delete(name)


def submitted(client: SyncClient, pool: str, count: int, program: str) -> list[Run]:
    action = {"argv": ["/bin/sh", "-c", program]}
    with ThreadPoolExecutor(8) as callers:
        made = callers.map(lambda _: client.submit(shell=action, pool=pool), range(count))
        return list(made)


def ended(client: SyncClient, pool: str, runs: Sequence[Run]) -> list[Run]:
    """Return the runs, once all of the pool succeeded."""
    wait_until(lambda: unended_runs(client, pool) == 0, END_TIMEOUT, "all runs of the pool to end")
    with ThreadPoolExecutor(8) as callers:
        found = list(callers.map(lambda run: client.runs.get(run.run_id), runs))
    assert {run.state for run in found} == {"SUCCEEDED"}
    return found


def unended_runs(client: SyncClient, name: str) -> int:
    pool = client.pools.get(name)
    return pool.waiting + pool.running


def attempts(client: SyncClient, runs: Sequence[Run]) -> list[Attempt]:
    with ThreadPoolExecutor(8) as callers:
        found = callers.map(lambda run: client.runs.attempts(run.run_id), runs)
        return [attempt for each in found for attempt in each]


def most_at_once(tried: Sequence[Attempt]) -> int:
    """Of the intervals from assignment to end, as the rows have them."""
    edges: list[tuple[datetime, int]] = []
    for one in tried:
        if one.started_at is not None:  # else it never began, and was given back
            assert one.finished_at is not None
            edges += [(one.started_at, 1), (one.finished_at, -1)]
    most = now = 0
    for _, change in sorted(edges):
        now += change
        most = max(most, now)
    return most


@pytest.mark.timeout(2 * END_TIMEOUT)
def test_a_limit_is_never_exceeded_although_its_owner_is_killed_twice(
    fault_cluster: DevCluster, client: SyncClient, name: str, figure
) -> None:
    client.pools.set(name, limit=LIMIT)
    shard = shard_of_pool("default", name)
    runs = submitted(client, name, RUNS, "sleep 0.2")
    for part in (3, 2):
        done = RUNS // part

        wait_until(
            lambda most=RUNS - done: unended_runs(client, name) <= most,
            END_TIMEOUT,
            f"the end of {done} of them",
        )
        fault_cluster.kill(owner_of(client, shard))
        fault_cluster.up()
    tried = attempts(client, ended(client, name, runs))
    assert most_at_once(tried) == LIMIT
    figure(f"pool: {RUNS} runs, {LIMIT} at once, over two killed owners, {len(tried)} attempts")


@pytest.mark.timeout(2 * END_TIMEOUT)
def test_a_rate_holds_in_any_window(
    fault_cluster: DevCluster, client: SyncClient, name: str, figure
) -> None:
    del fault_cluster
    client.pools.set(name, rate=f"{COUNT}/{PER.total_seconds():g}s")
    runs = ended(client, name, submitted(client, name, 4 * COUNT, "true"))
    starts = sorted(run.started_at for run in runs if run.started_at is not None)
    assert len(starts) == 4 * COUNT
    closest = min(beyond - first for first, beyond in zip(starts, starts[COUNT:], strict=False))
    assert closest >= PER
    took = starts[-1] - starts[0]
    assert took < 3 * PER + timedelta(seconds=3), "it is used up, too"
    figure(
        f"pool: {4 * COUNT} runs at {COUNT} in {PER.total_seconds():g} s took"
        f" {took.total_seconds():.2f} s; the {COUNT + 1}th start came {closest.total_seconds():.3f}"
        " s after the first at the least"
    )


def test_a_paused_pool_starts_nothing_and_a_job_continues_in_another_one(
    fault_cluster: DevCluster, client: SyncClient, name: str
) -> None:
    del fault_cluster
    client.pools.set(name, limit=1)
    client.pools.pause(name, note="moving house")
    job = client.jobs.create(f"j-{name}", on_demand=True, pool=name, shell={"argv": ["true"]})
    run = client.jobs.trigger(job.name)
    assert "is paused" in client.runs.why(run.run_id).answer
    client.jobs.update(job.name, pool="")
    done = wait_until(
        lambda: client.runs.get(run.run_id).ended, END_TIMEOUT, "its end, out of the pool"
    )
    assert done
    client.jobs.delete(job.name)
