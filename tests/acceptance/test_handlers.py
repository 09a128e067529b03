"""Handlers on the loop, in threads and in processes of their own, and an executor of others."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schedclient import Run, SyncClient
from support import plugin
from support.cluster import DevCluster, dev_cluster, importing
from support.processes import sleeping
from support.wait import WAIT_TIMEOUT, wait_until

MODULE = """
import asyncio, os, signal, subprocess, time
from dataclasses import dataclass
from schedclient import Context, DontRetry, RetryAfter, handler

@dataclass
class Order:
    customer: str
    cents: int

@handler
async def on_the_loop(payload: Order, ctx: Context):
    return {"cents": payload.cents, "pid": os.getpid()}

@handler
def in_a_thread(payload: Order, ctx: Context):
    return {"cents": payload.cents, "pid": os.getpid()}

@handler(mode="process")
def in_a_process(payload: Order, ctx: Context):
    print("billed", payload.customer)
    return {"cents": payload.cents, "pid": os.getpid()}

@handler
def waits(payload, ctx):
    while not os.path.exists(payload) and not ctx.cancel.wait(0.05):
        pass
    return "went on"

@handler(mode="process")
def crashes_once(payload, ctx):
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    return ctx.attempt

@handler(mode="process")
def crashes(payload, ctx):
    os._exit(3)

@handler(mode="process")
def hopeless(payload, ctx):
    raise DontRetry("no such customer")

@handler(mode="process")
def busy(payload, ctx):
    if ctx.attempt == 1:
        raise RetryAfter(1.5, "busy")

@handler(mode="process")
def stubborn(payload, ctx):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            subprocess.Popen(["sleep", payload], env={})
            time.sleep(600)
        os._exit(0)
    subprocess.run(["sleep", payload])

@handler
def counts_in_a_thread(payload, ctx):
    ctx.progress(30, 120, "pages")
    open(payload, "w").close()
    ctx.cancel.wait(60)

@handler
async def counts_on_the_loop(payload, ctx):
    ctx.progress(30, 120, "pages")
    open(payload, "w").close()
    await asyncio.sleep(60)

@handler(mode="process")
def counts_in_a_process(payload, ctx):
    ctx.progress(30, 120, "pages")
    open(payload, "w").close()
    time.sleep(60)

@handler(mode="process")
def falls_silent(payload, ctx):
    ctx.heartbeat()
    time.sleep(60)
"""

ORDER = {"customer": "c1", "cents": 1250}


@pytest.fixture(scope="module")
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DevCluster]:
    packages = tmp_path_factory.mktemp("packages")
    (packages / "shop_handlers.py").write_text(MODULE)
    plugin.install(packages)
    overrides = ['workerd.handlers=["shop_handlers"]']
    options = {"members": 2, "workers": 1, "slots": 8, "overrides": overrides}
    with dev_cluster(request.session, env=importing(packages), **options) as made:
        yield made


@pytest.fixture(scope="module")
def client(cluster: DevCluster) -> Iterator[SyncClient]:
    with SyncClient(cluster.endpoints) as made:
        yield made


def started(client: SyncClient, handler: str, payload: object = None, **more: Any) -> Run:
    """Running, at its worker."""
    run = client.submit(python={"handler": handler}, payload=payload, **more)
    wait_until(lambda: client.runs.get(run.run_id).started_at, WAIT_TIMEOUT, "its start")
    return run


def ended(client: SyncClient, handler: str, payload: object = None, **more: Any) -> Run:
    run = client.submit(python={"handler": handler}, payload=payload, **more)
    return client.runs.wait(run, timeout=WAIT_TIMEOUT)


def test_each_kind_of_handler_runs_with_the_type_of_its_annotation(
    cluster: DevCluster, client: SyncClient
) -> None:
    worker = cluster.entry("w1")["pid"]
    for handler, own in (("on_the_loop", 0), ("in_a_thread", 0), ("in_a_process", 1)):
        command = ["submit", "--wait", "--python", handler, "--payload", json.dumps(ORDER)]
        run = cluster.json(*command)
        said = client.runs.result(run["runId"]).value
        assert said["cents"] == 1250
        assert (said["pid"] != worker) == bool(own)
        unfit = ended(client, handler, {"customer": "c1", "cents": "a lot"})
        assert (unfit.state, unfit.reason, unfit.attempt) == ("FAILED", "DONT_RETRY", 1)
        assert "at `$.cents`" in (unfit.error or "")
    logs = cluster.schedctl("run", "logs", run["runId"])
    assert logs.stdout == "billed c1\n"


def test_a_handler_that_crashes_its_process_costs_one_attempt_and_nothing_else(
    client: SyncClient, cluster: DevCluster, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    worker = cluster.entry("w1")["pid"]
    beside = started(client, "waits", str(gate))
    quick = {"max_attempts": 3, "backoff": "0.1s"}
    once = ended(client, "crashes_once", retry=quick)
    assert (once.state, once.attempt, once.assignments) == ("SUCCEEDED", 2, 2)
    first, _ = client.runs.attempts(once.run_id)
    assert (first.reason, first.exit_code) == ("SIGNAL", 139)
    assert (
        first.error == "the handler's process ended before the handler returned: ended by SIGSEGV"
    )
    always = ended(client, "crashes", retry=quick)
    assert (always.state, always.reason, always.exit_code) == ("FAILED", "EXIT_CODE", 3)
    assert (always.attempt, always.assignments) == (3, 3)
    gate.touch()
    other = client.runs.wait(beside, timeout=WAIT_TIMEOUT)
    assert (other.state, other.attempt, other.assignments) == ("SUCCEEDED", 1, 1)
    assert cluster.entry("w1")["pid"] == worker
    assert cluster.process("w1").alive()


def test_the_exception_of_a_process_decides_about_the_next_attempt(client: SyncClient) -> None:
    hopeless = ended(client, "hopeless")
    assert (hopeless.state, hopeless.reason, hopeless.attempt) == ("FAILED", "DONT_RETRY", 1)
    assert hopeless.error == "DontRetry: no such customer"
    busy = ended(client, "busy", retry={"max_attempts": 2, "backoff": "0.1s"})
    assert (busy.state, busy.attempt) == ("SUCCEEDED", 2)
    first, second = client.runs.attempts(busy.run_id)
    assert first.finished_at
    assert second.started_at
    assert (second.started_at - first.finished_at).total_seconds() >= 1.4


def test_a_process_that_ignores_its_end_and_forked_twice_leaves_nothing_when_it_is_cancelled(
    client: SyncClient, cluster: DevCluster
) -> None:
    seconds = f"{100_000 + time.time_ns() % 100_000}"
    run = started(client, "stubborn", seconds, kill_after="0.5s")
    wait_until(lambda: len(sleeping(seconds)) == 2, WAIT_TIMEOUT, "its sleepers")
    assert cluster.schedctl("run", "cancel", run.run_id).returncode == 0
    assert client.runs.wait(run, timeout=WAIT_TIMEOUT).state == "CANCELLED"
    wait_until(lambda: not sleeping(seconds), 1.0, "the end of them all")


@pytest.mark.parametrize("where", ["in_a_thread", "on_the_loop", "in_a_process"])
def test_each_member_shows_progress_while_a_handler_runs(
    where: str, client: SyncClient, cluster: DevCluster, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    run = started(client, f"counts_{where}", str(said))
    try:
        wait_until(said.exists, WAIT_TIMEOUT, "its word")
        for member in cluster.record["members"]:
            with SyncClient([member["grpc"]]) as one:
                wait_until(lambda one=one: one.runs.get(run.run_id).progress, 1.0, "its progress")
                progress = one.runs.get(run.run_id).progress
            assert progress is not None
            assert (progress.fraction, progress.done, progress.total) == (0.25, 30, 120)
            answer = cluster.get(member["name"], f"/api/v1/runs/{run.run_id}")
            assert answer
            assert json.loads(answer.body)["progress"]["note"] == "pages"
        shown = cluster.schedctl("run", "get", run.run_id).stdout
        assert "30 of 120 (25%), pages" in shown
        (first,) = next([one] for one in client.runs.watch(run.run_id))
        assert first.progress
    finally:
        client.runs.cancel(run.run_id)
    last = client.runs.wait(run, timeout=WAIT_TIMEOUT)
    assert (last.state, last.progress) == ("CANCELLED", None)


def test_a_process_that_falls_silent_is_ended(client: SyncClient) -> None:
    run = ended(
        client, "falls_silent", heartbeat_timeout="2s", kill_after="0.5s", retry={"max_attempts": 1}
    )
    assert (run.state, run.reason) == ("FAILED", "HEARTBEAT_TIMEOUT")
    assert run.finished_at
    assert run.started_at
    assert (run.finished_at - run.started_at).total_seconds() < 20


def test_a_plugin_executor_runs_a_submitted_job(
    cluster: DevCluster, client: SyncClient, tmp_path: Path
) -> None:
    shop = tmp_path / "shop.db"
    connection = sqlite3.connect(shop)
    with connection:
        connection.execute("CREATE TABLE carts (touched TEXT)")
        connection.executemany("INSERT INTO carts VALUES (?)", [["2025"], ["2026"]])
    connection.close()
    config = {"database": str(shop), "statement": "DELETE FROM carts WHERE touched < :before"}
    command = ["--plugin", "sqlite", "--plugin-config", json.dumps(config)]
    done = cluster.schedctl("submit", "--wait", *command, "--payload", '{"before": "2026"}')
    assert done.returncode == 0, done.stderr
    manifest = {
        "name": "count-carts",
        "on_demand": True,
        "plugin": {
            "executor": "sqlite",
            "config": {"database": str(shop), "statement": "SELECT count(*) AS n FROM carts"},
        },
    }
    file = tmp_path / "job.json"
    file.write_text(json.dumps(manifest))
    assert cluster.schedctl("apply", "-f", str(file)).returncode == 0
    run = client.runs.wait(client.jobs.trigger("count-carts"), timeout=WAIT_TIMEOUT)
    assert client.runs.result(run.run_id).value == {"rows": [{"n": 1}], "changed": 0}
    wrong = client.submit(plugin={"executor": "sqlite", "config": {"database": str(shop)}})
    refused = client.runs.wait(wrong, timeout=WAIT_TIMEOUT)
    assert (refused.state, refused.reason) == ("FAILED", "DONT_RETRY")
    assert "missing required field `statement`" in (refused.error or "")


def test_a_run_waits_for_a_worker_that_has_its_executor(
    cluster: DevCluster, client: SyncClient
) -> None:
    run = client.submit(plugin={"executor": "teleport", "config": {"to": "moon"}})
    try:
        why = cluster.schedctl("run", "why", run.run_id).stdout
        assert "no connected worker runs plugin/teleport" in why
        assert client.runs.get(run.run_id).state == "PENDING"
    finally:
        client.runs.cancel(run.run_id)


def test_a_waiting_caller_sees_that_each_worker_refused_and_any_member_says_why(
    cluster: DevCluster, client: SyncClient
) -> None:
    asked = ["--python", "in_a_thread", "--limit-memory", "50MiB", "--idempotency-key", "refused"]
    waited = cluster.schedctl("--timeout", "8s", "submit", *asked, "--wait")
    run = client.submit(
        python={"handler": "in_a_thread", "limits": {"memory_bytes": 50 << 20}},
        idempotency_key="refused",
    )
    try:
        refused = (
            "The run waits: all suitable workers (1) have rejected it: env_from and limits need a"
            " process of their own: register the handler 'in_a_thread' with mode=\"process\""
        )
        [line] = [one for one in waited.stderr.splitlines() if "rejected" in one]
        assert line.startswith(f"run {run.run_id}: {refused}")
        assert waited.returncode == 7
        for member in cluster.endpoints:
            with SyncClient(member) as each:
                why = each.runs.why(run.run_id)
                assert why.refused
                assert why.answer.startswith(refused), member
    finally:
        client.runs.cancel(run.run_id)
