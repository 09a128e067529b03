"""Each-second jobs, one at least with every member, and their reckoning when faults are over.

ticking = start_ticking(cluster, client, tmp_path)
…a fault…
rows = ticking.stop()       # each second is in one row, each run was started once, or it fails
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from schedclient import Run, SyncClient
from support.cluster import DevCluster
from support.ledger import covered, every_instant
from support.probe import DatabaseProbe, Start
from support.wait import WAIT_TIMEOUT, wait_until

BY_POLICY = {"SUCCEEDED", "COALESCED", "SKIPPED"}
"""States of a ledger under the default policies across a fault. SKIPPED (OVERLAP) are seconds that
pass after an owner died just before a dispatch, until the cluster knows that its run never started.
"""
QUIET = WAIT_TIMEOUT
"""Seconds within which all that is in flight has ended."""
WRITTEN = 2.0
"""Seconds from a job's start to its first line, at most, on a busy machine."""


@dataclass(slots=True)
class Ticking:
    """The jobs by name, with the files they write and the members that owned them at first."""

    client: SyncClient
    probes: dict[str, DatabaseProbe] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)

    def starts(self) -> Iterator[Start]:
        """All starts of all jobs."""
        for probe in self.probes.values():
            yield from probe.starts()

    def reached(self, instant: float) -> bool:
        """Whether every job has run for a nominal instant past this second of the epoch."""
        newest = [max(s.scheduled_at.timestamp() for s in p.starts()) for p in self.probes.values()]
        return min(newest) > instant

    def until(self, instant: float, timeout: float) -> None:
        """Wait until every job has `reached` it."""
        wait_until(lambda: self.reached(instant), timeout, f"all jobs to have run past {instant}")

    def first_after(self, job: str, instant: float, timeout: float) -> float:
        """Seconds from `instant` to the first start of the job for a nominal instant past it."""

        def later() -> Start | None:
            past = (s for s in self.probes[job].starts() if s.scheduled_at.timestamp() > instant)
            return min(past, key=lambda start: start.at, default=None)

        return wait_until(later, timeout, f"a run of {job} past {instant}").at - instant

    def stop(self) -> dict[str, list[Run]]:
        """Delete the jobs, await the end of their runs, and reckon. Answers their rows."""
        return {
            job: delete_and_account(self.client, job, probe) for job, probe in self.probes.items()
        }


def start_ticking(
    cluster: DevCluster, client: SyncClient, folder: Path, *, overlap: str = "skip"
) -> Ticking:
    """Make jobs until every member owns one, and let each fire a few times.

    `overlap`: "allow" where no second may be skipped, though a busy machine takes more than one for
    a run.
    """
    missing = {member["name"] for member in cluster.record["members"]}

    def owners_by_shard() -> dict[int, str | None] | None:
        owners = {shard.shard: shard.owner for shard in client.cluster.shards()}
        return owners if set(owners.values()) == missing else None

    owners = wait_until(owners_by_shard, WAIT_TIMEOUT, "every member to own shards", every=0.1)
    ticking = Ticking(client)
    series = uuid4().hex[:6]
    while missing:
        job = f"tick-{series}-{len(ticking.probes)}"
        probe = ticking.probes[job] = DatabaseProbe(folder / job)
        made = client.jobs.create(job, cron="* * * * * *", overlap=overlap, shell=probe.shell())
        ((shard,),) = cluster.sql("SELECT shard FROM timers WHERE job_id = %s", made.job_id)
        ticking.owners[job] = str(owners[shard])
        missing.discard(ticking.owners[job])
    wait_until(
        lambda: all(len(probe.starts()) >= 3 for probe in ticking.probes.values()),
        WAIT_TIMEOUT,
        "firing to begin",
    )
    return ticking


def delete_and_account(client: SyncClient, job: str, probe: DatabaseProbe) -> list[Run]:
    """Delete an each-second job and await the end of its runs; answers all of its rows.

    Each second from the first to the last stands in one row. What ran, ran once, under the token
    that was accepted. Nothing starts after the delete; of what is due it cancels one run at most.
    """
    client.jobs.delete(job)
    deleted = time.time()
    rows = wait_until(lambda: _ended(client, job), QUIET, f"the end of all runs of {job}")
    coverage = covered(rows)
    assert coverage == every_instant(min(coverage), max(coverage)), job
    ran = [row for row in rows if row.started_at is not None]
    assert all(row.state == "SUCCEEDED" for row in ran), job
    starts = probe.starts()
    assert sorted((run.run_id, run.fencing_token) for run in ran) == sorted(
        (start.run_id, start.token) for start in starts
    ), job
    assert max(start.at for start in starts) < deleted + WRITTEN, job
    cancelled = [row.scheduled_at for row in rows if row.reason == "DELETED"]
    assert sum(at is not None and at.timestamp() <= deleted for at in cancelled) <= 1, job
    return [row for row in rows if row.reason != "DELETED"]


def _ended(client: SyncClient, job: str) -> list[Run]:
    rows = list(client.runs.list(job=job))
    return rows if all(row.ended for row in rows) else []
