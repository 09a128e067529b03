"""A coroutine that blocks its event loop for longer than its worker's lease, beside good runs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from schedclient import SyncClient
from support.cluster import DevCluster, dev_cluster, importing
from support.wait import WAIT_TIMEOUT, wait_until

LEASE = 4
"""Seconds that the lease of the worker lives."""
BLOCKED_FOR = 12.0
"""Seconds; three leases."""

MODULE = f"""
import asyncio, time
from schedclient import handler

@handler
async def blocks(payload, ctx):
    time.sleep({BLOCKED_FOR})
    return "after all"

@handler
async def good(payload, ctx):
    for _ in range(10):
        await asyncio.sleep(0.1)
    return "good"

@handler
def good_thread(payload, ctx):
    time.sleep(1)
    return "good"

@handler(mode="process")
def good_process(payload, ctx):
    time.sleep(1)
    return "good"
"""


@pytest.fixture(scope="module")
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DevCluster]:
    packages = tmp_path_factory.mktemp("packages")
    (packages / "blocking_handlers.py").write_text(MODULE)
    overrides = ['workerd.handlers=["blocking_handlers"]', f"schedd.worker_ttl={LEASE}s"]
    options = {"members": 2, "workers": 1, "slots": 16, "overrides": overrides}
    with dev_cluster(request.session, env=importing(packages), **options) as made:
        yield made


def test_nine_good_runs_beside_a_blocking_handler_continue_and_the_handler_is_named(
    cluster: DevCluster,
) -> None:
    with SyncClient(cluster.endpoints) as client:
        blocking = client.submit(python={"handler": "blocks"}, retry={"max_attempts": 1})
        wait_until(lambda: client.runs.get(blocking.run_id).started_at, WAIT_TIMEOUT, "its start")
        nine = [
            *(client.submit(python={"handler": "good"}) for _ in range(3)),
            *(client.submit(python={"handler": "good_thread"}) for _ in range(2)),
            *(client.submit(python={"handler": "good_process"}) for _ in range(2)),
            *(client.submit(shell={"script": "sleep 1"}) for _ in range(2)),
        ]
        ended = [client.runs.wait(run, timeout=WAIT_TIMEOUT) for run in nine]
        assert client.runs.get(blocking.run_id).state == "RUNNING"
        for run in ended:
            assert (run.state, run.attempt, run.assignments) == ("SUCCEEDED", 1, 1)
            assert run.losses == 0

        def named() -> str:
            answer = cluster.schedctl("run", "why", blocking.run_id).stdout
            return answer if "blocks" in answer else ""

        why = wait_until(named, WAIT_TIMEOUT, "the handler's name in `run why`")
        assert "Does the run's handler block the event loop?" in why
        assert re.search(r"blocking_handlers\.py:\d+ in blocks", why)
        doctor = cluster.schedctl("cluster", "doctor").stdout
        assert f"handler 'blocks' of run {blocking.run_id} has blocked an event loop" in doctor
        log = cluster.log("w1")
        assert "handler blocks its event loop" in log
        assert "handler=blocks" in log
        assert blocking.run_id in log
        print(why)
        answer = cluster.get("w1", "/metrics")
        assert answer is not None
        series = answer.body.decode()
        assert 'workerd_handler_blocks_total{handler="blocks"} 1.0' in series
        assert re.search(r'workerd_handler_blocked_seconds\{handler="blocks"\} [1-9]', series)

        last = client.runs.wait(blocking, timeout=BLOCKED_FOR + WAIT_TIMEOUT)
        assert (last.state, last.attempt, last.assignments) == ("SUCCEEDED", 1, 1)
        assert last.losses == 0
        assert not re.search(r"incarnation .* lost", cluster.log("w1"))


def test_the_timeout_of_a_blocking_handler_is_enforced_while_it_blocks(
    cluster: DevCluster,
) -> None:
    with SyncClient(cluster.endpoints) as client:
        run = client.submit(
            python={"handler": "blocks"},
            timeout="3s", kill_after="0.5s", retry={"max_attempts": 1},
        )  # fmt: skip
        ended = client.runs.wait(run, timeout=WAIT_TIMEOUT)
        assert (ended.state, ended.reason) == ("FAILED", "TIMEOUT")
        assert re.search(r"blocked its event loop for [\d.]+ s at .* in blocks", ended.error or "")
        assert ended.started_at
        assert ended.finished_at
        assert (ended.finished_at - ended.started_at).total_seconds() < BLOCKED_FOR / 2
