"""Executors of others, and payloads with types, in a real worker."""

from __future__ import annotations

import json
import signal
import sqlite3
from pathlib import Path

import pytest

from schedproto.v1 import common_pb2, job_pb2
from schedproto.v1 import worker_service_pb2 as pb
from support import plugin
from support.fake_member import Stream
from support.wait import WAIT_TIMEOUT
from support.worker_process import WorkerProcess, cluster

BROKEN = """
import threading
from schedclient.executors import Executor

class Broken(Executor):
    async def run(self, config: dict, payload, ctx):
        raise RuntimeError(config["why"])

class Stuck(Broken):
    async def close(self):
        threading.Event().wait()  # the loop itself stands still

class Unmade(Executor):
    pass
"""
HANDLERS = """
from dataclasses import dataclass
from schedclient import handler

@dataclass
class Order:
    customer: str
    cents: int

@handler
def bill(payload: Order, ctx):
    return payload.cents + 1

@handler(mode="process")
def bill_apart(payload: Order, ctx):
    ctx.progress(1, 4, "a quarter")
    ctx.cancel.wait(0.6)
    return payload.cents + 1
"""


def info(folder: Path, name: str, points: str) -> None:
    """A package with these entry points."""
    made = folder / f"{name}-1.0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (made / "entry_points.txt").write_text(f"[schedd.executors]\n{points}\n")


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    folder = tmp_path / "packages"
    folder.mkdir()
    plugin.install(folder)
    (folder / "broken.py").write_text(BROKEN)
    (folder / "typed_tasks.py").write_text(HANDLERS)
    info(folder, "broken", "broken = broken:Broken")
    return folder


async def sqlite(stream: Stream, config: object, payload: str | None = None) -> pb.Result:
    action = job_pb2.PluginAction(
        executor="sqlite", config=common_pb2.Payload(json=json.dumps(config))
    )
    return await stream.result_of(await stream.assign(plugin=action, payload=payload))


async def test_the_plugin_of_the_documentation_runs(tmp_path: Path, packages: Path) -> None:
    shop = tmp_path / "shop.db"
    with sqlite3.connect(shop) as connection:
        connection.execute("CREATE TABLE carts (touched TEXT)")
        connection.executemany("INSERT INTO carts VALUES (?)", [["2025"], ["2026"], ["2027"]])
    connection.close()
    async with cluster(tmp_path, environ={"PYTHONPATH": str(packages)}) as (member, _):
        stream = await member.attached()
        assert {"plugin/sqlite", "plugin/broken", "shell"} <= {*stream.hello.actions}
        delete = "DELETE FROM carts WHERE touched < :before"
        config = {"database": str(shop), "statement": delete}
        result = await sqlite(stream, config, '{"before": "2026"}')
        assert json.loads(result.result.json) == {"rows": [], "changed": 1}, result.error
        config["statement"] = "SELECT count(*) AS n FROM carts"
        result = await sqlite(stream, config)
        assert json.loads(result.result.json) == {"rows": [{"n": 2}], "changed": 0}


async def test_an_invalid_plugin_config_fails_for_good_with_the_reason(
    tmp_path: Path, packages: Path
) -> None:
    async with cluster(tmp_path, environ={"PYTHONPATH": str(packages)}) as (member, _):
        stream = await member.attached()
        for config, said in (
            (
                {"database": "/x"},
                "the config doesn't match its declared type: Object missing required field",
            ),
            ({"database": "x", "statement": "SELECT 1"}, "'x' isn't an absolute path"),
            ({"database": "/nowhere/x", "statement": "SELECT 1"}, "unable to open database"),
        ):
            result = await sqlite(stream, config)
            assert result.reason == common_pb2.REASON_DONT_RETRY
            assert said in result.error


async def test_a_plugin_that_raises_fails_only_its_own_run(tmp_path: Path, packages: Path) -> None:
    async with cluster(tmp_path, environ={"PYTHONPATH": str(packages)}) as (member, worker):
        stream = await member.attached()
        for config, error in (({"why": "oh no"}, "RuntimeError: oh no"), ({}, "KeyError: 'why'")):
            action = job_pb2.PluginAction(
                executor="broken", config=common_pb2.Payload(json=json.dumps(config))
            )
            result = await stream.result_of(await stream.assign(plugin=action))
            assert (result.reason, result.error) == (common_pb2.REASON_EXCEPTION, error)
        key = await stream.assign(plugin=job_pb2.PluginAction(executor="nobody"))
        assert (await stream.refusal_of(key)).why == pb.Refusal.WHY_UNABLE
        result = await stream.result_of(await stream.assign(argv=["true"]))
        assert result.outcome == pb.Result.OUTCOME_SUCCEEDED
        worker.signal(0)  # type: ignore[arg-type]  # raises when it is gone


@pytest.mark.parametrize(
    ("points", "said"),
    [
        (
            "unmade = broken:Unmade",
            "the plug-in 'unmade' (broken:Unmade) can't be loaded: TypeError",
        ),
        (
            "lost = nowhere:Lost",
            "the plug-in 'lost' (nowhere:Lost) can't be loaded: ModuleNotFoundError",
        ),
        (
            "stranger = pathlib:Path",
            "the plug-in 'stranger' (pathlib:Path) can't be loaded: TypeError",
        ),
        ("sqlite = broken:Broken", "two plug-ins have the name 'sqlite'"),
        ("Loud = broken:Broken", "'Loud' isn't valid: rename it, so that it matches"),
    ],
)
async def test_a_plugin_that_cannot_be_loaded_is_an_error_at_start(
    tmp_path: Path, packages: Path, points: str, said: str
) -> None:
    info(packages, "wrong", points)
    worker = WorkerProcess(tmp_path, ["127.0.0.1:1"])
    worker.environ = {"PYTHONPATH": str(packages)}
    worker.start()
    assert await worker.ended() == 2
    assert said in worker.log.read_text()


@pytest.mark.parametrize("handler", ["bill", "bill_apart"])
async def test_a_payload_that_doesnt_fit_its_handler_fails_for_good_by_its_field(
    tmp_path: Path, packages: Path, handler: str
) -> None:
    environ = {"PYTHONPATH": str(packages)}
    async with cluster(tmp_path, environ=environ, handlers="typed_tasks") as (member, _):
        stream = await member.attached()
        action = job_pb2.PythonAction(handler=handler)
        given = '{"customer": "c", "cents": "a"}'
        result = await stream.result_of(await stream.assign(python=action, payload=given))
        assert result.reason == common_pb2.REASON_DONT_RETRY
        assert result.error.endswith("Expected `int`, got `str` - at `$.cents`")
        given = '{"customer": "c", "cents": 4}'
        key = await stream.assign(python=action, payload=given)
        assert (await stream.result_of(key)).result.json == "5"
        if handler == "bill_apart":
            said = [each for each in stream.progress if each.key == key]
            assert [(each.fraction, each.note) for each in said] == [(0.25, "a quarter")]


async def test_the_progress_of_an_attempt_is_sent_again_on_a_new_stream(
    tmp_path: Path, packages: Path
) -> None:
    environ = {"PYTHONPATH": str(packages)}
    (packages / "slow_tasks.py").write_text(
        "from schedclient import handler\n"
        "@handler\n"
        "def slow(payload, ctx):\n"
        "    ctx.progress(0.5)\n"
        "    ctx.cancel.wait(300)\n"
    )
    async with cluster(tmp_path, environ=environ, handlers="slow_tasks") as (member, _):
        stream = await member.attached()
        key = await stream.assign(python=job_pb2.PythonAction(handler="slow"))
        await stream.until(lambda: stream.progress or None, "its progress")
        stream.end()
        again = await member.attached(2)
        await again.until(lambda: again.progress or None, "its progress again", WAIT_TIMEOUT)
        assert [(each.key, each.fraction) for each in again.progress] == [(key, 0.5)]


async def test_a_plugin_that_never_closes_does_not_prevent_the_end_of_the_worker(
    tmp_path: Path, packages: Path
) -> None:
    info(packages, "stuck", "stuck = broken:Stuck")
    async with cluster(tmp_path, environ={"PYTHONPATH": str(packages)}) as (member, worker):
        stream = await member.attached()
        result = await stream.result_of(await stream.assign(argv=["true"]))
        assert result.outcome == pb.Result.OUTCOME_SUCCEEDED
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
        log = worker.log.read_text()
        assert "close plugin/broken timed out after 5 s" in log
