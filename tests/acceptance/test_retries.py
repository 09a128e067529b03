"""Retries of real programs: which failures are tried again, and when."""

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

    def ended() -> Run | None:
        run = calm_client.runs.get(submitted.run_id)
        return run if run.ended else None

    run = wait_until(ended, PATIENCE, "the run's end")
    assert (run.state, run.attempt) == ("FAILED", attempts)
    assert [one.attempt for one in calm_client.runs.attempts(run.run_id)] == [
        *range(1, attempts + 1)
    ]
    dead = [one.run.run_id for one in calm_client.dead_letters.list()]
    assert run.run_id in dead
