"""The same idempotency key, sent many times at once to three members: one of it is made."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from schedclient import AlreadyExists, Client, SyncClient
from support.cluster import DevCluster
from support.probe import DatabaseProbe

AT_ONCE = int(os.environ.get("IDEMPOTENT_CALLS", "200"))
IN_FLIGHT = 100
"""Calls under way at a time: as many as a hundred callers that each try ten times."""


async def all_at_once(calls: list[Callable[[], Awaitable[Any]]]) -> list[Any]:
    doors = asyncio.Semaphore(IN_FLIGHT)

    async def through(call: Callable[[], Awaitable[Any]]) -> Any:
        async with doors:
            return await call()

    return await asyncio.gather(*(through(call) for call in calls))


async def many_times(cluster: DevCluster, call: Callable[[Client], Awaitable[Any]]) -> list[Any]:
    """The answers, asked of each member in turn first."""
    members = [*cluster.endpoints]
    async with AsyncExitStack() as open_ones:
        clients = [
            await open_ones.enter_async_context(Client(members[at:] + members[:at], timeout=60))
            for at in range(len(members))
        ]
        return await all_at_once([partial(call, one) for one in islice(cycle(clients), AT_ONCE)])


def test_a_submit_runs_once(
    quiet_cluster: DevCluster, quiet_client: SyncClient, tmp_path: Path
) -> None:
    probe = DatabaseProbe(tmp_path / "probe")

    async def submitted(client: Client) -> str:
        run = await client.submit(shell=probe.shell("true"), idempotency_key="order-42")
        return run.run_id

    ids = set(asyncio.run(many_times(quiet_cluster, submitted)))
    [run_id] = ids
    assert quiet_client.runs.wait(run_id, timeout=20).succeeded
    assert [start.run_id for start in probe.starts()] == [run_id]
    with pytest.raises(AlreadyExists):
        quiet_client.submit(shell={"argv": ["false"]}, idempotency_key="order-42")


def test_a_trigger_runs_once(
    quiet_cluster: DevCluster, quiet_client: SyncClient, tmp_path: Path
) -> None:
    probe = DatabaseProbe(tmp_path / "probe")
    quiet_client.jobs.create(name="billing", on_demand=True, shell=probe.shell("true"))
    try:

        async def triggered(client: Client) -> str:
            run = await client.jobs.trigger("billing", idempotency_key="june")
            return run.run_id

        [run_id] = set(asyncio.run(many_times(quiet_cluster, triggered)))
        assert quiet_client.runs.wait(run_id, timeout=20).succeeded
        assert [run.run_id for run in quiet_client.runs.list(job="billing")] == [run_id]
        assert [start.run_id for start in probe.starts()] == [run_id]
    finally:
        quiet_client.jobs.delete("billing")


def test_a_job_is_created_once(quiet_cluster: DevCluster, quiet_client: SyncClient) -> None:
    async def created(client: Client) -> str:
        job = await client.jobs.create(
            name="monthly", on_demand=True, shell={"argv": ["true"]}, idempotency_key="make"
        )
        return job.job_id

    try:
        [job_id] = set(asyncio.run(many_times(quiet_cluster, created)))
        assert quiet_client.jobs.get("monthly").job_id == job_id
    finally:
        quiet_client.jobs.delete("monthly")
