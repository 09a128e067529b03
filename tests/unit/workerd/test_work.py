"""Results of runs whose worker was suspended or failed, as reported."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from schedkit.clock import boottime, utcnow
from schedkit.text.json_text import TooDeep
from schedproto.v1 import common_pb2, job_pb2
from schedproto.v1 import worker_service_pb2 as pb
from support.calling import handler_loops, outcome_of
from support.fake_member import FakeMember
from support.unanswered import results_of
from support.uploads import upload_in
from support.wait import WAIT_TIMEOUT, wait_until_async
from workerd.core.admission import Admission, AssignmentState
from workerd.core.cluster_time import JudgingClock, MemberTime, RoundTrip
from workerd.core.ids import Address, Incarnation
from workerd.core.lease_trust import WorkerLeaseTrust
from workerd.core.outcome import AttemptOutcome, AttemptVerdict, Cause, Content, exited, stopped
from workerd.delivery.result_sender import ResultSender
from workerd.delivery.spool import Spool
from workerd.executors.base import ActionExecutor, AttemptStart, StartedBatch, Stop
from workerd.executors.handlers import attempt_call
from workerd.executors.handlers.attempt_call import CalledFunction
from workerd.executors.handlers.handler_loops import HandlerLoops
from workerd.executors.handlers.invocation import Escaped, fenced
from workerd.executors.handlers.payload_types import fit_of
from workerd.executors.http import _content
from workerd.executors.python import HandlerCaller
from workerd.metrics import WorkerMetrics
from workerd.runs import assignments as module
from workerd.runs.assignments import HeldRuns
from workerd.runs.delayed_start import DelayedStarts

NEVER = 3600.0
KILL, FINISH = job_pb2.ON_LEASE_LOST_KILL, job_pb2.ON_LEASE_LOST_FINISH


class Killed(ActionExecutor):
    """An executor whose program is killed from outside, past the end of trust or before it."""

    def __init__(self, trust: WorkerLeaseTrust, *, lost: bool) -> None:
        self._trust = trust
        self._lost = lost

    async def run(self, _attempt: AttemptStart, _stop: Stop) -> AttemptOutcome:
        if self._lost:
            self._trust.ttl = 0.0
        return exited(-9, ())


class Origin:
    address = Address("m1")

    def send_refusal(self, refusal: pb.Refusal) -> None:
        raise AssertionError(refusal)

    def send_log(self, chunk: pb.LogChunk) -> None:
        raise AssertionError(chunk)


class Refused(Origin):
    """A stream that records refusals."""

    def __init__(self) -> None:
        self.came: list[pb.Refusal] = []

    def send_refusal(self, refusal: pb.Refusal) -> None:
        self.came.append(refusal)


@pytest.mark.parametrize(
    ("rule", "lost", "outcome", "reason"),
    [
        (KILL, True, pb.Result.OUTCOME_RETURNED, common_pb2.REASON_WORKER_LOST),
        (KILL, False, pb.Result.OUTCOME_FAILED, common_pb2.REASON_SIGNAL),
        (FINISH, True, pb.Result.OUTCOME_FAILED, common_pb2.REASON_SIGNAL),
    ],
)
async def test_a_run_killed_by_the_keeper_is_lost_though_the_worker_saw_no_end_of_trust(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rule: job_pb2.OnLeaseLost,
    lost: bool,
    outcome: pb.Result.Outcome,
    reason: common_pb2.Reason,
) -> None:
    monkeypatch.setattr(module, "_TRUST_LOOK", NEVER)
    trust = WorkerLeaseTrust(60.0, boottime())
    result = await ended(tmp_path, trust, Killed(trust, lost=lost), on_lease_lost=rule)
    assert (result.outcome, result.reason) == (outcome, reason)


class Broken(ActionExecutor):
    """An executor with a bug."""

    async def run(self, _attempt: AttemptStart, _stop: Stop) -> AttemptOutcome:
        raise RuntimeError("symlink loop from '/secret'")


async def test_a_bug_in_an_executor_ends_only_its_own_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the bug ends the worker with all its runs, and then the next worker."""
    result = await ended(tmp_path, WorkerLeaseTrust(60.0, boottime()), Broken())
    assert (result.outcome, result.reason) == (
        pb.Result.OUTCOME_FAILED,
        common_pb2.REASON_EXCEPTION,
    )
    assert result.error == "bug in the worker's shell executor: RuntimeError"
    [line] = [record for record in caplog.records if record.exc_info]
    logged = (line.run_id, line.token, line.job)  # type: ignore[attr-defined]  # extras
    assert logged == (result.key.run_id, result.key.fencing_token, "probe")


class Cancelled(Broken):
    """An executor that raises a cancel that was never requested."""

    async def run(self, _attempt: AttemptStart, _stop: Stop) -> AttemptOutcome:
        raise asyncio.CancelledError


async def test_an_unrequested_cancel_is_a_failure(tmp_path: Path) -> None:
    """Otherwise the run would stay running for ever, and its slot be lost."""
    result = await ended(tmp_path, WorkerLeaseTrust(60.0, boottime()), Cancelled())
    assert (result.reason, result.error) == (common_pb2.REASON_EXCEPTION, "CancelledError: ")


async def test_a_pre_dispatched_run_never_starts_before_its_due_time(tmp_path: Path) -> None:
    """The best estimate over all members may be behind the clock of the run's own stream."""
    trust = WorkerLeaseTrust(60.0, boottime())
    now, ahead = utcnow().timestamp(), MemberTime()
    ahead.observe(RoundTrip(boottime(), boottime(), now + 0.5))
    result = await ended(tmp_path, trust, Killed(trust, lost=False), time=ahead, start_in=0.2)
    assert result.started_at.ToDatetime(UTC).timestamp() >= now + 0.2
    assert result.finished_at.ToNanoseconds() >= result.started_at.ToNanoseconds()


class Noted(Broken):
    """An executor that records the time of its start."""

    began = 0.0

    async def run(self, _attempt: AttemptStart, _stop: Stop) -> AttemptOutcome:
        self.began = boottime()
        return exited(0, ())


@pytest.mark.parametrize("off", [-3600.0, 0.4])
async def test_a_pre_dispatched_run_starts_at_its_due_time_after_a_clock_change(
    tmp_path: Path, off: float
) -> None:
    """The start was timed by a wrong clock, and would be that much too late or early."""
    executor, time = Noted(), MemberTime()
    time.observe(RoundTrip(boottime(), boottime(), utcnow().timestamp() + off))
    async with working(tmp_path, WorkerLeaseTrust(60.0, boottime()), executor) as (work, courier):
        instant = boottime() + 0.5
        work.assign([assignment(start_in=0.5)], time, Origin())
        assert time.observe(RoundTrip(boottime(), boottime(), utcnow().timestamp()))
        work.rearm(time)
        await wait_until_async(lambda: results_of(courier), WAIT_TIMEOUT, "its result")
    assert executor.began >= instant


async def test_an_ending_worker_reports_a_run_that_waits_for_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = asyncio.Event()

    async def for_ever(_starts: DelayedStarts, *, pre_dispatched: bool) -> None:
        waits.set()
        await asyncio.sleep(NEVER)

    monkeypatch.setattr(DelayedStarts, "let_start", for_ever)
    trust = WorkerLeaseTrust(60.0, boottime())
    async with working(tmp_path, trust, Killed(trust, lost=False)) as (work, courier):
        work.assign([assignment()], MemberTime(), Origin())
        async with asyncio.timeout(WAIT_TIMEOUT):
            await waits.wait()
        assert results_of(courier) == []
    (result,) = results_of(courier)
    assert result.reason == common_pb2.REASON_SIGNAL


async def test_an_end_that_waits_for_other_starts_is_reported_as_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its start would be reported beside the result that contains it."""
    waits, go = asyncio.Event(), asyncio.Event()

    async def herd(_starts: DelayedStarts, *, pre_dispatched: bool) -> None:
        waits.set()
        await go.wait()

    monkeypatch.setattr(DelayedStarts, "let_start", herd)
    async with working(tmp_path, WorkerLeaseTrust(60.0, boottime()), Noted()) as (work, courier):
        work.assign([assignment()], MemberTime(), Origin())
        async with asyncio.timeout(WAIT_TIMEOUT):
            await waits.wait()
        assert [state for _, _, state, _ in work.holdings()] == [AssignmentState.ENDED]
        go.set()
        await wait_until_async(lambda: results_of(courier), WAIT_TIMEOUT, "its result")
        assert [*work.holdings()] == []


class StubbornExecutor(Broken):
    """An executor that ignores its cancel."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.task: asyncio.Task[Any] | None = None
        self.began = 0

    async def run(self, _attempt: AttemptStart, _stop: Stop) -> AttemptOutcome:
        self.began += 1
        self.task = asyncio.current_task()
        while not self.go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.go.wait()
        return stopped(Cause.CANCEL)


class Calls(Broken):
    """An executor that awaits a coroutine function, as that of `python` does."""

    def __init__(self, function: Any, loops: HandlerLoops) -> None:
        self._function, self._caller = function, HandlerCaller(loops)

    async def run(self, attempt: AttemptStart, stop: Stop) -> AttemptOutcome:
        target = CalledFunction("h", self._function, fit_of(self._function))

        def begin(batch: StartedBatch, places: Sequence[int]) -> None:
            self._caller.begin(target, batch, places, loop=True)

        return await outcome_of(begin, attempt, stop)


LARGE = ["x" * 10] * 50_000
KEPT: list[object] = []


async def cancels_and_uncancels(_payload: Any, _ctx: Any) -> Any:
    me = asyncio.current_task()
    assert me is not None
    me.cancel()
    me.uncancel()
    return LARGE


async def has_its_task_cancelled_next(_payload: Any, _ctx: Any) -> Any:
    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().call_soon(me.cancel)
    return LARGE


async def has_its_task_cancelled_later(_payload: Any, _ctx: Any) -> Any:
    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().call_later(0.005, me.cancel)
    return LARGE


async def leaves_a_timeout_open(_payload: Any, _ctx: Any) -> Any:
    async def numbers() -> AsyncIterator[int]:
        async with asyncio.timeout(0.005):
            yield 1

    kept = numbers()
    KEPT.append(kept)
    async for _ in kept:
        break
    return LARGE


async def leaves_a_group_open(_payload: Any, _ctx: Any) -> Any:
    async def fails() -> None:
        await asyncio.sleep(0.003)
        raise ValueError

    kept = asyncio.TaskGroup()
    KEPT.append(kept)
    await kept.__aenter__()
    kept.create_task(fails())
    return LARGE


@pytest.mark.parametrize(
    "function",
    [
        cancels_and_uncancels,
        has_its_task_cancelled_next,
        has_its_task_cancelled_later,
        leaves_a_timeout_open,
        leaves_a_group_open,
    ],
)
async def test_leftover_state_in_a_handlers_task_loses_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Any
) -> None:
    """A large result is written in a thread, and awaited in the handler's task."""

    async def slowly(write: Any) -> Any:
        await asyncio.sleep(0.05)
        return write()

    monkeypatch.setattr(attempt_call, "beside", slowly)
    async with (
        handler_loops() as loops,
        working(tmp_path, WorkerLeaseTrust(60.0, boottime()), Calls(function, loops)) as (
            work,
            courier,
        ),
    ):
        work.assign([assignment()], MemberTime(), Origin())
        (sent,) = await wait_until_async(lambda: results_of(courier), WAIT_TIMEOUT, "its result")
        assert sent.outcome == pb.Result.OUTCOME_SUCCEEDED
        assert work.runs == []


async def test_no_run_begins_while_the_worker_waits_for_one_that_swallows_its_cancel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_END_WITHIN", 0.5)
    executor, refused = StubbornExecutor(), Refused()
    async with working(tmp_path, WorkerLeaseTrust(60.0, boottime()), executor, slots=3) as (
        work,
        _,
    ):
        work.assign([assignment()], MemberTime(), refused)
        await wait_until_async(lambda: executor.task is not None, WAIT_TIMEOUT, "its start")
        work.assign([assignment(start_in=0.2)], now_time(), refused)
        ends = next(each for each in asyncio.all_tasks() if each.get_name() == "work")
        ends.cancel()
        await wait_until_async(lambda: len(refused.came) == 1, WAIT_TIMEOUT, "what waits goes back")
        work.assign([assignment()], MemberTime(), refused)
        assert [each.why for each in refused.came] == [pb.Refusal.WHY_DRAINING] * 2
        await asyncio.sleep(0.25)
        assert executor.began == 1
    executor.go.set()
    await asyncio.wait([executor.task] if executor.task else [])


async def test_a_stopping_worker_waits_a_bounded_time_for_a_run_that_swallows_its_cancel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_END_WITHIN", 0.05)
    executor = StubbornExecutor()
    async with working(tmp_path, WorkerLeaseTrust(60.0, boottime()), executor) as (work, courier):
        work.assign([assignment()], MemberTime(), Origin())
        await wait_until_async(lambda: executor.task is not None, WAIT_TIMEOUT, "its start")
    assert results_of(courier) == []
    assert executor.task is not None
    assert not executor.task.done()
    executor.go.set()
    await asyncio.wait([executor.task])


async def test_capacity_is_limited_to_what_a_heartbeat_can_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_LISTED", 3)
    trust = WorkerLeaseTrust(60.0, boottime())
    async with working(tmp_path, trust, Broken()) as (work, courier):
        assert work.remaining_capacity == 3
        work.assign([assignment()], MemberTime(), Origin())
        assert work.remaining_capacity == 2, "it runs"
        await wait_until_async(lambda: results_of(courier), WAIT_TIMEOUT, "its result")
        assert work.remaining_capacity == 2, "no member has acknowledged it"


def test_a_leaving_worker_accepts_no_work_after_an_undrain(tmp_path: Path) -> None:
    spool, admission = Spool(tmp_path), Admission(1, Incarnation("i"))
    courier = ResultSender(spool, lambda _key, _verdict: None)
    trust = WorkerLeaseTrust(60.0, boottime())
    work = HeldRuns(
        "w1", admission, trust, JudgingClock(), {}, courier, upload_in(spool), WorkerMetrics()
    )
    work.drain(on=True)
    work.drain(on=False)
    assert not admission.draining
    work.drain_permanently()
    work.drain(on=False)
    assert admission.draining
    spool.close()


@asynccontextmanager
async def working(
    home: Path, trust: WorkerLeaseTrust, executor: ActionExecutor, slots: int = 1
) -> AsyncIterator[tuple[HeldRuns, ResultSender]]:
    """Run a worker that accepts assignments; cancel it at the end and keep its results."""
    spool, clock = Spool(home), JudgingClock()
    clock.observe(RoundTrip(boottime(), boottime(), utcnow().timestamp()))
    courier = ResultSender(spool, lambda _key, _verdict: None)
    admission = Admission(slots, Incarnation("i"))
    keeping = upload_in(spool)
    work = HeldRuns(
        "w1", admission, trust, clock, {"shell": executor}, courier, keeping, WorkerMetrics()
    )
    running = asyncio.create_task(work.run(), name="work")
    try:
        await asyncio.sleep(0)  # its loop must be running
        yield work, courier
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        spool.close()


def now_time() -> MemberTime:
    time = MemberTime()
    time.observe(RoundTrip(boottime(), boottime(), utcnow().timestamp()))
    return time


def assignment(**how: Any) -> pb.Assignment:
    return FakeMember().assignment(incarnation="i", argv=["true"], **how)


async def ended(
    home: Path,
    trust: WorkerLeaseTrust,
    executor: ActionExecutor,
    time: MemberTime | None = None,
    **how: Any,
) -> pb.Result:
    """Return the result of one run, of a member whose time is `time`."""
    async with working(home, trust, executor) as (work, courier):
        work.assign([assignment(**how)], time or MemberTime(), Origin())
        return (await wait_until_async(lambda: results_of(courier), WAIT_TIMEOUT, "its result"))[0]


class Untellable(Broken):
    """An executor whose outcome fits into no message."""

    async def run(self, _attempt: AttemptStart, _stop: Stop) -> AttemptOutcome:
        return AttemptOutcome(AttemptVerdict.SUCCEEDED, result=Content(b"\xff", json=True))


async def test_an_outcome_that_fits_into_no_message_ends_only_its_own_run(tmp_path: Path) -> None:
    result = await ended(tmp_path, WorkerLeaseTrust(60.0, boottime()), Untellable())
    assert result.outcome == pb.Result.OUTCOME_FAILED
    assert "can't be encoded: UnicodeDecodeError" in result.error


@pytest.mark.parametrize("data", ['"a"'.encode("utf-16"), b'"\xed\xa0\x80"', b"[1, 2"])
def test_json_that_no_message_holds_is_kept_as_bytes(data: bytes) -> None:
    assert not _content(data, "application/json").json


def test_too_deeply_nested_json_is_not_a_result() -> None:
    with pytest.raises(TooDeep, match="at most 100 levels"):
        _content(b"[" * 200_000, "application/json")


def test_a_panic_in_a_plain_call_is_raised_as_an_exception() -> None:
    def panics() -> None:
        raise BaseExceptionGroup("panic", [KeyboardInterrupt()])

    with pytest.raises(Escaped):
        fenced(panics)
