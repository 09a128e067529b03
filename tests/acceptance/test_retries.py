"""Retries of real programs: which failures are tried again, and by when all of it is over."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from schedclient import Attempt, Run, SyncClient
from schedd.core.cluster.partition import shard_of
from schedd.core.ids import Id, JobId, RunId
from schedd.core.jobs.definition import RetryPolicy
from schedd.core.runs.retry import wait
from support.cluster import DevCluster
from support.owners import owner_of
from support.probe import DatabaseProbe
from support.wait import WAIT_TIMEOUT, wait_until

ONCE_MORE = {"max_attempts": 2, "backoff": "0.1s"}


@pytest.mark.parametrize(
    ("said", "program", "attempts"),
    [
        ({"retry_on": ["64-78"]}, "exit 75", 2),
        ({"retry_on": ["64-78"]}, "exit 3", 1),
        ({"fail_on": ["3", "SIGKILL"]}, "exit 3", 1),
        ({"fail_on": ["3", "SIGKILL"]}, "kill -9 $$", 1),
        ({"fail_on": ["3", "SIGKILL"]}, "kill -15 $$", 2),
        ({"retry_on": ["TIMEOUT"]}, "sleep 60", 2),
    ],
)
def test_a_failure_is_retried_by_the_retry_policy_of_the_job(
    quiet_client: SyncClient, said: dict[str, list[str]], program: str, attempts: int
) -> None:
    submitted = quiet_client.submit(
        shell={"argv": ["/bin/sh", "-c", program]}, retry={**ONCE_MORE, **said}, timeout="1s"
    )
    run = ended_run(quiet_client, submitted.run_id)
    assert (run.state, run.attempt) == ("FAILED", attempts)
    assert [one.attempt for one in quiet_client.runs.attempts(run.run_id)] == [
        *range(1, attempts + 1)
    ]
    dead = [one.run.run_id for one in quiet_client.dead_letters.list()]
    assert run.run_id in dead


def ended_run(client: SyncClient, run_id: str) -> Run:
    def ended() -> Run | None:
        run = client.runs.get(run_id)
        return run if run.ended else None

    return wait_until(ended, WAIT_TIMEOUT, "the run's end")


def test_a_run_that_no_worker_accepts_in_time_is_missed(quiet_client: SyncClient) -> None:
    submitted = quiet_client.submit(
        shell={"argv": ["true"]}, require={"gpu": "a100"}, start_deadline="2s"
    )
    why = quiet_client.runs.why(submitted.run_id)
    assert "runs shell jobs and has gpu=a100" in why.answer
    run = ended_run(quiet_client, submitted.run_id)
    assert (run.state, run.reason, run.assignments) == ("MISSED", "START_DEADLINE", 0)
    assert run.finished_at is not None
    assert run.due_at is not None
    assert 2 <= (run.finished_at - run.due_at).total_seconds() < 5
    assert "longer for a worker" in quiet_client.runs.why(run.run_id).answer


@pytest.mark.parametrize(
    ("program", "attempts"), [("sleep 60", {1}), ("exit 1", set(range(3, 12)))]
)
def test_a_run_ends_when_its_time_for_all_attempts_has_passed(
    quiet_client: SyncClient, program: str, attempts: set[int]
) -> None:
    submitted = quiet_client.submit(
        shell={"argv": ["/bin/sh", "-c", program]},
        retry={"max_attempts": 100, "backoff": "0.2s", "factor": 1.5},
        run_timeout="3s",
    )
    run = ended_run(quiet_client, submitted.run_id)
    assert run.state == "FAILED"
    assert run.attempt in attempts
    assert run.finished_at is not None
    assert run.due_at is not None
    assert (run.finished_at - run.due_at).total_seconds() < 5
    if program == "sleep 60":
        assert run.reason == "RUN_TIMEOUT"


# -- Back-off is a row --

POLICY = RetryPolicy(
    max_attempts=4,
    backoff=timedelta(seconds=4),
    factor=1.2,
    maximum=timedelta(minutes=1),
    jitter=0.25,
)
SECOND = timedelta(seconds=1)


def test_each_retry_starts_at_the_time_of_the_formula_although_its_owner_is_killed_each_time(
    fault_cluster: DevCluster, client: SyncClient, tmp_path: Path
) -> None:
    """`max_attempts: 4` means four. `retry_at` is the end of the attempt and the formula's wait, to
    the millisecond; the next attempt starts within a second of that.
    """
    probe = DatabaseProbe(tmp_path / "starts")
    retry = {"max_attempts": 4, "backoff": "4s", "factor": 1.2, "max": "1m", "jitter": 0.25}
    client.jobs.create(name="failing", on_demand=True, shell=probe.shell("exit 1"), retry=retry)
    try:
        run = client.jobs.trigger("failing")
        shard = shard_of(JobId(Id.parse(client.jobs.get("failing").job_id)))
        backoffs = []
        with ThreadPoolExecutor(1) as beside:  # on a busy machine that takes longer than a wait
            for attempt in (1, 2, 3):
                backoffs.append(backing_off(client, run.run_id, attempt))
                fault_cluster.kill(owner_of(client, shard))
                beside.submit(fault_cluster.up)
        dead = ended_run(client, run.run_id)
        fault_cluster.up()
        assert (dead.state, dead.attempt, len(probe.starts())) == ("FAILED", 4, 4)
        tried = client.runs.attempts(run.run_id)
        assert [one.attempt for one in tried] == [1, 2, 3, 4]
        for number, waiting in enumerate(backoffs, 1):
            assert_starts_at(run, number, waiting, tried[number - 1], tried[number])
    finally:
        client.jobs.delete("failing")


def backing_off(client: SyncClient, run_id: str, attempt: int) -> Run:
    """The run as it waits after this attempt."""

    def waits() -> Run | None:
        run = client.runs.get(run_id)
        return run if (run.state, run.attempt) == ("RETRYING", attempt) else None

    return wait_until(waits, 2 * WAIT_TIMEOUT, f"attempt {attempt} to have failed")


def assert_starts_at(run: Run, number: int, waiting: Run, before: Attempt, after: Attempt) -> None:
    assert before.finished_at is not None
    assert after.started_at is not None
    assert waiting.retry_at is not None
    counted_from = waiting.retry_at - wait(POLICY, RunId(Id.parse(run.run_id)), number)
    assert abs(counted_from - before.finished_at) <= SECOND / 1000
    assert timedelta(0) <= after.started_at - waiting.retry_at < SECOND
