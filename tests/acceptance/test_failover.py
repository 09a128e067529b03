"""A leader or worker is killed, or a worker sleeps too long: runs continue, and none runs twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from acceptance.conftest import TTL, pids
from schedclient import NotFound, SyncClient
from schedctl.dev.servers.processes import find
from support.cluster import DevCluster
from support.each_second_jobs import BY_POLICY, start_ticking
from support.probe import DatabaseProbe, Start
from support.wait import WAIT_TIMEOUT, wait_until

FAILOVER = TTL + 2.0
"""Seconds within which firing continues after a leader was killed."""
RESCUED = TTL + 3.0
"""Seconds within which a lost worker's run is dispatched again."""
NOTHING_LEFT = 2.0
"""Seconds after which nothing of a killed worker's jobs runs any more."""


# ── kill -9 of the leader ────────────────────────────────────────────────────────────────────────


def test_firing_continues_when_the_leader_is_killed_and_each_second_is_accounted_for_once(
    fault_cluster: DevCluster, client: SyncClient, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    leader = wait_until(fault_cluster.leader, WAIT_TIMEOUT, "a leader")
    ticking = start_ticking(fault_cluster, client, tmp_path)
    work = DatabaseProbe(tmp_path / "work")
    long = [client.submit(name="long", shell=work.shell("sleep 5")) for _ in range(6)]
    wait_until(lambda: len(work.starts()) == len(long), WAIT_TIMEOUT, "long jobs to start")
    fault_cluster.kill(leader)
    killed = time.time()
    gaps = {job: ticking.first_after(job, killed, FAILOVER + 10) for job in ticking.probes}
    ticking.until(killed + FAILOVER + 5, 20)
    assert fault_cluster.leader() not in (None, leader)

    rows = ticking.stop()
    assert max(gaps.values()) <= FAILOVER, gaps
    states = {row.state for ledger in rows.values() for row in ledger}
    assert states <= BY_POLICY, "the missed seconds were caught up by policy"
    for run in long:
        done = client.runs.wait(run, timeout=15)
        assert (done.state, done.assignments) == ("SUCCEEDED", 1), "running work is unaffected"
    assert work.repeated() == []
    mine = [gap for job, gap in gaps.items() if ticking.owners[job] == leader]
    figure(f"leader killed: the next start of jobs that it owned came after {max(mine):.2f} s")


# ── kill -9 of a worker ──────────────────────────────────────────────────────────────────────────


def test_a_killed_workers_run_starts_elsewhere_with_a_greater_token_and_leaves_no_process(
    fault_cluster: DevCluster, client: SyncClient, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    probe = DatabaseProbe(tmp_path / "starts")
    # Its first try is long, and has children: one of its session, one that left it.
    first = "sleep 20 & setsid sleep 20 & sleep 20; wait"
    run = client.submit(
        name="long", shell=probe.shell(f'[ "$(wc -l <"$PROBE")" -gt 1 ] || {{ {first}; }}')
    )
    before = wait_until(lambda: probe.starts(run.run_id), WAIT_TIMEOUT, "its start")[0]
    marker = f"SCHEDD_FENCING_TOKEN={before.token}"
    wait_until(lambda: len(processes_with(marker)) >= 4, WAIT_TIMEOUT, "its children")

    fault_cluster.kill(before.worker)
    killed = time.time()
    wait_until(
        lambda: not processes_with(marker), NOTHING_LEFT, "the end of the killed worker's job"
    )
    figure(f"worker killed: the last process of its job ended within {time.time() - killed:.2f} s")
    assert find(before.pid) is None

    done = client.runs.wait(run, timeout=RESCUED + 15)
    assert done.succeeded
    (_, after) = probe.starts(run.run_id)
    figure(f"worker killed: its run started elsewhere after {after.at - killed:.2f} s")
    assert after.at - killed <= RESCUED
    assert after.worker != before.worker
    assert after.token > before.token
    assert done.fencing_token == after.token
    assert (done.worker, done.attempt, done.assignments) == (after.worker, 1, 2)
    lost, accepted = client.runs.attempts(run.run_id)
    assert (lost.fencing_token, lost.reason) == (before.token, "WORKER_LOST")
    assert (accepted.fencing_token, accepted.state) == (after.token, "SUCCEEDED")


def processes_with(marker: str) -> list[int]:
    """The living processes that have this variable in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and find(int(entry.name)) is not None:
            try:
                environ = (entry / "environ").read_bytes()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if marker.encode() in environ.split(b"\0"):
                found.append(int(entry.name))
    return found


# ── SIGSTOP of a worker past its lease ───────────────────────────────────────────────────────────


def test_a_worker_stopped_past_its_lease_has_its_late_result_refused_as_stale(
    fault_cluster: DevCluster, client: SyncClient, tmp_path: Path
) -> None:
    daemons = pids(fault_cluster)
    probe = DatabaseProbe(tmp_path / "starts")
    gate = tmp_path / "gate"
    script = f"{wait_for_file(gate)}; echo done by $SCHEDD_WORKER"
    run = client.submit(name="stalled", shell=probe.shell(script))
    before = stopped_at_work(fault_cluster, probe, gate)

    done = client.runs.wait(run, timeout=RESCUED + 15)
    assert done.succeeded
    assert done.worker != before.worker
    assert done.fencing_token > before.token
    assert list(client.audit.list(run_id=run.run_id, action="result")) == []

    fault_cluster.resume(before.worker)
    assert_refused_as_stale(fault_cluster, client, before)
    assert client.runs.get(run.run_id) == done, "the refused result changed nothing"
    assert [start.token for start in probe.starts(run.run_id)] == [before.token, done.fencing_token]
    wait_until(lambda: is_live(client, before.worker), WAIT_TIMEOUT, "it to be served again")
    again = client.submit(name="again", shell=probe.shell())
    assert client.runs.wait(again, timeout=10).succeeded
    assert pids(fault_cluster) == daemons, "it returned without a restart"


def test_a_late_result_is_refused_by_its_token_alone_while_the_next_attempt_runs(
    fault_cluster: DevCluster, client: SyncClient, tmp_path: Path
) -> None:
    probe = DatabaseProbe(tmp_path / "starts")
    gate = tmp_path / "gate"
    script = (
        f'if [ "$(wc -l <"$PROBE")" = 1 ]; then {wait_for_file(gate)}; else sleep 60; fi; exit 7'
    )
    run = client.submit(name="overtaken", shell=probe.shell(script))
    before = stopped_at_work(fault_cluster, probe, gate)
    after = wait_until(lambda: probe.starts()[1:], WAIT_TIMEOUT, "its next start")[0]
    wait_until(lambda: find(before.pid) is None, WAIT_TIMEOUT, "the end of the first attempt")

    fault_cluster.resume(before.worker)
    assert_refused_as_stale(fault_cluster, client, before)
    running = client.runs.get(run.run_id)
    assert (running.state, running.fencing_token, running.exit_code) == (
        "RUNNING",
        after.token,
        None,
    )
    client.runs.cancel(run.run_id)
    ended = client.runs.wait(run, timeout=15)
    assert (ended.state, ended.fencing_token) == ("CANCELLED", after.token)
    assert find(after.pid) is None


def wait_for_file(gate: Path) -> str:
    return f"until [ -e {gate} ]; do sleep 0.2; done"


def stopped_at_work(cluster: DevCluster, probe: DatabaseProbe, gate: Path) -> Start:
    """Stop the worker on which the one run of the probe has started, and let the run end."""
    start = wait_until(probe.starts, WAIT_TIMEOUT, "its start")[0]
    cluster.pause(start.worker)
    gate.touch()
    return start


def is_live(client: SyncClient, worker: str) -> bool:
    try:
        return client.workers.get(worker).state == "LIVE"
    except NotFound:  # its new incarnation isn't registered yet
        return False


def assert_refused_as_stale(cluster: DevCluster, client: SyncClient, late: Start) -> None:
    """The audit says so, of this token and worker, once, with the reason code."""
    wait_until(
        lambda: list(client.audit.list(run_id=late.run_id, action="result")),
        WAIT_TIMEOUT,
        "the late result to be refused",
    )
    (entry,) = cluster.json("audit", "list", "--run", late.run_id, "--action", "result")
    assert (entry["action"], entry["outcome"], entry["reason"]) == ("result", "refused", "STALE")
    assert (entry["fencingToken"], entry["worker"]) == (str(late.token), late.worker)
