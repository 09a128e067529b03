"""schedctl as people start it: a process, with signals, pipes and missing extras."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from schedproto.v1 import common_pb2, job_pb2, run_pb2
from schedproto.v1 import job_service_pb2 as jobs
from schedproto.v1 import run_service_pb2 as runs
from support.scripted import Scripted
from support.wait import wait_until_async

SCHEDCTL = [sys.executable, "-m", "schedctl"]


async def start(member: Scripted, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *SCHEDCTL,
        *arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "SCHEDCTL_ENDPOINTS": member.address},
    )


@pytest.mark.slow
async def test_ctrl_c_is_130_and_leaves_the_run_alone(member):
    running = run_pb2.Run(run_id="r1", state=common_pb2.RUN_STATE_RUNNING)
    member.say("SubmitRun", running)
    member.say("WatchRuns", [runs.RunEvent(run=running), asyncio.Event()])
    process = await start(member, "submit", "--wait", "--", "sleep", "60")
    await wait_until_async(lambda: member.received("WatchRuns"), 20, "the command to wait")
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    assert process.returncode == 130
    assert out == b""
    assert err.decode() == "run r1 continues; to wait for it: schedctl run wait r1\n"
    assert member.received("CancelRun") == []


@pytest.mark.slow
async def test_ctrl_c_keeps_a_redrive_running_and_prints_how_to_stop_it(member):
    going = run_pb2.Redrive(redrive_id="d1", total=3, state=run_pb2.Redrive.STATE_OPEN)
    member.say("RedriveDeadLetters", runs.RedriveDeadLettersResponse(total=3, redrive=going))
    member.say("WatchRedrive", [going, asyncio.Event()])
    process = await start(member, "dlq", "redrive", "--all", "--wait")
    await wait_until_async(lambda: member.received("WatchRedrive"), 20, "the command to wait")
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    assert (process.returncode, out) == (130, b"")
    assert err.decode().splitlines() == [
        "0 of 3 created",
        "redrive d1 continues: schedctl dlq stop d1 stops it",
    ]
    assert member.received("StopRedrive") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["apply -f -", "submit --payload - -- true", "job trigger a --payload -"]
)
async def test_a_closed_stdin_is_no_bug(command):
    shell = await asyncio.create_subprocess_shell(
        f"{' '.join(SCHEDCTL)} {command} <&-", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await shell.communicate()
    assert (shell.returncode, out) == (2, b"")
    what, why, remedy = err.decode().splitlines()
    assert what == "error: standard input can't be read: stdin is closed"
    assert "NO_INPUT" in why
    assert "< FILE" in remedy


@pytest.mark.slow
@pytest.mark.parametrize("stderr", ["2>/dev/full", "2>&-"])
async def test_a_closed_or_full_stderr_does_not_change_the_exit_code(stderr):
    shell = await asyncio.create_subprocess_shell(f"{' '.join(SCHEDCTL)} nosuch {stderr}")
    assert await shell.wait() == 2


@pytest.mark.slow
async def test_the_reader_of_its_output_may_close_the_pipe(member):
    many = [job_pb2.Job(name=f"j{n}" * 20) for n in range(1000)]
    member.say("ListJobs", jobs.ListJobsResponse(jobs=many))
    shell = await asyncio.create_subprocess_shell(
        f"{' '.join(SCHEDCTL)} job list -o wide --limit 1000 | head -1; echo ${{PIPESTATUS[0]}}",
        executable="/bin/bash",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "SCHEDCTL_ENDPOINTS": member.address},
    )
    out, err = await shell.communicate()
    assert out.splitlines()[-1] == b"0"
    assert err == b""


@pytest.mark.parametrize("module", ["click", "yaml"])
def test_a_missing_extra_is_named(module, tmp_path: Path, home):
    (tmp_path / f"{module}.py").write_text(f"raise ModuleNotFoundError(name={module!r})")
    (tmp_path / "m.yaml").write_text("name: x\n")
    ended = subprocess.run(
        [*SCHEDCTL, "apply", "-f", str(tmp_path / "m.yaml")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=False,
    )
    assert ended.returncode == 2
    assert "pip install 'schedd[cli]'" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", ["cron explain @daily", "--help"])
@pytest.mark.parametrize(("stdout", "code"), [(">&-", 0), (">/dev/full", 6)])
async def test_a_stdout_that_is_closed_or_full_is_no_bug(command, stdout, code):
    shell = await asyncio.create_subprocess_shell(
        f"{' '.join(SCHEDCTL)} {command} {stdout}", stderr=subprocess.PIPE
    )
    _, err = await shell.communicate()
    assert shell.returncode == code
    assert len(err.splitlines()) == (3 if code else 0), err
