"""Each overlap policy with real jobs, all at once; again with their owner killed in the middle.

Of each job one run is under way, which ends when it is let; three more are asked for. One member
owns all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from schedclient import Run, SyncClient
from support.cluster import DevCluster
from support.probe import DatabaseProbe
from support.wait import WAIT_TIMEOUT, wait_until

ASKED_FOR = 4
END_TIMEOUT = 25.0
"""Seconds until all are as they should be, with a fail-over in between, on a busy machine."""
SAID: dict[str, object] = {"allow_two": {"allow": 2}}
"""How a policy is written, where that isn't its name."""
AT_ONCE = {"allow": ASKED_FOR, "allow_two": 2}
"""How many runs of a job may be under way; 1 of all others."""
CLOCKS = 0.1
"""Seconds by which a worker's reading of cluster time may be wrong."""

OVERLAP = "SKIPPED (OVERLAP)"
FULL = "SKIPPED (BUFFER_FULL)"
REPLACED = "CANCELLED (BY_OVERLAP)"

MEANWHILE = {
    "skip": ["RUNNING", OVERLAP, OVERLAP, OVERLAP],
    "allow": ["RUNNING"] * 4,
    "allow_two": ["RUNNING", "RUNNING", "PENDING", "PENDING"],
    "buffer_one": ["RUNNING", "PENDING", FULL, FULL],
    "buffer_all": ["RUNNING", "PENDING", "PENDING", "PENDING"],
    "cancel_other": [REPLACED, REPLACED, REPLACED, "RUNNING"],
    "terminate_other": [REPLACED, REPLACED, REPLACED, "RUNNING"],
}
"""States of the runs of a job of each policy, in their order, before any may end."""

STUBBORN = "trap '' TERM"
"""The run ends by SIGKILL alone, for which `cancel_other` would wait a minute."""


@dataclass(slots=True)
class Jobs:
    """A job of each policy, and one that skips and is triggered with another word."""

    cluster: DevCluster
    client: SyncClient
    folder: Path
    owner: str = ""
    series: str = field(default_factory=lambda: uuid4().hex[:6])
    runs: dict[str, list[str]] = field(default_factory=dict)

    def make(self) -> None:
        """Create all jobs, each again until the same member owns it."""
        for policy in MEANWHILE:
            while not self.create(policy):
                self.client.jobs.delete(self.name(policy), deadline=END_TIMEOUT)

    def create(self, policy: str) -> bool:
        """Whether it is of the member that owns the first one."""
        self.client.jobs.create(
            self.name(policy),
            on_demand=True,
            overlap=SAID.get(policy, policy),
            kill_after="60s",
            shell=self.probe(policy).shell(
                f"until [ -e {self.gate} ]; do sleep 0.2; done",
                before=STUBBORN if policy == "terminate_other" else "",
            ),
        )
        owner = wait_until(lambda: self.owner_of(policy), WAIT_TIMEOUT, "an owner")
        self.owner = self.owner or owner
        return owner == self.owner

    def owner_of(self, policy: str) -> str | None:
        """The member that owns the job of this policy."""
        ((shard,),) = self.cluster.sql(
            "SELECT shard FROM jobs WHERE name = %s AND deleted_at IS NULL", self.name(policy)
        )
        return next(one.owner for one in self.client.cluster.shards() if one.shard == shard)

    def name(self, policy: str) -> str:
        return f"overlap-{policy.replace('_', '-')}-{self.series}"

    def probe(self, policy: str) -> DatabaseProbe:
        return DatabaseProbe(self.folder / policy)

    @property
    def gate(self) -> Path:
        return self.folder / "gate"

    def trigger(self, policy: str, **how: str) -> None:
        run = self.client.jobs.trigger(self.name(policy), deadline=END_TIMEOUT, **how)
        self.runs.setdefault(policy, []).append(run.run_id)

    def of(self, policy: str) -> list[Run]:
        return [self.client.runs.get(run_id) for run_id in self.runs[policy]]

    def states(self) -> dict[str, list[str]]:
        return {policy: [summary(run) for run in self.of(policy)] for policy in self.runs}


def summary(run: Run) -> str:
    return f"{run.state} ({run.reason})" if run.reason and run.ended else str(run.state)


@pytest.fixture
def jobs(fault_cluster: DevCluster, client: SyncClient, tmp_path: Path) -> Iterator[Jobs]:
    made = Jobs(fault_cluster, client, tmp_path)
    made.make()
    yield made
    made.gate.touch()
    for policy in MEANWHILE:
        client.jobs.delete(made.name(policy), deadline=END_TIMEOUT)


@pytest.mark.parametrize("fault", ["quiet_cluster", "owner killed"])
def test_each_overlap_policy_applies_to_runs_that_fire_while_one_is_in_progress(
    fault_cluster: DevCluster,
    client: SyncClient,
    jobs: Jobs,
    figure: Callable[[str], None],
    fault: str,
) -> None:
    for policy in MEANWHILE:
        jobs.trigger(policy)
    wait_until(
        lambda: all(jobs.probe(policy).starts() for policy in MEANWHILE),
        END_TIMEOUT,
        "the first run of each job",
    )
    for policy in MEANWHILE:
        jobs.trigger(policy)
    if fault == "owner killed":
        assert {jobs.owner_of(policy) for policy in MEANWHILE} == {jobs.owner}
        fault_cluster.kill(jobs.owner)
    began = time.time()
    for _ in range(ASKED_FOR - 2):
        for policy in MEANWHILE:
            jobs.trigger(policy)
    wait_until(
        lambda: jobs.states() == MEANWHILE, END_TIMEOUT, "all to be as they should", every=0.5
    )
    figure(f"overlap, {fault}: all runs were as they should be after {time.time() - began:.2f} s")

    why = client.runs.why(jobs.runs["buffer_one"][1])
    assert f"run {jobs.runs['buffer_one'][0]} of its job is RUNNING" in why.answer
    assert "BUFFER_FULL" in client.runs.why(jobs.runs["buffer_one"][2]).answer
    assert "BY_OVERLAP" in client.runs.why(jobs.runs["cancel_other"][0]).answer

    jobs.trigger("skip", overlap="cancel_other")
    wait_until(
        lambda: [summary(run) for run in jobs.of("skip")][::4] == [REPLACED, "RUNNING"],
        END_TIMEOUT,
        "a trigger's own word to replace the run of a job that skips",
    )
    jobs.gate.touch()
    wait_until(
        lambda: all(run.ended for policy in MEANWHILE for run in jobs.of(policy)),
        END_TIMEOUT,
        "the end of them all",
        every=0.5,
    )
    for policy in MEANWHILE:
        assert_each_ran_once_in_order(jobs, policy)


def assert_each_ran_once_in_order(jobs: Jobs, policy: str) -> None:
    """Check that runs were dispatched in the order of their triggers, and as many at once as the
    policy allows: several start at different workers, milliseconds apart in either order.
    """
    runs = jobs.of(policy)
    assert {run.state for run in runs} <= {"SUCCEEDED", "SKIPPED", "CANCELLED"}, policy
    ran = sorted((run for run in runs if run.started_at), key=lambda run: run.started_at)
    assert jobs.probe(policy).repeated() == []
    assert {run.run_id for run in ran} == {s.run_id for s in jobs.probe(policy).starts()}
    started = {run.run_id for run in ran}
    asked = [one for one in jobs.runs[policy] if one in started]
    assert [run.run_id for run in sorted(ran, key=lambda run: run.fencing_token)] == asked, policy
    for number, run in enumerate(ran):
        slack = timedelta(seconds=CLOCKS)
        beside = [one for one in ran[:number] if one.finished_at > run.started_at + slack]
        assert len(beside) < AT_ONCE.get(policy, 1), (policy, run, beside)
    if policy not in AT_ONCE:
        assert [run.run_id for run in ran] == asked, policy
