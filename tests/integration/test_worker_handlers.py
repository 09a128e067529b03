"""Python handlers, in a real worker."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import pytest

from schedproto.v1 import common_pb2, job_pb2
from schedproto.v1 import worker_service_pb2 as pb
from support.fake_member import FakeMember, Stream, runs_of
from support.shared_workers import SharedWorkers
from support.wait import WAIT_TIMEOUT, wait_until_async
from support.worker_process import WorkerProcess
from workerd.executors.handlers.attempt_call import CANCELED

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODULE = """
import asyncio, threading, time
from schedclient.handlers import Context, DontRetry, RetryAfter, handler

@handler
async def greet(payload, ctx: Context):
    return {"hello": payload["name"], "run": ctx.run_id, "token": ctx.fencing_token,
            "attempt": ctx.attempt, "job": ctx.job, "key": ctx.idempotency_key,
            "thread": threading.current_thread() is threading.main_thread()}

@handler("in-thread")
def in_thread(payload, ctx):
    return threading.current_thread() is threading.main_thread()

@handler
async def nothing(payload, ctx):
    return None

@handler
def raw(payload, ctx):
    return payload[::-1]

@handler
async def broken(payload, ctx):
    raise RuntimeError("oh no")

@handler
def hopeless(payload, ctx):
    raise DontRetry("bad input")

@handler
async def later(payload, ctx):
    raise RetryAfter(90)

@handler
async def never_mind(payload, ctx):
    raise RetryAfter(float("nan"), "half of a \\ud83d")

@handler
async def huge(payload, ctx):
    return "x" * 17_000_000

@handler
def leaves(payload, ctx):
    raise SystemExit(3)

@handler
async def leaves_the_loop(payload, ctx):
    raise SystemExit(4)

@handler
def stops(payload, ctx):
    return next(iter(()))

@handler
def gives_up(payload, ctx):
    raise asyncio.CancelledError

@handler
async def gives_up_on_the_loop(payload, ctx):
    raise asyncio.CancelledError

@handler
def bottomless(payload, ctx):
    nest = []
    for _ in range(100_000):
        nest = [nest]
    return nest

@handler
async def no_json(payload, ctx):
    return object()

@handler
async def forever(payload, ctx):
    try:
        await asyncio.sleep(300)
    finally:
        open(payload, "w").write("cleaned up")

@handler
def patient(payload, ctx):
    ctx.cancel.wait(300)

@handler
async def lively(payload, ctx):
    for _ in range(10):
        await asyncio.sleep(0.1)
        ctx.heartbeat()
    await asyncio.sleep(300)

@handler
def lively_thread(payload, ctx):
    for _ in range(10):
        time.sleep(0.1)
        ctx.heartbeat()
    ctx.cancel.wait(300)

@handler
async def deaf(payload, ctx):
    while True:
        try:
            await asyncio.sleep(300)
        except asyncio.CancelledError:
            pass

@handler
async def ends_itself(payload, ctx):
    asyncio.current_task().cancel()
    await asyncio.sleep(300)

@handler
def stubborn(payload, ctx):
    while True:
        time.sleep(0.1)
"""


class Shop(Protocol):
    """A worker with the handlers of `MODULE`, its member and its stream."""

    def __call__(
        self, **how: str
    ) -> AbstractAsyncContextManager[tuple[FakeMember, WorkerProcess, Stream]]: ...


@pytest.fixture(scope="module")
def shop(workers: SharedWorkers, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    packages = tmp_path_factory.mktemp("packages")
    (packages / "shop_tasks.py").write_text(MODULE)
    environ = {"PYTHONPATH": str(packages)}

    @asynccontextmanager
    async def lent(**how: str) -> AsyncIterator[tuple[FakeMember, WorkerProcess, Stream]]:
        async with workers(environ=environ, handlers="shop_tasks", **how) as (member, worker):
            yield member, worker, await member.attached()

    return lent


async def call(stream: Stream, name: str, payload: object = None, **how: float) -> pb.Result:
    given = payload if isinstance(payload, bytes) else json.dumps(payload)
    action = job_pb2.PythonAction(handler=name)
    return await stream.result_of(await stream.assign(python=action, payload=given, **how))


async def test_a_coroutine_gets_its_payload_and_context_and_returns_json(shop: Shop) -> None:
    async with shop() as (_, _, stream):
        result = await call(stream, "greet", {"name": "Ada"})
        assert result.outcome == pb.Result.OUTCOME_SUCCEEDED
        assert json.loads(result.result.json) == {
            "hello": "Ada", "run": result.key.run_id, "token": result.key.fencing_token,
            "attempt": 1, "job": "probe", "key": result.key.run_id, "thread": False,
        }  # fmt: skip


async def test_a_function_runs_in_a_thread(shop: Shop) -> None:
    async with shop() as (_, _, stream):
        assert (await call(stream, "in-thread")).result.json == "false"


async def test_the_hello_names_all_handlers_by_name_and_by_path(shop: Shop) -> None:
    async with shop() as (_, _, stream):
        assert {"greet", "shop_tasks.greet", "in-thread"} <= {*stream.hello.handlers}
        assert (await call(stream, "shop_tasks.nothing")).outcome == pb.Result.OUTCOME_SUCCEEDED


async def test_a_payload_and_a_result_of_bytes_are_passed_unchanged(shop: Shop) -> None:
    async with shop() as (_, _, stream):
        assert (await call(stream, "raw", b"\x00\xff")).result.raw == b"\xff\x00"


async def test_an_exception_fails_the_attempt_with_its_traceback(shop: Shop) -> None:
    async with shop() as (_, _, stream):
        result = await call(stream, "broken")
        assert result.reason == common_pb2.REASON_EXCEPTION
        assert result.error == "RuntimeError: oh no"
        assert b"shop_tasks.py" in result.output[0].data


async def test_an_exception_reserved_by_python_fails_the_attempt_and_not_the_worker(
    shop: Shop,
) -> None:
    async with shop() as (_, _, stream):
        for name, error in (
            ("leaves", "SystemExit: 3"),
            ("leaves_the_loop", "SystemExit: 4"),
            ("stops", "StopIteration: "),
            ("gives_up", CANCELED),
            ("gives_up_on_the_loop", CANCELED),
        ):
            result = await call(stream, name)
            assert (result.reason, result.error) == (common_pb2.REASON_EXCEPTION, error)
        assert (await call(stream, "in-thread")).result.json == "false"  # and it continues


async def test_dont_retry_and_retry_after_are_reported(shop: Shop) -> None:
    async with shop() as (_, _, stream):
        assert (await call(stream, "hopeless")).reason == common_pb2.REASON_DONT_RETRY
        later = await call(stream, "later")
        assert later.reason == common_pb2.REASON_EXCEPTION
        assert later.retry_after.ToTimedelta().total_seconds() == 90
        strange = await call(stream, "never_mind")
        assert not strange.HasField("retry_after")
        assert strange.error == "RetryAfter: half of a ?"


async def test_a_result_too_large_or_not_json_fails_for_good(shop: Shop) -> None:
    async with shop() as (_, _, stream):
        for name, said in (
            ("huge", "more than 16777216 bytes"),
            ("no_json", "object is not JSON serializable"),
            ("bottomless", "at most 100 levels"),
        ):
            result = await call(stream, name)
            assert result.reason == common_pb2.REASON_DONT_RETRY
            assert said in result.error


async def test_a_payload_that_is_not_json_never_reaches_the_handler(shop: Shop) -> None:
    async with shop() as (_, _, stream):
        action = job_pb2.PythonAction(handler="greet")
        result = await stream.result_of(await stream.assign(python=action, payload="{"))
        assert result.reason == common_pb2.REASON_DONT_RETRY


async def test_a_timeout_cancels_a_coroutine_which_may_clean_up(shop: Shop, tmp_path: Path) -> None:
    async with shop() as (_, _, stream):
        mark = tmp_path / "mark"
        result = await call(stream, "forever", str(mark), timeout=0.3)
        assert result.reason == common_pb2.REASON_TIMEOUT
        assert mark.read_text() == "cleaned up"


@pytest.mark.parametrize("handler", ["lively", "lively_thread"])
async def test_a_handler_is_ended_when_it_is_silent_for_too_long_and_not_before(
    shop: Shop, handler: str
) -> None:
    async with shop() as (_, _, stream):
        result = await call(stream, handler, heartbeat_timeout=0.5)
        assert result.outcome == pb.Result.OUTCOME_FAILED
        assert result.reason == common_pb2.REASON_HEARTBEAT_TIMEOUT
        took = result.finished_at.ToDatetime() - result.started_at.ToDatetime()
        assert timedelta(seconds=1.5) <= took < timedelta(seconds=10)


async def test_a_worker_that_was_stopped_extends_the_heartbeat_timeouts_of_handlers(
    shop: Shop,
) -> None:
    """The worker receives nothing meanwhile, and its handlers can send nothing."""
    async with shop() as (_, worker, stream):
        action = job_pb2.PythonAction(handler="lively")
        key = await stream.assign(python=action, payload="null", heartbeat_timeout=1.0)
        await stream.holds(key, pb.Holding.STATE_RUNNING)
        worker.signal(signal.SIGSTOP)
        await asyncio.sleep(2.5)
        worker.signal(signal.SIGCONT)
        result = await stream.result_of(key)
        assert result.reason == common_pb2.REASON_HEARTBEAT_TIMEOUT
        took = result.finished_at.ToDatetime() - result.started_at.ToDatetime()
        assert took >= timedelta(seconds=2.5 + 1.0)


async def test_a_thread_that_ignores_its_cancel_is_abandoned(shop: Shop) -> None:
    async with shop() as (_, worker, stream):
        asked = await call(stream, "patient", timeout=0.2, kill_after=60)
        assert asked.reason == common_pb2.REASON_TIMEOUT
        left = await call(stream, "stubborn", timeout=0.2, kill_after=0.2)
        assert left.reason == common_pb2.REASON_TIMEOUT
        worker.signal(15)
        assert await worker.ended() == 0, "a thread can't keep a worker alive"


async def test_a_coroutine_that_swallows_its_cancel_is_left_behind(shop: Shop) -> None:
    async with shop(slots="1") as (_, worker, stream):
        left = await call(stream, "deaf", timeout=0.2, kill_after=0.2)
        assert left.reason == common_pb2.REASON_TIMEOUT
        beside = await call(stream, "nothing")
        assert beside.outcome == pb.Result.OUTCOME_SUCCEEDED, "its slot is free"
        worker.signal(15)
        assert await worker.ended() == 0, "a coroutine can't keep a worker alive"


async def test_a_coroutine_that_cancels_its_own_task_has_failed(shop: Shop) -> None:
    async with shop(slots="1") as (_, _, stream):
        failed = await call(stream, "ends_itself")
        assert failed.reason == common_pb2.REASON_EXCEPTION
        assert failed.error == CANCELED
        beside = await call(stream, "nothing")
        assert beside.outcome == pb.Result.OUTCOME_SUCCEEDED, "its slot is free"


@pytest.mark.slow
async def test_a_thread_that_outlasts_a_drain_is_not_given_back_while_it_runs(
    shop: Shop,
) -> None:
    """W4: else its run would begin elsewhere beside it. The worker leaves without a goodbye, and
    the run moves on when its lease has ended.
    """
    async with shop(drain_timeout="200ms") as (_, worker, stream):
        key = await stream.assign(python=job_pb2.PythonAction(handler="stubborn"))
        await stream.holds(key, pb.Holding.STATE_RUNNING)
        worker.signal(15)
        assert await worker.ended(60.0) == 0
        await stream.closed()
        assert stream.results == []
        assert not stream.goodbye


async def test_an_unknown_handler_is_refused(shop: Shop) -> None:
    async with shop() as (_, _, stream):
        key = await stream.assign(python=job_pb2.PythonAction(handler="nobody"))
        refusal = await stream.refusal_of(key)
        assert refusal.why == pb.Refusal.WHY_UNABLE
        assert "nobody" in refusal.detail


async def test_a_module_that_cannot_be_imported_is_an_error_at_start(tmp_path: Path) -> None:
    worker = WorkerProcess(tmp_path, ["127.0.0.1:1"], handlers="no_such_module")
    worker.start()
    assert await worker.ended() == 2
    assert "no_such_module" in worker.log.read_text()
    assert not [*worker.spool.glob("*.journal")], "nothing of it is left to be swept"


async def test_a_thousand_small_runs_all_report_once(shop: Shop) -> None:
    async with shop(slots="1000") as (member, worker, stream):
        await stream.granted_at_least(1000)
        action = job_pb2.PythonAction(handler="nothing")
        assignments = [
            member.assignment(incarnation=stream.hello.incarnation, python=action)
            for _ in range(1000)
        ]

        def reported() -> set[str]:
            return {run for batch in stream.result_batches for run, _ in runs_of(batch)}

        for at in range(0, 1000, 100):
            await stream.send(assignments=assignments[at : at + 100])
        # A result whose acknowledgement is late is sent again.
        await stream.until(lambda: len(reported()) >= 1000 or None, "all results")
        assert reported() == {each.key.run_id for each in assignments}
        await stream.until(lambda: stream.granted.slots == 1000 or None, "all slots granted again")
        await wait_until_async(
            lambda: not [*worker.spool.glob("*.results")], WAIT_TIMEOUT, "an empty spool"
        )
