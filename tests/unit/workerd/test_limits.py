"""A host at its limits: the attempt is returned, and nothing of it runs."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import pwd
import subprocess
import threading
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from schedclient import Context
from schedclient.handlers import Mode, RegisteredHandler
from schedkit.clock import utcnow
from schedkit.egress.policy import Egress
from schedproto.v1 import job_pb2
from schedproto.v1 import worker_service_pb2 as pb
from support.attempts import attempt_start
from support.calling import outcome_of
from support.descriptors import only, open_files
from workerd.core.ids import AssignmentKey, RunId, Token
from workerd.core.outcome import AttemptOutcome, AttemptVerdict
from workerd.executors import child_process, shell
from workerd.executors import grpc as executors_grpc
from workerd.executors.base import AttemptStart, Stop
from workerd.executors.child_process import ChildProcess
from workerd.executors.grpc import GrpcExecutor
from workerd.executors.handlers.handler_loops import HandlerLoops
from workerd.executors.handlers.handler_subprocess import SubprocessHandlers
from workerd.executors.http import HttpExecutor
from workerd.executors.python import HandlerCaller, PythonExecutor
from workerd.logs.log_tail import Tail
from workerd.metrics import WorkerMetrics
from workerd.process import proc_files
from workerd.process.process_supervisor import ProcessSupervisor
from workerd.process.programs import Begun, PlainProgram, Program

KEY = AssignmentKey(RunId("run"), Token(1))
SLEEP = Program(["sleep", "86398"], {"PATH": "/usr/bin:/bin"}, Path("/"), subprocess.DEVNULL)


@pytest.fixture(autouse=True)
def nothing_old_is_open() -> None:
    """Close leftovers of earlier tests now, and not between two counts of these tests."""
    gc.collect()


def attempt(**action: object) -> AttemptStart:
    assignment = pb.Assignment(key=pb.AssignmentKey(run_id="run", fencing_token=1), **action)  # type: ignore[arg-type]  # one of the actions
    return attempt_start(assignment, "worker", utcnow() + timedelta(hours=1))


def children() -> set[int]:
    return {each.pid for each in proc_files.everyone() if each.parent == os.getpid()}


class Journaled:
    """A supervisor that records reports of children and starts real programs, without a cgroup."""

    def __init__(self) -> None:
        self.reported: list[str] = []

    def start(self, program: Program, _key: AssignmentKey, out: int, err: int) -> PlainProgram:
        return PlainProgram(program, "mark", out, err)

    def add_attempt(self, _pid: int, _key: AssignmentKey, _lost_kill_after: float | None) -> None:
        self.reported.append("began")

    def end_attempt(self, _pid: int, _key: AssignmentKey) -> None:
        self.reported.append("ended")


def none_left(*_: object) -> int:
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_program_whose_end_cant_be_watched_is_ended_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, files = children(), open_files()
    monkeypatch.setattr(os, "pidfd_open", none_left)
    with pytest.raises(Begun, match="Too many open files"):
        PlainProgram(SLEEP, "mark", 1, 2)
    assert children() == before
    assert open_files() == files


async def test_a_child_that_the_loop_cant_watch_is_ended_and_removed_from_the_journal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An epoll may be full while descriptors are left; the program runs by then."""
    loop, sessions = asyncio.get_running_loop(), Journaled()
    files, before = open_files(), children()
    add_reader = loop.add_reader

    def full(fd: int, callback: object, *_: object) -> None:
        if sessions.reported:
            raise OSError(errno.ENOSPC, "No space left on device")
        add_reader(fd, callback)  # type: ignore[arg-type]  # as it came

    monkeypatch.setattr(loop, "add_reader", full)
    with pytest.raises(Begun, match="No space"):
        ChildProcess(SLEEP, KEY, cast("ProcessSupervisor", sessions), Tail())
    assert sessions.reported == ["began", "ended"]
    assert children() == before
    assert open_files() == files


@pytest.mark.parametrize("left", range(4))
async def test_a_child_without_its_pipes_leaks_none(left: int) -> None:
    files, before = open_files(), children()
    with only(left), pytest.raises(OSError, match="Too many open files"):
        ChildProcess(SLEEP, KEY, cast("ProcessSupervisor", Journaled()), Tail())
    assert open_files() == files
    assert children() == before


async def test_a_call_that_gets_no_thread_is_returned_and_never_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fork bomb takes all process numbers. Another worker must make the call."""
    called: list[str] = []

    def call(payload: object, ctx: Context) -> None:
        called.append(ctx.run_id)

    def no_thread(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    apart = SubprocessHandlers(cast("ProcessSupervisor", None), [])
    executor = PythonExecutor(
        {"call": RegisteredHandler(call, Mode.THREAD)},
        apart,
        HandlerCaller(HandlerLoops(WorkerMetrics())),
    )
    action = job_pb2.PythonAction(handler="call")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        given_back = await begun(executor, attempt(python=action))
    assert given_back.verdict is AttemptVerdict.RETURNED
    assert not given_back.began
    for _ in range(2):
        outcome = await begun(executor, attempt(python=action))
        assert outcome.verdict is AttemptVerdict.SUCCEEDED
    assert called == ["run", "run"], "those two alone"


async def begun(executor: PythonExecutor, call: AttemptStart) -> AttemptOutcome:
    """Return the outcome of a call in this process."""
    return await outcome_of(executor.begin, call)


async def test_a_handlers_process_that_gets_no_descriptor_is_returned() -> None:
    executor = SubprocessHandlers(cast("ProcessSupervisor", None), [])
    call = attempt(python=job_pb2.PythonAction(handler="call"))
    with only(0):
        outcome = await executor.run(call, Stop())
    assert outcome.verdict is AttemptVerdict.RETURNED
    assert "Too many open files" in outcome.error
    assert not outcome.began


async def test_a_request_that_gets_no_descriptor_is_returned() -> None:
    executor = HttpExecutor(Egress(allow=("127.0.0.1", "localhost")))
    try:
        with only(0):
            action = job_pb2.HttpAction(url="http://127.0.0.1:9/")
            outcome = await executor.run(attempt(http=action), Stop())
    finally:
        await executor.close()
    assert outcome.verdict is AttemptVerdict.RETURNED
    assert "Too many open files" in outcome.error
    assert not outcome.began


@pytest.mark.parametrize("detected", [True, False])
async def test_a_call_that_gets_no_descriptor_is_returned(
    detected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lack is detected before the call connects, or during it by gRPC's core alone."""
    executor = GrpcExecutor(Egress(allow=("127.0.0.1", "localhost")))
    call = attempt(grpc=job_pb2.GrpcAction(endpoint="127.0.0.1:9"))
    try:
        assert (await executor.run(call, Stop())).verdict is AttemptVerdict.FAILED
        if not detected:
            monkeypatch.setattr(executors_grpc, "need_descriptor", lambda: None)
        with only(0):
            outcome = await executor.run(call, Stop())
    finally:
        await executor.close()
    assert outcome.verdict is AttemptVerdict.RETURNED
    assert outcome.error == "not started on this worker: Too many open files"
    assert not outcome.began


async def test_a_worker_whose_user_id_has_no_name_runs_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may run under any user id."""

    def unknown(_uid: int) -> pwd.struct_passwd:
        raise KeyError("uid not found")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    sessions = Journaled()
    monkeypatch.setattr(child_process.ChildProcess, "emptied", _at_once)
    executor = shell.ShellExecutor(cast("ProcessSupervisor", sessions), tmp_path)
    action = job_pb2.ShellAction(argv=["sh", "-c", 'echo "$HOME $USER"'])
    outcome = await executor.run(attempt(shell=action), Stop())
    assert outcome.verdict is AttemptVerdict.SUCCEEDED
    assert outcome.output[0].data.decode() == f"/ {os.getuid()}\n"


async def _at_once(_child: ChildProcess, _within: float) -> None:
    """Return as if nothing of the child were left."""
