"""Retries of real programs: which failures are tried again, and by when all of it is over."""

from __future__ import annotations

import pytest

from schedclient import Run, SyncClient
from support.wait import PATIENCE, wait_until

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
def test_a_failure_is_tried_again_as_the_job_says(
    calm_client: SyncClient, said: dict[str, list[str]], program: str, attempts: int
) -> None:
    submitted = calm_client.submit(
        shell={"argv": ["/bin/sh", "-c", program]}, retry={**ONCE_MORE, **said}, timeout="1s"
    )
    run = ended_run(calm_client, submitted.run_id)
    assert (run.state, run.attempt) == ("FAILED", attempts)
    assert [one.attempt for one in calm_client.runs.attempts(run.run_id)] == [
        *range(1, attempts + 1)
    ]
    dead = [one.run.run_id for one in calm_client.dead_letters.list()]
    assert run.run_id in dead


def ended_run(client: SyncClient, run_id: str) -> Run:
    def ended() -> Run | None:
        run = client.runs.get(run_id)
        return run if run.ended else None

    return wait_until(ended, PATIENCE, "the run's end")


def test_a_run_that_no_worker_takes_in_time_is_missed(calm_client: SyncClient) -> None:
    submitted = calm_client.submit(
        shell={"argv": ["true"]}, require={"gpu": "a100"}, start_deadline="2s"
    )
    why = calm_client.runs.why(submitted.run_id)
    assert "takes shell jobs and has gpu=a100" in why.answer
    run = ended_run(calm_client, submitted.run_id)
    assert (run.state, run.reason, run.assignments) == ("MISSED", "START_DEADLINE", 0)
    assert run.finished_at is not None
    assert run.due_at is not None
    assert 2 <= (run.finished_at - run.due_at).total_seconds() < 5
    assert "longer for a worker" in calm_client.runs.why(run.run_id).answer


@pytest.mark.parametrize(
    ("program", "attempts"), [("sleep 60", {1}), ("exit 1", set(range(3, 12)))]
)
def test_a_run_ends_when_its_time_for_all_attempts_is_over(
    calm_client: SyncClient, program: str, attempts: set[int]
) -> None:
    submitted = calm_client.submit(
        shell={"argv": ["/bin/sh", "-c", program]},
        retry={"max_attempts": 100, "backoff": "0.2s", "factor": 1.5},
        run_timeout="3s",
    )
    run = ended_run(calm_client, submitted.run_id)
    assert run.state == "FAILED"
    assert run.attempt in attempts
    assert run.finished_at is not None
    assert run.due_at is not None
    assert (run.finished_at - run.due_at).total_seconds() < 5
    if program == "sleep 60":
        assert run.reason == "RUN_TIMEOUT"
