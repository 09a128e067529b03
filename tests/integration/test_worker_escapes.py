"""Jobs that fork, leave their session and clear their environment: they are ended all the same.

Each both ways: with a cgroup for each attempt, and where none can be made.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import pytest

from schedkit.clock import boottime
from schedproto.v1 import common_pb2, job_pb2
from schedproto.v1 import worker_service_pb2 as pb
from support.fake_member import FakeMember
from support.wait import WAIT_TIMEOUT, wait_until_async
from support.worker_process import WorkerProcess, alive, cluster, pid_in, wait_until_ended
from workerd.process import cgroups

GROUPED = pytest.mark.skipif(
    (place := cgroups.tree_of("x")) is None or not os.access(place.parent, os.W_OK),
    reason="no cgroup can be made here",
)
WAYS = [pytest.param("", marks=GROUPED, id="cgroups"), pytest.param("cgroups = false", id="births")]


class Start(Protocol):
    """A cluster whose worker keeps its attempts in one of the two ways."""

    def __call__(
        self,
        home: Path,
        *,
        config: str = "",
        environ: dict[str, str] | None = None,
        ttl: float = 15.0,
    ) -> AbstractAsyncContextManager[tuple[FakeMember, WorkerProcess]]: ...


@pytest.fixture(params=WAYS)
def started(request: pytest.FixtureRequest) -> Start:
    @contextlib.asynccontextmanager
    async def start(
        home: Path,
        *,
        config: str = "",
        environ: dict[str, str] | None = None,
        ttl: float = 15.0,
    ) -> AsyncIterator[tuple[FakeMember, WorkerProcess]]:
        both = f"{request.param}\n{config}"
        async with cluster(home, config=both, environ=environ, ttl=ttl) as (member, worker):
            line = (
                "each attempt of a program gets a cgroup below"
                if not request.param
                else "attempts have no cgroups"
            )
            assert line in worker.log.read_text()
            yield member, worker

    return start


def escape(mark: Path) -> str:
    """A command that leaves a process behind, which writes its number there."""
    return f"env -i setsid -f /bin/sh -c 'echo $$ > {mark}; exec sleep 984'"


def wait_for_file(mark: Path) -> str:
    return f"until [ -s {mark} ]; do sleep 0.02; done"


def tree(worker: WorkerProcess) -> Path | None:
    """Where the worker's log says that its cgroups are."""
    _, found, path = worker.log.read_text().rpartition("gets a cgroup below ")
    return Path(path.split("\n", 1)[0]) if found else None


async def test_a_result_is_sent_when_no_process_of_the_attempt_runs(
    tmp_path: Path, started: Start
) -> None:
    async with started(tmp_path) as (member, _):
        stream = await member.attached()
        mark = tmp_path / "escaped"
        key = await stream.assign(argv=["sh", "-c", f"{escape(mark)}; {wait_for_file(mark)}"])
        result = await stream.result_of(key)
        assert result.outcome == pb.Result.OUTCOME_SUCCEEDED
        assert not alive(await pid_in(mark))


async def test_a_timeout_and_a_cancel_end_it_too(tmp_path: Path, started: Start) -> None:
    async with started(tmp_path) as (member, _):
        stream = await member.attached()
        late, cancelled = tmp_path / "late", tmp_path / "cancelled"
        key = await stream.assign(argv=["sh", "-c", f"{escape(late)}; sleep 300"], timeout=1)
        assert (await stream.result_of(key)).reason == common_pb2.REASON_TIMEOUT
        assert not alive(await pid_in(late))
        key = await stream.assign(argv=["sh", "-c", f"{escape(cancelled)}; sleep 300"])
        pid = await pid_in(cancelled)
        assert alive(pid)
        await stream.send(cancels=[pb.Cancel(key=key)])
        assert (await stream.result_of(key)).reason == common_pb2.REASON_BY_USER
        assert not alive(pid)


async def test_kill_minus_9_of_the_worker_ends_it_within_2_s(
    tmp_path: Path, started: Start
) -> None:
    async with started(tmp_path) as (member, worker):
        stream = await member.attached()
        mark = tmp_path / "escaped"
        await stream.assign(argv=["sh", "-c", f"{escape(mark)}; sleep 300"])
        pid = await pid_in(mark)
        if tree(worker) is None:
            keeper = worker.keeper_pid()
            up = await wait_until_async(lambda: keeper_checks(keeper), WAIT_TIMEOUT, "the keeper")
            await wait_until_async(
                lambda: keeper_checks(keeper) > up + 1, WAIT_TIMEOUT, "a picture"
            )
        folder = tree(worker)
        worker.kill()
        await wait_until_ended(pid, within=2.0)
        if folder is not None:
            await wait_until_async(lambda: not folder.exists(), WAIT_TIMEOUT, "no cgroup left")


@GROUPED
async def test_a_worker_that_is_killed_as_it_starts_leaves_neither_cgroup_nor_process(
    tmp_path: Path,
) -> None:
    """Its keeper is there before there is anything to keep."""
    worker = WorkerProcess(tmp_path, ["127.0.0.1:9"])
    worker.start()
    try:
        made = await wait_until_async(
            lambda: [
                each
                for journal in worker.spool.glob("*.journal")
                if (each := cgroups.tree_of(journal.stem)) is not None and each.exists()
            ],
            30.0,
            "its cgroups",
            every=0.01,
        )
        keeper = await wait_until_async(  # for a moment after exec, a process has no arguments
            lambda: worker.own("workerd.process.keeper"), WAIT_TIMEOUT, "the keeper's arguments"
        )
        children = worker.children()
    finally:
        worker.kill()
    assert len(keeper) == 1
    await wait_until_async(lambda: not made[0].exists(), 5.0, "no cgroup left")
    for pid in children:
        await wait_until_ended(pid, within=WAIT_TIMEOUT if pid in keeper else 2.0)
    assert not made[0].exists(), "no process makes it again"
    assert not [pid for pid in children if alive(pid)]


TWICE_DETACHED = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(sys.argv[1], "w") as mark:
            mark.write(str(os.getpid()))
        os.execve("/bin/sleep", ["sleep", "984"], {})
    os._exit(0)
while True:
    signal.pause()
"""


async def test_a_detached_process_that_ignores_sigterm_ends_1_s_after_its_kill(
    tmp_path: Path, started: Start
) -> None:
    async with started(tmp_path) as (member, _):
        stream = await member.attached()
        mark = tmp_path / "detached"
        argv = [sys.executable, "-c", TWICE_DETACHED, str(mark)]
        key = await stream.assign(argv=argv, kill_after=1.0)
        pid = await pid_in(mark)
        asked = boottime()
        await stream.send(cancels=[pb.Cancel(key=key)])
        await wait_until_ended(pid, within=1.0 + 1.0)
        assert boottime() - asked >= 1.0, "it ignores the asking"
        assert (await stream.result_of(key)).reason == common_pb2.REASON_BY_USER


def keeper_checks(keeper: int) -> int:
    """How often a keeper has slept: it looks at its worker in between; 0 before it does."""
    status = Path(f"/proc/{keeper}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    deaf = int(fields["SigIgn"], 16) >> (signal.SIGTERM - 1) & 1
    return int(fields["voluntary_ctxt_switches"]) if deaf else 0


async def test_an_escaped_process_of_a_running_attempt_is_kept(
    tmp_path: Path, started: Start
) -> None:
    async with started(tmp_path) as (member, worker):
        stream = await member.attached()
        mark = tmp_path / "neighbours"
        running = await stream.assign(argv=["sh", "-c", f"{escape(mark)}; sleep 300"])
        pid = await pid_in(mark)
        await stream.result_of(await stream.assign(argv=["true"]))
        assert alive(pid)
        await stream.send(cancels=[pb.Cancel(key=running)])
        await stream.result_of(running)
        assert not alive(pid)
        await wait_until_async(
            lambda: not worker.strangers(), WAIT_TIMEOUT, "all that died is reaped"
        )


async def test_an_orphan_of_one_of_two_attempts_ends_with_the_later_one(tmp_path: Path) -> None:
    """Without cgroups an orphan is known by its birth alone."""
    async with cluster(tmp_path, config="cgroups = false") as (member, _):
        stream = await member.attached()
        mark = tmp_path / "escaped"
        long = await stream.assign(argv=["sleep", "300"])
        await stream.holds(long, pb.Holding.STATE_RUNNING)
        key = await stream.assign(argv=["sh", "-c", f"{escape(mark)}; {wait_for_file(mark)}"])
        await stream.result_of(key)
        pid = await pid_in(mark)
        assert alive(pid), "it may be the long one's"
        await stream.send(cancels=[pb.Cancel(key=long)])
        await stream.result_of(long)
        assert not alive(pid)


@GROUPED
async def test_with_cgroups_each_attempt_ends_its_own_while_others_run(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (member, worker):
        stream = await member.attached()
        mark = tmp_path / "escaped"
        long = await stream.assign(argv=["sleep", "300"])
        await stream.holds(long, pb.Holding.STATE_RUNNING)
        key = await stream.assign(argv=["sh", "-c", f"{escape(mark)}; {wait_for_file(mark)}"])
        await stream.result_of(key)
        assert not alive(await pid_in(mark))
        folder = tree(worker)
        assert folder is not None
        slots = [each for each in folder.iterdir() if each.is_dir()]
        assert len(slots) == 1, "what had something left in it is not used again"


@GROUPED
async def test_a_process_that_forks_repeatedly_is_ended(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (member, _):
        stream = await member.attached()
        hopper = tmp_path / "hopper"
        hopper.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/hop\nenv -i setsid -f {hopper}\n")
        hopper.chmod(0o755)
        script = f"{hopper}; {wait_for_file(tmp_path / 'hop')}"
        await stream.result_of(await stream.assign(argv=["sh", "-c", script]))
        before = (tmp_path / "hop").read_text()
        await stream.result_of(await stream.assign(argv=["sleep", "0.3"]))
        assert (tmp_path / "hop").read_text() == before


@GROUPED
async def test_a_restarted_worker_empties_the_cgroups_of_one_without_keeper(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as (member, worker):
        stream = await member.attached()
        mark = tmp_path / "escaped"
        await stream.assign(argv=["sh", "-c", f"{escape(mark)}; sleep 300"])
        pid = await pid_in(mark)
        folder, keeper = tree(worker), worker.keeper_pid()
        assert folder is not None
        os.kill(keeper, signal.SIGSTOP)
        worker.kill()
        os.kill(keeper, signal.SIGKILL)
        assert alive(pid)
        worker.start()
        await member.attached(2)
        assert not alive(pid), "leftovers are killed before the hello"
        assert not folder.exists()


async def test_a_worker_that_ends_leaves_neither_process_nor_cgroup(
    tmp_path: Path, started: Start
) -> None:
    async with started(tmp_path, config='drain_timeout = "300ms"') as (member, worker):
        stream = await member.attached()
        mark = tmp_path / "escaped"
        await stream.assign(argv=["sh", "-c", f"{escape(mark)}; sleep 300"])
        pid = await pid_in(mark)
        folder = tree(worker)
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
        assert not alive(pid)
        assert folder is None or not folder.exists()


HANDLERS = """
import subprocess
from schedclient.handlers import handler

@handler
def helper(payload, ctx):
    return subprocess.Popen(["sleep", "300"], start_new_session=True).pid

@handler
def escaping(payload, ctx):
    return subprocess.Popen(["sleep", "300"], start_new_session=True, env={}).pid
"""


async def test_a_process_started_by_a_handler_is_kept_when_another_run_ends(
    tmp_path: Path, started: Start
) -> None:
    (tmp_path / "helpers.py").write_text(HANDLERS)
    environ = {"PYTHONPATH": str(tmp_path)}
    async with started(tmp_path, config='handlers = ["helpers"]', environ=environ) as (member, _):
        stream = await member.attached()
        running = await stream.assign(argv=["sleep", "300"])
        await stream.holds(running, pb.Holding.STATE_RUNNING)
        key = await stream.assign(python=job_pb2.PythonAction(handler="helper"))
        pid = int((await stream.result_of(key)).result.json)
        try:
            await stream.send(cancels=[pb.Cancel(key=running)])
            await stream.result_of(running)
            assert alive(pid)
        finally:
            os.kill(pid, signal.SIGKILL)


async def test_processes_that_a_handler_started_end_with_the_worker(
    tmp_path: Path, started: Start
) -> None:
    (tmp_path / "helpers.py").write_text(HANDLERS)
    environ = {"PYTHONPATH": str(tmp_path)}
    async with started(tmp_path, config='handlers = ["helpers"]', environ=environ) as (
        member,
        worker,
    ):
        stream = await member.attached()
        keeper = worker.keeper_pid()
        pids = []
        for handler in ("helper", "escaping"):
            key = await stream.assign(python=job_pb2.PythonAction(handler=handler))
            pids.append(int((await stream.result_of(key)).result.json))
        assert all(alive(pid) for pid in pids)
        up = keeper_checks(keeper)
        await wait_until_async(lambda: keeper_checks(keeper) > up + 1, WAIT_TIMEOUT, "a picture")
        worker.kill()
        for pid in pids:
            await wait_until_ended(pid, within=2.0)


KILL = job_pb2.ON_LEASE_LOST_KILL


def daemon(mark: Path) -> str:
    """A command that leaves a process in a session of its own, which writes its number there."""
    return f"setsid -f sh -c 'trap \"\" TERM; echo $$ > {mark}; while :; do sleep 0.2; done'"


@contextlib.contextmanager
def standing_still(worker: WorkerProcess) -> Iterator[None]:
    """The worker itself, alone: what it has started runs on."""
    worker.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        worker.signal(signal.SIGCONT)


def tree_at(folder: Path) -> tuple[str, list[Path]]:
    """A program that has a child, and a daemon; where each writes its number."""
    marks = [folder / each for each in ("program", "child", "daemon")]
    program, child, left = marks
    folder.mkdir()
    deaf = f"sh -c 'trap \"\" TERM; echo $$ > {child}; while :; do sleep 0.2; done'"
    return f"echo $$ > {program}; {deaf} & {daemon(left)}; wait", marks


async def test_a_stopped_worker_keeps_nothing_that_dies_with_its_lease(
    tmp_path: Path, started: Start
) -> None:
    """W1: its keeper kills it, before it may begin elsewhere, and no other; awake, it says so."""
    async with started(tmp_path, ttl=3.0) as (member, worker):
        stream = await member.attached()
        script, marks = tree_at(tmp_path / "mortal")
        lasting, others = tree_at(tmp_path / "lasting")
        key = await stream.assign(argv=["sh", "-c", script], on_lease_lost=KILL, kill_after=1.0)
        await stream.assign(argv=["sh", "-c", lasting])
        doomed = [await pid_in(mark) for mark in marks]
        spared = [await pid_in(mark) for mark in others]
        with standing_still(worker):
            stopped = boottime()
            for pid in doomed:
                await wait_until_ended(pid)
            # The lease lives for 3 s at most, and `kill_after` and 2 s later it begins elsewhere.
            assert boottime() - stopped < 3.0 + 1.0 + 2.0
            assert all(alive(pid) for pid in spared)
        result = await stream.result_of(key)
        assert result.outcome == pb.Result.OUTCOME_RETURNED
        assert result.reason == common_pb2.REASON_WORKER_LOST
        assert all(alive(pid) for pid in spared)


async def test_a_run_with_on_lease_lost_kill_outlives_the_ttl_while_the_lease_is_kept(
    tmp_path: Path, started: Start
) -> None:
    async with started(tmp_path, ttl=3.0) as (member, _):
        stream = await member.attached()
        key = await stream.assign(
            argv=["sh", "-c", "sleep 5; exit 4"], on_lease_lost=KILL, kill_after=0.0
        )
        assert (await stream.result_of(key)).exit_code == 4


async def test_a_replaced_keeper_enforces_the_lease_too(tmp_path: Path, started: Start) -> None:
    async with started(tmp_path, ttl=3.0) as (member, worker):
        stream = await member.attached()
        script, marks = tree_at(tmp_path / "mortal")
        await stream.assign(argv=["sh", "-c", script], on_lease_lost=KILL, kill_after=0.0)
        doomed = [await pid_in(mark) for mark in marks]
        first = worker.keeper_pid()
        os.kill(first, signal.SIGKILL)
        fresh = await wait_until_async(
            lambda: [each for each in worker.own("workerd.process.keeper") if each != first],
            WAIT_TIMEOUT,
            "a new keeper",
        )
        await wait_until_async(lambda: keeper_checks(fresh[0]), WAIT_TIMEOUT, "its first look")
        with standing_still(worker):
            for pid in doomed:
                await wait_until_ended(pid)


@GROUPED
async def test_the_cgroup_of_a_run_with_on_lease_lost_kill_is_used_once(tmp_path: Path) -> None:
    """A late kill reaches no other attempt."""
    async with cluster(tmp_path) as (member, worker):
        stream = await member.attached()
        folder = tree(worker)
        assert folder is not None
        for rule, again in ((job_pb2.ON_LEASE_LOST_FINISH, True), (KILL, False)):
            slots = {each for each in folder.iterdir() if each.is_dir()}
            await stream.result_of(await stream.assign(argv=["true"], on_lease_lost=rule))
            assert any(each.exists() for each in slots) is again


@GROUPED
async def test_a_stopped_worker_keeps_nothing_that_hides_in_a_cgroup(tmp_path: Path) -> None:
    async with cluster(tmp_path, ttl=3.0) as (member, worker):
        stream = await member.attached()
        mark = tmp_path / "escaped"
        await stream.assign(
            argv=["sh", "-c", f"{escape(mark)}; sleep 300"], on_lease_lost=KILL, kill_after=0.0
        )
        pid = await pid_in(mark)
        with standing_still(worker):
            await wait_until_ended(pid)


@GROUPED
async def test_a_lost_launcher_and_its_cradle_are_replaced(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (member, worker):
        stream = await member.attached()
        await wait_until_async(lambda: len(launchers(worker)) == 2, WAIT_TIMEOUT, "an idle cradle")
        for pid in launchers(worker):
            os.kill(pid, signal.SIGKILL)
            await wait_until_ended(pid)
        result = await stream.result_of(await stream.assign(argv=["true"]))
        assert result.outcome == pb.Result.OUTCOME_SUCCEEDED


def launchers(worker: WorkerProcess) -> list[int]:
    """The launcher and its idle cradle, which is a fork of it."""
    return worker.own("workerd.process.cgroup_launcher")
