"""The time from a submit to its result, on an idle cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import pytest

from schedclient import SyncClient
from support.cluster import DevCluster

pytestmark = pytest.mark.alone

TRIES = 15
SOON = 0.5
"""Seconds from submit to the result in hand; well under a second."""


def test_a_submitted_command_has_its_result_in_well_under_a_second(
    quiet_client: SyncClient, figure: Callable[[str], None]
) -> None:
    took = []
    for number in range(TRIES):
        began = time.perf_counter()
        run = quiet_client.submit(shell={"argv": ["sh", "-c", f"echo hi {number}"]})
        done = quiet_client.runs.wait(run, timeout=10)
        written = b"".join(piece.data for piece in quiet_client.runs.logs(run.run_id))
        took.append(time.perf_counter() - began)
        assert done.succeeded
        assert written == f"hi {number}\n".encode()
    figure(
        f"submit to its output in hand, by the SDK, {TRIES} times:"
        f" {median(took) * 1000:.0f} ms (median), {max(took) * 1000:.0f} ms (max)"
    )
    assert median(took) < SOON


def test_schedctl_submit_wait_prints_the_result_in_well_under_a_second(
    quiet_cluster: DevCluster,
    figure: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quiet_cluster, "forked", False)  # imports are measured, too

    def version() -> None:
        assert quiet_cluster.schedctl("version").returncode == 0

    def submit() -> None:
        done = quiet_cluster.schedctl("submit", "--wait", "--", "sh", "-c", "echo hi")
        assert (done.returncode, done.stdout) == (0, "hi\n"), done.stderr

    # In turn, so that a busy moment of the machine meets both; the best tells what it costs.
    pairs = [(timed(version), timed(submit)) for _ in range(3)]
    started, took = (min(times) for times in zip(*pairs, strict=True))
    figure(
        f"schedctl submit --wait as a process: {took * 1000:.0f} ms at best, of which"
        f" {started * 1000:.0f} ms are Python's start (schedctl version)"
    )
    assert took < 1.0
    assert took - started < SOON


def timed(act: Callable[[], None]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began
