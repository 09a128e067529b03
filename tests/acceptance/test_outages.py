"""etcd stands still, PostgreSQL restarts: nothing due or acknowledged is lost, nothing doubled."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path

import pytest

from acceptance.conftest import TTL, pids
from schedclient import Client, Run, SyncClient
from support.cluster import DevCluster
from support.each_second_jobs import QUIET, delete_and_account
from support.ledger import covered
from support.probe import DatabaseProbe
from support.wait import WAIT_TIMEOUT, wait_until, wait_until_async

OUTAGE = float(os.environ.get("ETCD_OUTAGE", "10"))
"""Seconds that etcd is suspended: at least `TTL` + 5."""
CALL = 2.0
"""Seconds after which a call of etcd that is under way has failed, and the member reports it."""
REJOINED = 10.0
"""Seconds after which all fire again: a lease, an election, a taking, and back-offs on the way."""


# ── etcd ─────────────────────────────────────────────────────────────────────────────────────────


def test_an_outage_of_etcd_stops_firing_lets_jobs_end_and_loses_no_scheduled_time(
    fault_cluster: DevCluster, client: SyncClient, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    before = pids(fault_cluster)
    policies = ("latest", "all", "none")
    probes = {policy: DatabaseProbe(tmp_path / policy) for policy in policies}
    for policy, probe in probes.items():
        client.jobs.create(
            policy,
            cron="* * * * * *",
            catch_up={"policy": policy},
            overlap="allow",
            shell=probe.shell(),
        )
    work = DatabaseProbe(tmp_path / "work")
    ends_within = client.submit(name="ends-within", shell=work.shell(f"sleep {TTL + 4:g}"))
    outlives = client.submit(name="outlives", shell=work.shell(f"sleep {OUTAGE + 8:g}"))
    wait_until(lambda: len(work.starts()) == 2, WAIT_TIMEOUT, "the long jobs to start")
    wait_until(lambda: all(len(p.starts()) >= 3 for p in probes.values()), 15, "firing to begin")

    fault_cluster.pause("etcd")
    stopped = time.time()
    wait_until(
        lambda: not any(ready(fault_cluster, m) for m in MEMBERS), WAIT_TIMEOUT, "all trust to end"
    )
    for member in MEMBERS:
        wait_until(
            lambda m=member: knows_no_member(fault_cluster, m), CALL, f"{member} to know no member"
        )
    ended = client.runs.wait(ends_within, timeout=TTL + 8)
    assert time.time() < stopped + OUTAGE, "it ended while etcd stood still"
    assert ended.succeeded
    wait_until(lambda: time.time() >= stopped + OUTAGE, OUTAGE, "the end of the outage")
    fault_cluster.resume("etcd")
    healed = time.time()

    rejoined = fires_again_after(healed, probes.values())
    figure(f"etcd away for {OUTAGE:g} s: all fired again {rejoined:.2f} s after it healed")
    assert rejoined <= REJOINED

    for policy, probe in probes.items():
        assert not [s for s in probe.starts() if stopped + TTL < s.at < healed], "fired untrusted"
        wait_until(
            lambda job=policy: not late(client, job, healed), QUIET, "all to be caught up with"
        )
        rows = delete_and_account(client, policy, probe)
        expected = {"latest": ("COALESCED", None), "none": ("MISSED", "CATCH_UP_NONE")}
        others = {(row.state, row.reason) for row in rows} - {("SUCCEEDED", None)}
        assert others == ({expected[policy]} if policy in expected else set())
        gap = [at for at in covered(rows) if stopped + TTL < at.timestamp() < healed - 1]
        assert len(gap) >= OUTAGE - TTL - 3, "the outage was real"

    assert_once(client, ended, work)
    outlived = client.runs.wait(outlives, timeout=OUTAGE + 20)
    assert outlived.succeeded
    accepted = [one for one in client.runs.attempts(outlived.run_id) if one.state == "SUCCEEDED"]
    assert [one.fencing_token for one in accepted] == [outlived.fencing_token]
    figure(
        f"etcd away for {OUTAGE:g} s: assignments of a job that outlived it: {outlived.assignments}"
    )
    assert len(work.starts(outlived.run_id)) == outlived.assignments
    assert pids(fault_cluster) == before, "no daemon ended"


MEMBERS = ("m1", "m2", "m3")


def knows_no_member(cluster: DevCluster, member: str) -> bool:
    """Return whether its metrics show no leader and no member."""
    answer = cluster.get(member, "/metrics")
    lines = answer.body.decode().splitlines() if answer is not None else []
    return {"schedd_leader_known 0.0", "schedd_members 0.0"} <= {*lines}


def late(client: SyncClient, job: str, healed: float) -> list[Run]:
    """Return the runs that were due before that, and still wait for their release."""
    until = datetime.fromtimestamp(healed, UTC)
    return [*client.runs.list(job=job, states=["pending"], before=until)]


def fires_again_after(healed: float, probes: Collection[DatabaseProbe]) -> float:
    """Wait for each to start at an instant after healing; seconds until the last of them had."""

    def firsts() -> list[float]:
        after = [[s.at for s in p.starts() if s.scheduled_at.timestamp() > healed] for p in probes]
        return [min(starts) for starts in after] if all(after) else []

    return max(wait_until(firsts, WAIT_TIMEOUT, "all jobs to fire again")) - healed


def ready(cluster: DevCluster, member: str) -> bool:
    answer = cluster.get(member, "/readyz")
    return answer is not None and answer.status == 200


def assert_once(client: SyncClient, run: Run, probe: DatabaseProbe) -> None:
    assert (run.attempt, run.assignments) == (1, 1)
    assert [start.token for start in probe.starts(run.run_id)] == [run.fencing_token]
    assert client.runs.get(run.run_id) == run


# ── PostgreSQL ───────────────────────────────────────────────────────────────────────────────────

SUBMITTERS = int(os.environ.get("OUTAGE_SUBMITTERS", "4"))
SUBMITS = 25 * SUBMITTERS
"""At least so many, before, while and after PostgreSQL is away."""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["restarted", "crashed"])
async def test_every_submit_that_was_acknowledged_around_a_restart_of_postgresql_runs_once(
    fault_cluster: DevCluster, tmp_path: Path, figure: Callable[[str], None], how: signal.Signals
) -> None:
    before = pids(fault_cluster)
    probe = DatabaseProbe(tmp_path / "starts")
    load = Load(f"load-{how.name.lower()}", probe)
    async with (
        Client(fault_cluster.endpoints, timeout=40.0) as client,
        asyncio.TaskGroup() as group,
    ):
        for number in range(SUBMITTERS):
            group.create_task(load.submit(client), name=f"submitter {number}")
        await wait_until_async(
            lambda: len(load.runs) >= SUBMITS // 4, WAIT_TIMEOUT, "the load to begin"
        )
        await asyncio.to_thread(fault_cluster.signal, "postgres", how)
        down = time.time()
        await asyncio.to_thread(fault_cluster.up)
        figure(f"PostgreSQL {how.name}: away for {time.time() - down:.1f} s (with dev up's checks)")
        enough = max(SUBMITS, len(load.runs) + SUBMITS // 4)
        await wait_until_async(lambda: len(load.runs) >= enough, WAIT_TIMEOUT, "more of the load")
        load.over = True
    assert load.slowest > 0.2, "some submits met the restart"

    async with Client(fault_cluster.endpoints) as client:
        rows = await wait_until_async(
            lambda: load.ended(client), WAIT_TIMEOUT, "all runs to end", every=0.5
        )
        again = {key: await load.once(client, key) for key in list(load.runs)[:: SUBMITS // 20]}
    assert Counter(row.run_id for row in rows) == Counter(load.runs.values())
    assert {row.state for row in rows} == {"SUCCEEDED"}
    assert Counter((s.run_id, s.token) for s in probe.starts()) == Counter(
        (row.run_id, row.fencing_token) for row in rows
    )
    assert again.items() <= load.runs.items(), "the same key gives the same run"
    figure(
        f"PostgreSQL {how.name}: {len(rows)} submits, all ran once; the slowest answer took"
        f" {load.slowest:.1f} s"
    )
    assert {name: pid for name, pid in pids(fault_cluster).items() if name != "postgres"} == {
        name: pid for name, pid in before.items() if name != "postgres"
    }, "no daemon ended"


class Load:
    """Submits under one name; `runs` holds what was acknowledged: key → run id."""

    def __init__(self, name: str, probe: DatabaseProbe) -> None:
        self.name = name
        self.probe = probe
        self.runs: dict[str, str] = {}
        self.over = False
        self.slowest = 0.0
        self._next = 0

    async def submit(self, client: Client) -> None:
        """Submit one run after the other until `over`. The client retries where it may."""
        while not self.over:
            self._next += 1
            key = f"{self.name}-{self._next}"
            began = time.monotonic()
            self.runs[key] = await self.once(client, key)
            self.slowest = max(self.slowest, time.monotonic() - began)

    async def once(self, client: Client, key: str) -> str:
        run = await client.submit(name=self.name, idempotency_key=key, shell=self.probe.shell())
        return run.run_id

    async def ended(self, client: Client) -> list[Run]:
        """All runs of this name, once none is live."""
        rows = [run async for run in client.runs.list(job=self.name)]
        return rows if all(run.ended for run in rows) else []
