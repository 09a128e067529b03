"""Jobs that fire each second and do nothing: created by the API, and read from their rows."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from bench.gaps import Instant
from bench.rig import NOOP
from schedclient import Client
from support.cluster import DevCluster
from support.wait import wait_until

STEADY: Final = 3
"""Number of complete seconds in a row, the newest ones, in which each job was on time."""
STABLE_AFTER: Final = 1.0
"""Seconds after a scheduled time within which its rows are stored, if it was on time."""

OWNERS = """
SELECT t.job_id::text, n.member FROM timers t JOIN shards s ON s.id = t.shard
JOIN tenures n ON n.id = s.owner WHERE t.job_id = ANY (%s::uuid[])
"""
SHARDS = """
SELECT n.member, count(*) FROM shards s JOIN tenures n ON n.id = s.owner AND n.fenced_at IS NULL
GROUP BY n.member
"""
ROWS = """
SELECT job_id::text, extract(epoch FROM due_at), extract(epoch FROM started_at),
    state = 'SUCCEEDED', assignments
FROM runs WHERE job_id = ANY (%s::uuid[])
    AND scheduled_at > to_timestamp(%s) AND scheduled_at <= to_timestamp(%s)
"""


class Ticks:
    """Jobs that fire each second. Each scheduled time has its own row, however late."""

    def __init__(self, cluster: DevCluster, count: int) -> None:
        self._cluster = cluster
        self.jobs = asyncio.run(_create(cluster, count))

    def owners(self) -> dict[str, str]:
        """Return the owner of each job."""
        return dict(self._cluster.sql(OWNERS, self.jobs))

    def rows(self, first: float, last: float) -> list[Instant]:
        """Return all scheduled times after `first`, up to `last`."""
        rows = self._cluster.sql(ROWS, self.jobs, first, last)
        return [
            Instant(job, float(due), None if started is None else float(started), done, tries)
            for job, due, started, done, tries in rows
        ]

    def await_steady(self, since: float, timeout: float) -> float:
        """Wait until all jobs are on time, by scheduled times after `since`; return the last of
        them.
        """

        def seen() -> float | None:
            last = float(int(time.time() - STABLE_AFTER))
            if last - STEADY < since:
                return None
            rows = self.rows(last - STEADY, last)
            whole = len(rows) == STEADY * len(self.jobs)
            return last if whole and all(row.succeeded and row.on_time for row in rows) else None

        found = wait_until(seen, timeout, "on-time starts of all jobs", every=0.25)
        assert found is not None
        return found

    def await_ended(self, first: float, last: float, timeout: float) -> list[Instant]:
        """Wait until all rows of these scheduled times have succeeded, and return the rows."""

        def ended() -> bool:
            rows = self.rows(first, last)
            return bool(rows) and all(row.succeeded for row in rows)

        wait_until(ended, timeout, "the end of the late runs", every=0.25)
        return self.rows(first, last)


def shares(cluster: DevCluster) -> dict[str, int]:
    """Return the number of shards of each member."""
    return {member: int(count) for member, count in cluster.sql(SHARDS)}


def await_shared(cluster: DevCluster, timeout: float) -> None:
    """Wait until each member owns about its share of the shards."""
    names = {member["name"] for member in cluster.record["members"]}

    def shared() -> bool:
        owned = shares(cluster)
        return set(owned) == names and min(owned.values()) * 2 > max(owned.values())

    wait_until(shared, timeout, "each member's share of shards", every=0.25)


async def _create(cluster: DevCluster, count: int) -> list[str]:
    numbers = iter(range(count))
    made: list[str] = []
    async with Client(cluster.endpoints) as client:

        async def create() -> None:
            for number in numbers:
                job = await client.jobs.create(
                    f"tick-{number}",
                    cron="* * * * * *",
                    overlap="allow",
                    catch_up={"policy": "all"},
                    python=NOOP,
                )
                made.append(job.job_id)

        async with asyncio.TaskGroup() as group:
            for place in range(16):
                group.create_task(create(), name=f"create {place}")
    return made
