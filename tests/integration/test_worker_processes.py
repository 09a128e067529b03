"""Handlers in processes of their own, in a real worker."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from schedproto.v1 import common_pb2, job_pb2, run_pb2
from schedproto.v1 import worker_service_pb2 as pb
from support.fake_member import FakeMember, Stream
from support.processes import sleeping
from support.shared_workers import SharedWorkers
from support.wait import WAIT_TIMEOUT, wait_until_async
from support.worker_process import WorkerProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODULE = """
import asyncio, ctypes, os, signal, subprocess, sys, time
from schedclient.handlers import Context, DontRetry, RetryAfter, handler

@handler(mode="process")
def described(payload, ctx: Context):
    return {"payload": payload, "pid": os.getpid(), "leads": os.getsid(0) == os.getpid(),
            "run": ctx.run_id, "token": ctx.fencing_token, "attempt": ctx.attempt,
            "seen": os.environ["SCHEDD_RUN_ID"], "stdin": sys.stdin.read()}

@handler("awaited", mode="process")
async def also_coroutines(payload, ctx):
    await asyncio.sleep(0)
    return payload["deep"]

@handler(mode="process")
def raw(payload, ctx):
    return payload[::-1]

@handler(mode="process")
def speaks(payload, ctx):
    print("to the one")
    print("to the other", file=sys.stderr)
    print(os.environ.get("PASSWORD", "no password"))

@handler(mode="process")
def notes(payload, ctx):
    ctx.progress(1, 4, "with " + os.environ["PASSWORD"])
    ctx.cancel.wait(300)

@handler(mode="process")
def broken(payload, ctx):
    raise RuntimeError("oh no: " + os.environ.get("PASSWORD", ""))

@handler(mode="process")
def hopeless(payload, ctx):
    raise DontRetry("bad input")

@handler(mode="process")
def later(payload, ctx):
    raise RetryAfter(90)

@handler(mode="process")
def huge(payload, ctx):
    return "x" * 17_000_000

@handler(mode="process")
def nests(payload, ctx):
    value = []
    for _ in range(payload - 1):
        value = [value]
    return value

@handler(mode="process")
def exits(payload, ctx):
    os._exit(payload)

@handler(mode="process")
def leaves(payload, ctx):
    raise SystemExit(3)

@handler(mode="process")
def leaves_for_good(payload, ctx):
    raise SystemExit(100)

@handler(mode="process")
def segfaults(payload, ctx):
    ctypes.string_at(0)

@handler(mode="process")
def aborts(payload, ctx):
    os.abort()

@handler(mode="process")
def forks_and_returns_twice(payload, ctx):
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    return "parent" if pid else "child"

@handler(mode="process")
def waits(payload, ctx):
    try:
        open(payload + ".begun", "w").close()
        time.sleep(300)
    finally:
        open(payload, "w").write(f"in order, {ctx.cancel.is_set()}")

@handler(mode="process")
async def awaits(payload, ctx):
    try:
        open(payload + ".begun", "w").close()
        await asyncio.sleep(300)
    except asyncio.CancelledError:
        await asyncio.sleep(0.01)
        open(payload, "w").write(f"in order, {ctx.cancel.is_set()}")
        raise

@handler(mode="process")
def stubborn(payload, ctx):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.environ.clear()
            for sleeper in range(3):
                subprocess.Popen(["sleep", payload], env={})
            while True:
                time.sleep(60)
        os._exit(0)
    subprocess.Popen(["sleep", payload])
    while True:
        time.sleep(60)

@handler(mode="process")
def lively(payload, ctx):
    for _ in range(60):
        time.sleep(0.1)
        ctx.heartbeat()
    time.sleep(300)

@handler
def in_thread(payload, ctx):
    ctx.cancel.wait(float(payload))
    return "went on"
"""


class Shop(Protocol):
    """A worker with the handlers of `MODULE`, its member and its stream."""

    def __call__(
        self, **how: str
    ) -> AbstractAsyncContextManager[tuple[FakeMember, WorkerProcess, Stream]]: ...


@pytest.fixture(scope="module")
def shop(workers: SharedWorkers, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    packages = tmp_path_factory.mktemp("packages")
    (packages / "apart_tasks.py").write_text(MODULE)
    environ = {"PYTHONPATH": str(packages)}

    @asynccontextmanager
    async def lent(**how: str) -> AsyncIterator[tuple[FakeMember, WorkerProcess, Stream]]:
        async with workers(environ=environ, handlers="apart_tasks", **how) as (member, worker):
            yield member, worker, await member.attached()

    return lent


async def start(
    stream: Stream, name: str, payload: object = None, **how: float
) -> pb.AssignmentKey:
    given = payload if isinstance(payload, bytes) else json.dumps(payload)
    action = job_pb2.PythonAction(handler=name)
    return await stream.assign(python=action, payload=given, **how)


async def call(stream: Stream, name: str, payload: object = None, **how: float) -> pb.Result:
    return await stream.result_of(await start(stream, name, payload, **how))


def text(result: pb.Result, of: str) -> str:
    wanted = run_pb2.LogPiece.Stream.Value(f"STREAM_{of}")
    return b"".join(piece.data for piece in result.output if piece.stream == wanted).decode()


async def test_a_handler_has_a_process_of_its_own_its_payload_and_its_context(
    shop: Shop,
) -> None:
    async with shop() as (_, worker, stream):
        result = await call(stream, "described", {"name": "Ada"})
        assert result.outcome == pb.Result.OUTCOME_SUCCEEDED, result.error
        said = json.loads(result.result.json)
        assert said.pop("pid") != worker.pid
        assert said == {
            "payload": {"name": "Ada"}, "leads": True, "run": result.key.run_id,
            "token": result.key.fencing_token, "attempt": 1, "seen": result.key.run_id,
            "stdin": "",
        }  # fmt: skip
        assert (await call(stream, "awaited", {"deep": [1]})).result.json == "[1]"
        assert (await call(stream, "raw", b"\x00\xff")).result.raw == b"\xff\x00"


async def test_a_payload_of_the_largest_size_reaches_the_handler(shop: Shop) -> None:
    async with shop() as (_, _, stream):
        result = await call(stream, "awaited", {"deep": 7, "rest": "x" * 260_000})
        assert result.result.json == "7", result.error


async def test_a_result_of_100_levels_is_returned_and_one_of_101_names_the_limit(
    shop: Shop,
) -> None:
    async with shop() as (_, _, stream):
        fits = await call(stream, "nests", 100)
        assert fits.result.json == "[" * 100 + "]" * 100, fits.error
        deep = await call(stream, "nests", 101)
        assert deep.outcome == pb.Result.OUTCOME_FAILED
        assert "at most 100 levels" in deep.error


async def test_output_of_a_handler_process_is_that_of_its_run_with_masked_secrets(
    shop: Shop,
    tmp_path: Path,
) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "shop").write_text("PASSWORD=correct-horse\n")
    config = f'secrets = ["{secrets}"]'
    async with shop(config=config) as (_, _, stream):
        plain = await call(stream, "speaks")
        assert text(plain, "STDOUT") == "to the one\nno password\n"
        assert text(plain, "STDERR") == "to the other\n"
        for name in ("speaks", "broken"):
            action = job_pb2.PythonAction(handler=name, env_from=[str(secrets / "shop")])
            result = await stream.result_of(await stream.assign(python=action, payload="null"))
            assert "correct-horse" not in str(result)
            assert "***" in str(result)


async def test_secrets_in_progress_notes_are_masked(shop: Shop, tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "shop").write_text("PASSWORD=correct-horse\n")
    async with shop(config=f'secrets = ["{secrets}"]') as (_, _, stream):
        action = job_pb2.PythonAction(handler="notes", env_from=[str(secrets / "shop")])
        key = await stream.assign(python=action, payload="null")
        await stream.until(lambda: stream.progress or None, "its progress")
        assert [(each.fraction, each.note) for each in stream.progress] == [(0.25, "with ***")]
        await stream.send(cancels=[pb.Cancel(key=key)])
        assert (await stream.result_of(key)).outcome == pb.Result.OUTCOME_CANCELLED


async def test_an_exception_of_a_process_is_reported_with_class_and_traceback(
    shop: Shop,
) -> None:
    async with shop() as (_, _, stream):
        result = await call(stream, "broken")
        assert result.reason == common_pb2.REASON_EXCEPTION
        assert result.error == "RuntimeError: oh no: "
        assert "apart_tasks.py" in text(result, "STDERR")
        hopeless = await call(stream, "hopeless")
        assert (hopeless.reason, hopeless.error) == (
            common_pb2.REASON_DONT_RETRY,
            "DontRetry: bad input",
        )
        later = await call(stream, "later")
        assert later.reason == common_pb2.REASON_EXCEPTION
        assert later.retry_after.ToTimedelta().total_seconds() == 90
        assert (await call(stream, "huge")).reason == common_pb2.REASON_DONT_RETRY
        leaves = await call(stream, "leaves")
        assert (leaves.reason, leaves.error) == (common_pb2.REASON_EXCEPTION, "SystemExit: 3")
        for_good = await call(stream, "leaves_for_good")
        assert for_good.reason == common_pb2.REASON_DONT_RETRY


async def test_a_process_that_crashes_fails_its_attempt_alone(shop: Shop) -> None:
    async with shop() as (_, worker, stream):
        beside = await start(stream, "in_thread", 300)
        await stream.holds(beside, pb.Holding.STATE_RUNNING)
        for name, payload, reason, code, error in (
            ("exits", 3, common_pb2.REASON_EXIT_CODE, 3, "exit code 3"),
            ("exits", 0, common_pb2.REASON_EXIT_CODE, 0, "exit code 0"),
            ("exits", 100, common_pb2.REASON_DONT_RETRY, 100, "exit code 100"),
            ("segfaults", None, common_pb2.REASON_SIGNAL, 139, "ended by SIGSEGV"),
            ("aborts", None, common_pb2.REASON_SIGNAL, 134, "ended by SIGABRT"),
        ):
            result = await call(stream, name, payload)
            assert result.outcome == pb.Result.OUTCOME_FAILED
            assert (result.reason, result.exit_code) == (reason, code), result.error
            assert (
                result.error == f"the handler's process ended before the handler returned: {error}"
            )
        assert (await call(stream, "awaited", {"deep": 1})).result.json == "1"
        assert not any(each.key == beside for each in stream.results), "the other run continues"
        await stream.holds(beside, pb.Holding.STATE_RUNNING)
        worker.signal(0)  # raises when it is gone


async def test_a_forked_child_that_returns_reports_no_result(shop: Shop) -> None:
    async with shop() as (_, _, stream):
        result = await call(stream, "forks_and_returns_twice")
        assert result.result.json == '"parent"'


@pytest.mark.parametrize("handler", ["waits", "awaits"])
async def test_a_canceled_handler_process_can_clean_up(
    shop: Shop, tmp_path: Path, handler: str
) -> None:
    async with shop() as (_, _, stream):
        mark, begun = tmp_path / "mark", tmp_path / "mark.begun"
        key = await start(stream, handler, str(mark))
        await wait_until_async(begun.exists, WAIT_TIMEOUT, "its beginning")
        await stream.send(cancels=[pb.Cancel(key=key)])
        result = await stream.result_of(key)
        assert result.outcome == pb.Result.OUTCOME_CANCELLED
        assert mark.read_text() == "in order, True"


@pytest.mark.parametrize("cgroups", ["true", "false"])
async def test_a_handler_that_ignores_its_cancel_and_detached_processes_leaves_none(
    shop: Shop, cgroups: str
) -> None:
    seconds = f"{100_000 + time.time_ns() % 100_000}"
    async with shop(config=f"cgroups = {cgroups}") as (_, _, stream):
        key = await start(stream, "stubborn", seconds, kill_after=0.3)
        await wait_until_async(lambda: len(sleeping(seconds)) == 4, WAIT_TIMEOUT, "its sleepers")
        await stream.send(cancels=[pb.Cancel(key=key)])
        result = await stream.result_of(key)
        assert result.outcome == pb.Result.OUTCOME_CANCELLED
        await wait_until_async(lambda: not sleeping(seconds), WAIT_TIMEOUT, "the end of them all")


async def test_a_handler_process_ends_only_after_its_heartbeat_timeout(shop: Shop) -> None:
    async with shop() as (_, _, stream):
        result = await call(stream, "lively", heartbeat_timeout=5.0)
        assert result.reason == common_pb2.REASON_HEARTBEAT_TIMEOUT
        took = result.finished_at.ToDatetime() - result.started_at.ToDatetime()
        assert took.total_seconds() >= 11.0


async def test_a_killed_worker_ends_its_handler_processes(shop: Shop) -> None:
    seconds = f"{100_000 + time.time_ns() % 100_000}"
    async with shop() as (_, worker, stream):
        await start(stream, "stubborn", seconds)
        await wait_until_async(lambda: len(sleeping(seconds)) == 4, WAIT_TIMEOUT, "its sleepers")
        worker.signal(signal.SIGKILL)
        await wait_until_async(lambda: not sleeping(seconds), WAIT_TIMEOUT, "the end of them all")


async def test_limits_and_variables_are_refused_for_handlers_without_a_process(
    shop: Shop,
) -> None:
    async with shop() as (_, _, stream):
        for more in ({"env_from": ["/secrets/shop"]}, {"limits": {"files": 100}}):
            action = job_pb2.PythonAction(handler="in_thread", **more)
            refusal = await stream.refusal_of(await stream.assign(python=action, payload="0"))
            assert refusal.why == pb.Refusal.WHY_UNABLE
            assert 'with mode="process"' in refusal.detail
