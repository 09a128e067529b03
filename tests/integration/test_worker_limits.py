"""Limits of a program: memory, processes, files; and the error when it wants more.

The limits are the kernel's own, in whichever version of cgroups has its controllers on this host.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from schedproto.v1 import common_pb2, job_pb2
from schedproto.v1 import worker_service_pb2 as pb
from support import controllers
from support.fake_member import FakeMember
from support.repository import ROOT
from support.wait import WAIT_TIMEOUT, wait_until_async
from support.worker_process import WorkerProcess, cluster
from workerd.process import proc_files

pytestmark = pytest.mark.skipif(
    controllers.version() == 0, reason="no controllers of memory and processes that may be used"
)
MIB = 1 << 20
Start = Callable[..., AbstractAsyncContextManager[tuple[FakeMember, WorkerProcess]]]


@pytest.fixture
def started() -> Start:
    """A cluster whose worker may limit its attempts, and leaves no cgroup behind."""

    @contextlib.asynccontextmanager
    async def start(
        home: Path, environ: dict[str, str] | None = None, **flags: str
    ) -> AsyncIterator[tuple[FakeMember, WorkerProcess]]:
        with controllers.delegated() as folder:
            how = cluster(home, cgroup=folder, environ=environ, **flags)
            async with how as (member, worker):
                yield member, worker
            mark = mark_of(worker)
            assert controllers.remaining(mark) == []

    return start


def mark_of(worker: WorkerProcess) -> str:
    found = re.search(r"gets a cgroup below \S*/workerd-(\S+)", worker.log.read_text())
    assert found is not None
    return found[1]


def shell(*argv: str, user: str = "", **limits: int) -> job_pb2.ShellAction:
    return job_pb2.ShellAction(argv=argv, user=user, limits=job_pb2.ShellAction.Limits(**limits))


def python(script: str, **limits: int) -> job_pb2.ShellAction:
    return shell(sys.executable, "-c", script, **limits)


def running(word: str) -> list[int]:
    """Processes whose command line has this word."""
    found = []
    for process in proc_files.everyone():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if word.encode() in Path(f"/proc/{process.pid}/cmdline").read_bytes():
                found.append(process.pid)
    return found


def text(result: pb.Result) -> str:
    return b"".join(piece.data for piece in result.output).decode()


EATER = """
import os, time
if os.fork():
    time.sleep(300)
eaten = [b"x" * (1 << 20) for _ in range(300)]
time.sleep(300)
"""


async def test_a_program_over_its_memory_limit_is_killed_whole_and_the_result_says_why(
    tmp_path: Path, started: Start
) -> None:
    async with started(tmp_path) as (member, _):
        stream = await member.attached()
        key = await stream.assign(shell=python(EATER, memory_bytes=64 * MIB))
        result = await stream.result_of(key)
        assert result.outcome == pb.Result.OUTCOME_FAILED
        assert result.reason == common_pb2.REASON_SIGNAL
        assert result.error == "killed: out of memory (limit 64 MiB)"
        assert result.exit_code == 137
        within = await stream.assign(shell=shell("echo", "fits", memory_bytes=64 * MIB))
        assert text(await stream.result_of(within)) == "fits\n"


HANDLER = """
from schedclient import handler

@handler(mode="process")
def eats(payload, ctx):
    eaten = [b"x" * (1 << 20) for _ in range(payload)]
    return len(eaten)
"""


async def test_a_handlers_process_has_limits_as_a_program_has(
    tmp_path: Path, started: Start
) -> None:
    (tmp_path / "hungry.py").write_text(HANDLER)
    environ = {"PYTHONPATH": str(tmp_path)}
    async with started(tmp_path, environ, handlers="hungry") as (member, _):
        stream = await member.attached()
        limits = job_pb2.ShellAction.Limits(memory_bytes=256 * MIB)
        action = job_pb2.PythonAction(handler="eats", limits=limits)
        result = await stream.result_of(await stream.assign(python=action, payload="1000"))
        assert (result.reason, result.exit_code) == (common_pb2.REASON_SIGNAL, 137)
        assert result.error == "killed: out of memory (limit 256 MiB)"
        within = await stream.assign(python=action, payload="10")
        assert (await stream.result_of(within)).result.json == "10"


BOMB = """
import os, time
while True:
    try:
        os.fork()
    except BlockingIOError:
        time.sleep(0.2)
"""


async def test_a_fork_bomb_has_its_processes_and_its_neighbours_start_and_end_on_time(
    tmp_path: Path, started: Start
) -> None:
    async with started(tmp_path) as (member, _):
        stream = await member.attached()
        mark = f"bomb = '{tmp_path}'"
        bomb = await stream.assign(shell=python(f"{mark}\n{BOMB}", processes=20), kill_after=0)
        await wait_until_async(lambda: len(running(mark)) == 20, WAIT_TIMEOUT, "all it may have")
        neighbour = await stream.assign(argv=["sh", "-c", "sh -c 'echo started'; echo ended"])
        result = await stream.result_of(neighbour, timeout=5.0)
        assert text(result) == "started\nended\n"
        assert len(running(mark)) == 20
        await stream.send(cancels=[pb.Cancel(key=bomb)])
        assert (await stream.result_of(bomb)).reason == common_pb2.REASON_BY_USER
        assert running(mark) == []


async def test_a_program_that_fails_at_its_process_limit_reports_that(
    tmp_path: Path, started: Start
) -> None:
    async with started(tmp_path) as (member, _):
        stream = await member.attached()
        fails = await stream.assign(
            shell=shell("sh", "-c", "sleep 1 & sleep 1 & wait", processes=2)
        )
        result = await stream.result_of(fails)
        assert result.outcome == pb.Result.OUTCOME_FAILED
        assert result.error.endswith("; process limit reached (limit 2)")
        copes = await stream.assign(
            shell=python("import os\ntry: os.fork()\nexcept OSError: print('copes')", processes=1)
        )
        result = await stream.result_of(copes)
        assert (result.outcome, text(result)) == (pb.Result.OUTCOME_SUCCEEDED, "copes\n")


MAKER = """
import sys
sys.path.insert(0, sys.argv[1])
from workerd.process import cgroups
place = cgroups.own(sys.argv[2])
(place / "its own" / "below").mkdir(parents=True)
print("made")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="a job that may make cgroups of its own is root's")
async def test_cgroups_that_a_job_made_below_its_own_are_removed_with_it(
    tmp_path: Path, started: Start
) -> None:
    """Else each attempt would leave some for ever. `started` looks for them."""
    controller = "memory" if controllers.version() == 1 else ""
    async with started(tmp_path) as (member, _):
        stream = await member.attached()
        argv = (sys.executable, "-c", MAKER, str(ROOT), controller)
        key = await stream.assign(shell=shell(*argv, memory_bytes=64 * MIB, processes=9))
        result = await stream.result_of(key)
        assert (text(result), result.outcome) == ("made\n", pb.Result.OUTCOME_SUCCEEDED)


OPENER = """
import errno
files = []
try:
    while True:
        files.append(open("/dev/null"))
except OSError as error:
    print(errno.errorcode[error.errno], files[-1].fileno() + 1)
"""


async def test_a_program_that_opens_too_many_files_gets_emfile(
    tmp_path: Path, started: Start
) -> None:
    async with started(tmp_path) as (member, _):
        stream = await member.attached()
        result = await stream.result_of(await stream.assign(shell=python(OPENER, files=50)))
        assert text(result) == "EMFILE 50\n", result.error
        result = await stream.result_of(await stream.assign(shell=python("")))
        assert result.outcome == pb.Result.OUTCOME_SUCCEEDED, "the next one has its own"


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="only root may run jobs as another user")
async def test_another_user_has_the_limits_too_and_cant_lift_them(
    tmp_path: Path, started: Start
) -> None:
    async with started(tmp_path) as (member, _):
        stream = await member.attached()
        script = "ulimit -n; (ulimit -n 100) 2>/dev/null || ulimit -n"
        limits = {"memory_bytes": 32 * MIB, "processes": 2, "files": 32}
        key = await stream.assign(shell=shell("sh", "-c", script, user="nobody", **limits))
        assert text(await stream.result_of(key)).startswith("32\n32\n")


STARTED_ALONE = """
import os, pwd, subprocess
from workerd.process import privileges
other = pwd.getpwnam("nobody")
for _ in range(200):
    process = privileges.started(
        ["true"], {}, "/", [subprocess.DEVNULL] * 3, umask=-1, user=(other.pw_uid, other.pw_gid)
    )
    assert os.listdir("/proc/self/task") == [str(os.getpid())]
    process.wait()
print("alone")
"""


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="only root may start programs as another user")
def test_the_launcher_of_a_program_leaves_its_cgroup_before_processes_are_counted() -> None:
    command = [sys.executable, "-c", STARTED_ALONE]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert shown.stdout == "alone\n", shown.stderr


async def test_a_limit_too_low_to_start_a_program_fails_the_attempt(
    tmp_path: Path, started: Start
) -> None:
    async with started(tmp_path) as (member, _):
        stream = await member.attached()
        result = await stream.result_of(await stream.assign(shell=shell("true", memory_bytes=4096)))
        assert result.outcome == pb.Result.OUTCOME_FAILED
        assert "killed: out of memory (limit 4 KiB)" in result.error


async def test_an_assignment_with_limits_is_refused_without_cgroups(tmp_path: Path) -> None:
    async with cluster(tmp_path, config="cgroups = false") as (member, _):
        stream = await member.attached()
        for limit in ("memory_bytes", "processes", "files"):
            key = await stream.assign(shell=shell("true", **{limit: 64}))
            refusal = await stream.refusal_of(key)
            assert refusal.why == pb.Refusal.WHY_UNABLE
            assert "limits can't be enforced on this worker" in refusal.detail


async def test_a_killed_worker_leaves_no_limits_behind(tmp_path: Path, started: Start) -> None:
    async with started(tmp_path) as (member, worker):
        stream = await member.attached()
        limits = {"memory_bytes": 64 * MIB, "processes": 8}
        key = await stream.assign(shell=shell("sleep", "300", **limits))
        await stream.holds(key, pb.Holding.STATE_RUNNING)
        mark = mark_of(worker)
        worker.kill()
        await wait_until_async(
            lambda: not controllers.remaining(mark), WAIT_TIMEOUT, "no cgroup left"
        )
