"""Batches of runs: accepted, started, ended and reported together, decided one by one."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from schedclient import Context
from schedclient.handlers import Mode, RegisteredHandler
from schedkit.bounds.tables import MOST_IN_BATCH
from schedkit.clock import boottime, utcnow
from schedproto.v1 import common_pb2, job_pb2
from schedproto.v1 import worker_service_pb2 as pb
from support.calling import handler_loops
from support.fake_member import FakeMember, runs_of
from support.uploads import upload_in
from support.wait import WAIT_TIMEOUT, wait_until_async
from workerd import messages
from workerd.batches import AssignedBatch, SuccessBatch, result_violations
from workerd.core.admission import Admission, AssignmentState, OfferedBatch
from workerd.core.cluster_time import JudgingClock, MemberTime, RoundTrip
from workerd.core.ids import Address, AssignmentKey, Incarnation, RunId, Token
from workerd.core.lease_trust import WorkerLeaseTrust
from workerd.core.outcome import Cause
from workerd.delivery import result_sender
from workerd.delivery.result_sender import ResultSender
from workerd.delivery.spool import Spool
from workerd.executors.base import StartedBatch
from workerd.executors.handlers.attempt_call import CalledFunction, HandlerCall, current
from workerd.executors.handlers.handler_subprocess import SubprocessHandlers
from workerd.executors.handlers.payload_types import fit_of
from workerd.executors.python import HandlerCaller, PythonExecutor
from workerd.metrics import WorkerMetrics
from workerd.runs.assignments import HeldRuns, slots_of
from workerd.runs.delayed_start import FIRST, DelayedStarts

ME = Incarnation("11111111-2222-3333-4444-555555555555")
of_a_handler: ContextVar[str | None] = ContextVar("of_a_handler", default=None)


def files(folder: Path, kind: str = "results") -> list[Path]:
    """Return the files of a spool."""
    return [*folder.glob(f"*.{kind}")]


class Stream:
    """A member's stream that records what the worker sends."""

    def __init__(self, address: str = "m1") -> None:
        self.address = Address(address)
        self.refused: list[pb.Refusal] = []
        self.results: list[pb.Result] = []
        self.batches: list[pb.ResultBatch] = []

    def send_refusal(self, refusal: pb.Refusal) -> None:
        self.refused.append(refusal)

    def send_log(self, chunk: pb.LogChunk) -> None: ...

    def send_result(self, result: pb.Result) -> None:
        self.results.append(result)

    def send_result_batch(self, batch: pb.ResultBatch) -> None:
        self.batches.append(batch)

    @property
    def succeeded(self) -> set[str]:
        """Runs that batches report."""
        return {run for batch in self.batches for run, _ in runs_of(batch)}

    @property
    def whys(self) -> dict[str, pb.Refusal.Why]:
        return {each.key.run_id: each.why for each in self.refused}


class Handler:
    """A handler that succeeds, except for runs with a conduct of their own."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.conduct: dict[str, Callable[[], Any]] = {}

    async def handle(self, _payload: Any, ctx: Context) -> Any:
        self.began.append(ctx.run_id)
        conduct = self.conduct.get(ctx.run_id)
        return None if conduct is None else await conduct()

    def handle_in_a_thread(self, _payload: Any, ctx: Context) -> Any:
        self.began.append(ctx.run_id)
        conduct = self.conduct.get(ctx.run_id)
        return None if conduct is None else conduct()


async def waits() -> None:
    await asyncio.sleep(WAIT_TIMEOUT)


async def fails() -> None:
    raise ValueError("broken")


class Worker:
    """The runs of a worker, without a network."""

    def __init__(self, work: HeldRuns, sender: ResultSender, handler: Handler) -> None:
        self.work, self.sender, self.handler = work, sender, handler
        self.member = FakeMember()
        self.stream = Stream()
        self.time = MemberTime()
        self.time.observe(RoundTrip(boottime(), boottime(), utcnow().timestamp()))
        sender.attached(self.stream)

    def assign(self, count: int, **how: Any) -> list[pb.AssignmentKey]:
        """Receive a batch of so many runs."""
        keys = [self.member.key() for _ in range(count)]
        self.receive(self.batch(keys, **how))
        return keys

    def batch(self, keys: Sequence[pb.AssignmentKey], **how: Any) -> pb.RunBatch:
        how = {"incarnation": ME, "python": job_pb2.PythonAction(handler="h")} | how
        return self.member.run_batch(keys, **how)

    def receive(self, *batches: pb.RunBatch) -> None:
        self.work.assign([], self.time, self.stream, batches)
        self.work.send_again()

    def states(self) -> dict[str, AssignmentState]:
        return {key.run: state for key, _, state, _ in self.work.holdings()}

    async def ended(self, *keys: pb.AssignmentKey) -> None:
        """Return when plain successes of these runs were sent."""
        wanted = {key.run_id for key in keys}
        await wait_until_async(
            lambda: wanted <= self.stream.succeeded, WAIT_TIMEOUT, f"{len(wanted)} successes"
        )

    async def began(self, *keys: pb.AssignmentKey) -> None:
        wanted = {key.run_id for key in keys}
        await wait_until_async(
            lambda: wanted <= {*self.handler.began}, WAIT_TIMEOUT, f"{len(wanted)} starts"
        )

    async def result_of(self, key: pb.AssignmentKey) -> pb.Result:
        def find() -> pb.Result | None:
            return next((each for each in self.stream.results if each.key == key), None)

        found = await wait_until_async(find, WAIT_TIMEOUT, f"the result of {key.run_id}")
        assert found is not None
        return found


@contextlib.asynccontextmanager
async def working(
    home: Path,
    *,
    slots: int = 100,
    trust: WorkerLeaseTrust | None = None,
    mode: Mode = Mode.LOOP,
) -> AsyncIterator[Worker]:
    """Run a worker with the handler `h`."""
    spool, clock, metrics, handler = Spool(home), JudgingClock(), WorkerMetrics(), Handler()
    clock.observe(RoundTrip(boottime(), boottime(), utcnow().timestamp()))
    work: HeldRuns
    sender = ResultSender(spool, lambda keys, _verdict: work.acknowledged(keys))
    sender.load()
    async with handler_loops() as loops:
        function = handler.handle if mode is Mode.LOOP else handler.handle_in_a_thread
        handlers = {"h": RegisteredHandler(function, mode)}
        subprocesses: Any = SubprocessHandlers.__new__(SubprocessHandlers)  # none is called
        python = PythonExecutor(handlers, subprocesses, HandlerCaller(loops))
        trust = trust or WorkerLeaseTrust(60.0, boottime())
        admission = Admission(slots, ME)
        upload = upload_in(spool)
        work = HeldRuns("w1", admission, trust, clock, {"python": python}, sender, upload, metrics)
        tasks = [asyncio.create_task(each) for each in (work.run(), sender.keep_spooling())]
        await asyncio.sleep(0)
        try:
            yield Worker(work, sender, handler)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            spool.close()


async def test_runs_of_a_batch_start_together_and_are_reported_as_columns(tmp_path: Path) -> None:
    async with working(tmp_path) as worker:
        keys = worker.assign(FIRST)
        await worker.ended(*keys)
        assert sorted(worker.handler.began) == sorted(key.run_id for key in keys)
        (batch,) = worker.stream.batches
        assert batch.incarnation == ME
        assert runs_of(batch) == [(key.run_id, key.fencing_token) for key in keys]
        assert [*batch.scheduled_at] == [key.scheduled_at.ToMicroseconds() for key in keys]
        assert all(a <= b for a, b in zip(batch.started_at, batch.finished_at, strict=True))
        assert not worker.stream.results
        assert not worker.work.runs


async def test_a_repeated_batch_starts_nothing_and_brings_its_results_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_sender, "RESEND_AFTER", 0.0)
    async with working(tmp_path) as worker:
        keys = [worker.member.key() for _ in range(FIRST)]
        batch = worker.batch(keys)
        worker.receive(batch, batch)
        await worker.ended(*keys)
        worker.receive(batch)
        assert len(worker.handler.began) == FIRST
        assert len(worker.stream.batches) == 2
        assert not worker.stream.refused


async def test_cancels_of_ended_runs_bring_the_results_of_these_runs_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_sender, "RESEND_AFTER", 0.0)
    async with working(tmp_path) as worker:
        keys = worker.assign(FIRST)
        await worker.ended(*keys)
        for key in keys[1:3]:
            worker.work.cancel(pb.Cancel(key=key), worker.stream)
        worker.work.send_again()
        _, again = worker.stream.batches
        assert runs_of(again) == [(key.run_id, key.fencing_token) for key in keys[1:3]]
        worker.work.send_again()
        assert len(worker.stream.batches) == 2


async def test_ended_runs_are_reported_outside_of_the_context_of_their_handlers(
    tmp_path: Path,
) -> None:
    async with working(tmp_path) as worker:
        seen = []
        worker.work.on_change = lambda: seen.append((current.get(), of_a_handler.get()))

        async def sets() -> None:
            assert current.get() is not None
            of_a_handler.set("set by a handler")

        keys = [worker.member.key() for _ in range(3)]
        for key in keys:
            worker.handler.conduct[key.run_id] = sets
        worker.receive(worker.batch(keys))
        await worker.ended(*keys)
        assert {*seen} == {(None, None)}


async def test_a_result_that_cant_be_encoded_is_reported_as_failed_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(tmp_path) as worker:
        keys = [worker.member.key() for _ in range(6)]
        upload = worker.work._upload
        parcel = upload.parcel

        def parcels(key: AssignmentKey, *given: Any) -> Any:
            if key.run == keys[2].run_id:
                raise OSError("no")
            return parcel(key, *given)

        monkeypatch.setattr(upload, "parcel", parcels)
        for key in keys:
            worker.handler.conduct[key.run_id] = fails
        worker.receive(worker.batch(keys))
        for key in keys:
            found = "can't be encoded: OSError" if key == keys[2] else "ValueError: broken"
            assert found in (await worker.result_of(key)).error
        assert not worker.work.runs


async def test_a_result_that_cant_be_reported_is_set_aside_without_the_others_of_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(tmp_path) as worker:
        keys = [worker.member.key() for _ in range(6)]
        put = worker.sender.put

        def puts(result: pb.Result, *given: Any, **how: Any) -> None:
            if result.key == keys[0]:
                raise ValueError("no")
            put(result, *given, **how)

        monkeypatch.setattr(worker.sender, "put", puts)
        for key in keys:
            worker.handler.conduct[key.run_id] = fails
        worker.receive(worker.batch(keys))
        for key in keys[1:]:
            await worker.result_of(key)
        assert not worker.work.runs


async def test_a_run_that_is_twice_in_a_batch_starts_once(tmp_path: Path) -> None:
    async with working(tmp_path) as worker:
        key = worker.member.key()
        worker.receive(worker.batch([key, key]))
        await worker.ended(key)
        assert worker.handler.began == [key.run_id]


async def test_an_old_token_in_a_batch_is_refused_alone(tmp_path: Path) -> None:
    async with working(tmp_path) as worker:
        new, other = worker.member.key(run="r", token=9), worker.member.key()
        worker.receive(worker.batch([new]))
        worker.receive(worker.batch([worker.member.key(run="r", token=8), other]))
        await worker.ended(new, other)
        (refusal,) = worker.stream.refused
        assert (refusal.why, refusal.greatest_token_seen) == (
            pb.Refusal.WHY_GREATER_TOKEN_SEEN,
            9,
        )


async def test_runs_of_a_batch_beyond_the_free_slots_are_refused(tmp_path: Path) -> None:
    async with working(tmp_path, slots=5) as worker:
        keys = worker.assign(8)
        await worker.ended(*keys[:5])
        assert worker.stream.whys == dict.fromkeys(
            (key.run_id for key in keys[5:]), pb.Refusal.WHY_NO_SLOT
        )
        await worker.ended(*worker.assign(5))


async def test_a_batch_for_another_incarnation_is_refused_run_by_run(tmp_path: Path) -> None:
    async with working(tmp_path) as worker:
        keys = worker.assign(3, incarnation="someone-else")
        assert {*worker.stream.whys.values()} == {pb.Refusal.WHY_OTHER_INCARNATION}
        assert [each.key for each in worker.stream.refused] == keys


@pytest.mark.parametrize(
    "column", ["run_ids", "fencing_tokens", "scheduled_at", "jobs", "payloads"]
)
async def test_a_batch_with_uneven_columns_is_set_aside_and_its_readable_runs_refused(
    tmp_path: Path, column: str
) -> None:
    async with working(tmp_path) as worker:
        keys = [worker.member.key() for _ in range(4)]
        batch = worker.batch(keys)
        match column:
            case "run_ids":
                batch.run_ids = batch.run_ids[:-1]
            case "jobs":
                batch.jobs.extend("abc")
            case "payloads":
                batch.payloads.add(json="1")
            case _:
                del getattr(batch, column)[-1]
        worker.receive(batch)
        readable = keys if column in {"jobs", "payloads"} else keys[:3]
        assert worker.stream.whys == dict.fromkeys(
            (key.run_id for key in readable), pb.Refusal.WHY_UNABLE
        )
        await worker.ended(*worker.assign(2))


@pytest.mark.parametrize("how", [{}, {"start_in": 0.5}], ids=["due", "pre-dispatched"])
async def test_a_run_that_hasnt_started_isnt_ended_by_a_lease_that_returned(
    tmp_path: Path, how: dict[str, float]
) -> None:
    trust = WorkerLeaseTrust(60.0, boottime())
    async with working(tmp_path, trust=trust) as worker:
        keys = worker.assign(3, on_lease_lost=job_pb2.ON_LEASE_LOST_KILL, **how)
        worker.work.lease_lost()
        assert trust.holds(boottime())
        await worker.ended(*keys)
        assert not worker.stream.results, "all three succeeded"


async def test_a_batch_with_a_negative_token_or_no_runs_starts_nothing(tmp_path: Path) -> None:
    async with working(tmp_path) as worker:
        worker.receive(worker.batch([worker.member.key(token=-1)]), worker.batch([]))
        assert not worker.work.runs
        assert slots_of((), [worker.batch([worker.member.key()] * 3)]) == 3


async def test_a_handler_that_raises_fails_its_run_alone(tmp_path: Path) -> None:
    async with working(tmp_path) as worker:
        keys = [worker.member.key() for _ in range(4)]
        worker.handler.conduct[keys[1].run_id] = fails
        worker.receive(worker.batch(keys))
        result = await worker.result_of(keys[1])
        assert (result.outcome, result.error) == (pb.Result.OUTCOME_FAILED, "ValueError: broken")
        await worker.ended(keys[0], *keys[2:])
        assert keys[1].run_id not in worker.stream.succeeded


async def test_a_handler_that_prints_is_reported_with_its_output(tmp_path: Path) -> None:
    async with working(tmp_path) as worker:
        keys = [worker.member.key() for _ in range(2)]

        async def writes() -> None:
            from workerd.logs.run_output import current_output

            output = current_output.get()
            assert output is not None
            output.write(False, b"hello\n")

        worker.handler.conduct[keys[0].run_id] = writes
        worker.receive(worker.batch(keys))
        result = await worker.result_of(keys[0])
        assert [piece.data for piece in result.output] == [b"hello\n"]
        await worker.ended(keys[1])


@pytest.mark.parametrize("mode", [Mode.LOOP, Mode.THREAD])
async def test_a_context_variable_that_a_handler_sets_isnt_seen_by_the_next_run(
    tmp_path: Path, mode: Mode
) -> None:
    async with working(tmp_path, mode=mode) as worker:
        seen = []

        def sets() -> None:
            seen.append((of_a_handler.get(), threading.get_ident()))
            of_a_handler.set("set by a handler")

        async def sets_there() -> None:
            sets()

        for _ in range(3):
            key = worker.member.key()
            worker.handler.conduct[key.run_id] = sets if mode is Mode.THREAD else sets_there
            worker.receive(worker.batch([key]))
            await worker.ended(key)
        assert len({thread for _, thread in seen}) == 1, "the same thread ran them"
        assert [value for value, _ in seen] == [None, None, None]


def computes() -> None:
    """Use a processor, and the interpreter's lock, for 20 ms."""
    until = time.thread_time() + 0.02
    while time.thread_time() < until:
        pass


@pytest.mark.parametrize("many", ["at once", "pre-dispatched"])
async def test_the_loop_keeps_running_while_many_runs_begin_that_use_a_processor(
    tmp_path: Path, many: str
) -> None:
    """Heartbeats are sent, and a cancel prevents a run that hasn't begun."""
    async with working(tmp_path, slots=100, mode=Mode.THREAD) as worker:
        keys = [worker.member.key() for _ in range(100)]
        worker.handler.conduct = {key.run_id: computes for key in keys}
        turns = [boottime()]

        async def beats() -> None:
            while True:
                await asyncio.sleep(0.01)
                turns.append(boottime())

        beating = asyncio.create_task(beats())
        worker.receive(worker.batch(keys, start_in=0.1 if many == "pre-dispatched" else None))
        await worker.began(keys[0])
        worker.work.cancel(pb.Cancel(key=keys[-1]), worker.stream)
        await worker.ended(*keys[:-1])
        beating.cancel()
        assert worker.stream.whys == {keys[-1].run_id: pb.Refusal.WHY_REVOKED}
        longest = max(after - before for before, after in pairwise(turns))
        assert longest < (turns[-1] - turns[0]) / 3


@pytest.mark.parametrize("mode", [Mode.LOOP, Mode.THREAD])
async def test_ended_runs_leave_nothing_to_the_cycle_collector(tmp_path: Path, mode: Mode) -> None:
    async with working(tmp_path, mode=mode) as worker:
        await worker.ended(*worker.assign(50))
        gc.collect()
        gc.disable()
        try:
            await worker.ended(*worker.assign(50))
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left = [each for each in gc.garbage if isinstance(each, Context | HandlerCall)]
        finally:
            gc.set_debug(0)
            gc.enable()
            gc.garbage.clear()
        assert not left


@pytest.mark.parametrize("mode", [Mode.LOOP, Mode.THREAD])
async def test_unacknowledged_results_keep_no_payload_in_memory(tmp_path: Path, mode: Mode) -> None:
    async with working(tmp_path, mode=mode) as worker:
        assigned = worker.assign(50)
        await worker.ended(*assigned)
        await wait_until_async(lambda: not worker.work.runs, WAIT_TIMEOUT, "the end of the runs")
        gc.collect()
        batches = [each for each in gc.get_objects() if isinstance(each, AssignedBatch)]
        keys = [messages.key_of(key) for key in assigned]
        assert not [each for each in batches if each.keys == keys]
        assert len(worker.sender) == 50


async def test_a_call_that_ends_while_another_is_reported_adds_no_output_afterwards() -> None:
    """A task that the handler left behind may still print."""
    runs, ended = list[HandlerCall](), threading.Event()

    async def handle(_payload: Any, _ctx: Context) -> None:
        run = current.get()
        assert run is not None
        runs.append(run)
        if run.place == 1:
            other_may_end.append((asyncio.get_running_loop(), event := asyncio.Event()))
            await event.wait()
            asyncio.get_running_loop().call_soon(ended.set)

    def on_end(*_end: object) -> None:
        ((loop, event),) = other_may_end
        loop.call_soon_threadsafe(event.set)
        assert ended.wait(WAIT_TIMEOUT)

    other_may_end: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    member = FakeMember()
    action = job_pb2.PythonAction(handler="h")
    message = member.run_batch([member.key(), member.key()], incarnation=ME, python=action)
    batch = StartedBatch(AssignedBatch.of(message), "w1", on_end)
    async with handler_loops() as loops:
        target = CalledFunction("h", handle, fit_of(handle))
        HandlerCaller(loops).begin(target, batch, range(2), loop=True)
        await wait_until_async(lambda: batch.succeeded == [0, 1], WAIT_TIMEOUT, "both ends")
        for run in (*runs, *runs):
            run.write(False, b"late")
        await asyncio.sleep(0)
        assert not batch.attempts, "none has output"


async def test_the_timeout_ends_the_runs_of_a_batch_that_still_run(tmp_path: Path) -> None:
    async with working(tmp_path) as worker:
        keys = [worker.member.key() for _ in range(4)]
        for key in keys[:2]:
            worker.handler.conduct[key.run_id] = waits
        worker.receive(worker.batch(keys, timeout=0.3))
        await worker.ended(*keys[2:])
        for key in keys[:2]:
            result = await worker.result_of(key)
            assert result.reason == common_pb2.REASON_TIMEOUT
        assert not worker.work.runs


@pytest.mark.parametrize("how", ["cancel", "drain"])
async def test_one_running_run_of_a_batch_is_stopped_alone(tmp_path: Path, how: str) -> None:
    async with working(tmp_path) as worker:
        keys = [worker.member.key() for _ in range(3)]
        for key in keys:
            worker.handler.conduct[key.run_id] = waits
        worker.receive(worker.batch(keys))
        await worker.began(*keys)
        answer = worker.work.revoke(keys[0])
        assert answer.outcome == pb.RevokeAnswer.OUTCOME_STARTED
        if how == "cancel":
            worker.work.cancel(pb.Cancel(key=keys[0]), worker.stream)
            result = await worker.result_of(keys[0])
            assert result.outcome == pb.Result.OUTCOME_CANCELLED
            assert len(worker.work.runs) == 2
        else:
            worker.work.stop_all(Cause.DRAIN)
            for key in keys:
                assert (await worker.result_of(key)).outcome == pb.Result.OUTCOME_RETURNED
            assert not worker.work.runs


async def test_a_pre_dispatched_batch_starts_when_it_is_due_without_revoked_runs(
    tmp_path: Path,
) -> None:
    async with working(tmp_path) as worker:
        instant = boottime() + 0.4
        keys = worker.assign(5, start_in=0.5)
        assert {*worker.states().values()} == {AssignmentState.HELD}
        answer = worker.work.revoke(keys[0])
        assert answer.outcome == pb.RevokeAnswer.OUTCOME_REVOKED
        worker.work.cancel(pb.Cancel(key=keys[1]), worker.stream)
        assert worker.stream.whys == {keys[1].run_id: pb.Refusal.WHY_REVOKED}
        worker.work.rearm(worker.time)
        await worker.ended(*keys[2:])
        assert boottime() >= instant
        assert sorted(worker.handler.began) == sorted(key.run_id for key in keys[2:])
        (batch,) = worker.stream.batches
        assert min(batch.started_at) >= utcnow().timestamp() * 1e6 - 60e6


async def test_a_cancel_of_a_run_that_has_ended_changes_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended runs wait for starts before they are reported."""
    waits, go = asyncio.Event(), asyncio.Event()

    async def herd(_starts: DelayedStarts[Any], *, pre_dispatched: bool) -> None:
        waits.set()
        await go.wait()

    monkeypatch.setattr(DelayedStarts, "let_start", herd)
    async with working(tmp_path) as worker:
        keys = worker.assign(FIRST)
        async with asyncio.timeout(WAIT_TIMEOUT):
            await waits.wait()
        assert {*worker.states().values()} == {AssignmentState.ENDED}
        worker.work.cancel(pb.Cancel(key=keys[0], kill=True), worker.stream)
        worker.work.stop_all(Cause.DRAIN)
        assert worker.work.revoke(keys[1]).outcome == pb.RevokeAnswer.OUTCOME_STARTED
        go.set()
        await worker.ended(*keys)
        assert len(worker.handler.began) == FIRST
        assert not worker.stream.results
        assert not worker.stream.refused


async def test_a_batch_whose_worker_loses_trust_before_the_due_time_starts_nothing(
    tmp_path: Path,
) -> None:
    trust = WorkerLeaseTrust(60.0, boottime())
    async with working(tmp_path, trust=trust) as worker:
        keys = worker.assign(10, start_in=0.3)
        trust.ttl = 0.0
        await wait_until_async(lambda: len(worker.stream.refused) == 10, WAIT_TIMEOUT, "refusals")
        assert worker.stream.whys == dict.fromkeys(
            (key.run_id for key in keys), pb.Refusal.WHY_TOO_LATE
        )
        assert not worker.handler.began
        assert not worker.work.runs


async def test_a_run_that_has_ended_reports_no_progress_and_no_output(tmp_path: Path) -> None:
    """A thread that a handler has left behind still has its context."""
    async with working(tmp_path) as worker:
        left: list[Context] = []
        handle = worker.handler.handle

        async def leaves(payload: Any, ctx: Context) -> Any:
            left.append(ctx)
            return await handle(payload, ctx)

        python = worker.work.attempts._executors["python"]
        assert isinstance(python, PythonExecutor)
        python._handlers = {"h": RegisteredHandler(leaves, Mode.LOOP)}
        seen: list[pb.Progress] = []
        worker.work.attempts.on_progress = seen.append
        keys = worker.assign(3)
        await worker.ended(*keys)
        for ctx in left:
            await asyncio.to_thread(ctx.progress, 0.5)
            await asyncio.to_thread(ctx.log.info, "late")
            assert ctx.cancel.is_set()
        await asyncio.sleep(0.05)
        assert not seen
        assert not worker.stream.results
        assert not [*worker.work.progress()]


async def test_a_drain_returns_the_waiting_batch_and_lets_the_running_one_end(
    tmp_path: Path,
) -> None:
    async with working(tmp_path) as worker:
        running = worker.assign(3)
        await worker.began(*running)
        waiting = worker.assign(3, start_in=30.0)
        worker.work.drain(on=True)
        assert worker.stream.whys == dict.fromkeys(
            (key.run_id for key in waiting), pb.Refusal.WHY_DRAINING
        )
        await worker.ended(*running)
        late = worker.assign(2)
        assert {worker.stream.whys[key.run_id] for key in late} == {pb.Refusal.WHY_DRAINING}


async def test_the_runs_of_a_batch_that_end_with_the_lease_are_returned_when_it_is_lost(
    tmp_path: Path,
) -> None:
    trust = WorkerLeaseTrust(60.0, boottime())
    async with working(tmp_path, trust=trust) as worker:
        keys = [worker.member.key() for _ in range(3)]
        for key in keys:
            worker.handler.conduct[key.run_id] = waits
        worker.receive(worker.batch(keys, on_lease_lost=job_pb2.ON_LEASE_LOST_KILL))
        await worker.began(*keys)
        trust.ttl = 0.0
        for key in keys:
            assert (await worker.result_of(key)).reason == common_pb2.REASON_WORKER_LOST
        refused = worker.assign(2)
        assert {worker.stream.whys[key.run_id] for key in refused} == {pb.Refusal.WHY_TOO_LATE}


async def test_a_spooled_batch_is_sent_by_the_next_process_and_removed_when_acknowledged(
    tmp_path: Path,
) -> None:
    async with working(tmp_path) as worker:
        keys = worker.assign(4)
        await worker.ended(*keys)
        (sent,) = worker.stream.batches
    async with working(tmp_path) as worker:
        assert worker.stream.batches == [sent]
        assert [key.run for key, _ in worker.sender.unanswered()] == [key.run_id for key in keys]
        worker.sender.acknowledge([], [acknowledged(keys)])
        async with asyncio.timeout(WAIT_TIMEOUT):
            await worker.sender.delivered()
    assert not files(tmp_path)


async def test_a_batch_is_sent_again_without_the_runs_that_were_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_sender, "RESEND_AFTER", 0.1)
    async with working(tmp_path) as worker:
        keys = worker.assign(4)
        await worker.ended(*keys)
        stale = pb.Acknowledgement.VERDICT_STALE
        worker.sender.acknowledge(
            [pb.Acknowledgement(key=keys[0], verdict=stale)], [acknowledged(keys[1:2])]
        )
        assert len(worker.sender) == 2
        assert {*worker.states()} == set()
        other = Stream("m2")
        worker.sender.detached(worker.stream)
        worker.sender.attached(other)
        assert other.succeeded == {key.run_id for key in keys[2:]}
        assert len(files(tmp_path)) == 1
        worker.sender.acknowledge([], [acknowledged(keys)])
        async with asyncio.timeout(WAIT_TIMEOUT):
            await worker.sender.delivered()
        assert not files(tmp_path)


def acknowledged(keys: Sequence[pb.AssignmentKey]) -> pb.AckBatch:
    pairs = [messages.key_of(key) for key in keys]
    return pb.AckBatch(
        run_ids=messages.packed_ids(pairs), fencing_tokens=[token for _, token in pairs]
    )


async def test_runs_that_end_with_the_worker_are_reported(tmp_path: Path) -> None:
    async with working(tmp_path) as worker:
        worker.assign(3)
        async with asyncio.timeout(WAIT_TIMEOUT):
            unended = {AssignmentState.HELD, AssignmentState.RUNNING}
            while not unended.isdisjoint(worker.states().values()):  # noqa: ASYNC110 - no later
                await asyncio.sleep(0)
    assert len([*worker.sender.unanswered()]) == 3


async def test_more_runs_than_a_batch_may_have_are_reported_in_several(tmp_path: Path) -> None:
    async with working(tmp_path, slots=4_000) as worker:
        count = MOST_IN_BATCH + 500
        successes = SuccessBatch(
            ME,
            [AssignmentKey(RunId(worker.member.key().run_id), Token(1)) for _ in range(count)],
            *([1] * count for _ in range(3)),
        )
        worker.sender.put_successes(successes, None)
        await wait_until_async(
            lambda: len(worker.stream.succeeded) == count, WAIT_TIMEOUT, "all results"
        )
        assert all(not result_violations(batch) for batch in worker.stream.batches)


async def test_a_damaged_batch_in_the_spool_is_set_aside(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.write(pb.WorkerFrame(result_batches=[pb.ResultBatch(run_ids=b"x", fencing_tokens=[1])]))
    assert spool.load() == []
    assert len(files(tmp_path, "damaged")) == 1
    spool.close()


def test_a_batch_gets_the_answers_that_its_runs_would_get_alone() -> None:
    """300 random histories: the decision about a batch is that about each of its runs in order."""
    for seed in range(300):
        chance = random.Random(seed)
        together, alone = Admission(6, ME), Admission(6, ME)
        now = 0.0
        for _ in range(30):
            now += chance.random()
            keys = [
                AssignmentKey(RunId(chance.choice("abcdefgh")), Token(chance.randint(1, 3)))
                for _ in range(chance.randint(1, 4))
            ]
            by, trusted = now + chance.uniform(-0.2, 3), chance.random() > 0.1
            slots = chance.randint(1, 2)
            batch, ended = OfferedBatch(keys, ME, slots, by), list[AssignmentKey]()
            answers = together.offer(batch, now, trusted=trusted)
            for place, key in enumerate(keys):
                single = alone.offer(OfferedBatch([key], ME, slots, by), now, trusted=trusted)
                assert answers.get(place) == single.get(0)
            places, started = together.start(batch, range(len(keys)), now, now, trusted=trusted)
            for place in places:
                one = alone.find(keys[place])
                assert one is not None
                assert alone.start(one, range(1), now, now, trusted=trusted) == (range(1), started)
                if started is None:
                    ended.append(keys[place])
                    alone.end_executions(one, [0])
            if started is None:
                together.end_executions(batch, places)
            done = [key for key in ended if chance.random() > 0.3]
            together.acknowledged(done)
            alone.acknowledged(done)
            together.forget(now)
            alone.forget(now)
            assert together.free == alone.free
            assert [*together.holdings()] == [*alone.holdings()]
