"""The environment of a program, its stored output, and how it is ended."""

from __future__ import annotations

import os
import pwd
import sys
import time
from pathlib import Path

import pytest

from schedproto.v1 import common_pb2, job_pb2, run_pb2
from schedproto.v1 import worker_service_pb2 as pb
from support.shared_workers import SharedWorkers
from support.wait import WAIT_TIMEOUT, wait_until_async
from support.worker_process import alive, cluster, pid_in, wait_until_ended

pytestmark = pytest.mark.asyncio(loop_scope="module")

KIB = 1024
OUTPUT_MIB = int(os.environ.get("OUTPUT_MIB", "64"))
"""Without a newline. `make acceptance-full` has 10 GiB written."""


def text(result: pb.Result, stream: int = run_pb2.LogPiece.STREAM_STDOUT) -> str:
    return b"".join(each.data for each in result.output if each.stream == stream).decode()


async def test_a_program_runs_and_its_end_is_reported(workers: SharedWorkers) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        key = await stream.assign(argv=["sh", "-c", "echo out; echo err >&2; exit 3"])
        result = await stream.result_of(key)
        assert result.outcome == pb.Result.OUTCOME_FAILED
        assert result.reason == common_pb2.REASON_EXIT_CODE
        assert result.exit_code == 3
        assert result.worker == "w1"
        assert result.incarnation == stream.hello.incarnation
        assert len(result.digest) == 32
        assert text(result) == "out\n"
        assert text(result, run_pb2.LogPiece.STREAM_STDERR) == "err\n"
        assert result.started_at.ToNanoseconds() <= result.finished_at.ToNanoseconds()


async def test_exit_code_100_asks_for_no_retry(workers: SharedWorkers) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        result = await stream.result_of(await stream.assign(argv=["sh", "-c", "exit 100"]))
        assert result.reason == common_pb2.REASON_DONT_RETRY


async def test_a_listed_exit_code_is_a_success(workers: SharedWorkers) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        shell = job_pb2.ShellAction(argv=["sh", "-c", "exit 7"], success_codes=[0, 7])
        result = await stream.result_of(await stream.assign(shell=shell))
        assert result.outcome == pb.Result.OUTCOME_SUCCEEDED
        assert result.exit_code == 7


async def test_a_program_that_dies_of_a_signal_says_which(workers: SharedWorkers) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        result = await stream.result_of(await stream.assign(argv=["sh", "-c", "kill -SEGV $$"]))
        assert result.reason == common_pb2.REASON_SIGNAL
        assert "SIGSEGV" in result.error


async def test_a_program_that_cant_start_fails_with_the_reason(workers: SharedWorkers) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        missing = await stream.result_of(await stream.assign(argv=["no-such-program"]))
        assert (missing.exit_code, "no-such-program" in missing.error) == (127, True)
        shell = job_pb2.ShellAction(argv=["true"], cwd="/no/such/folder")
        nowhere = await stream.result_of(await stream.assign(shell=shell))
        assert "/no/such/folder" in nowhere.error
        shell = job_pb2.ShellAction(argv=["true"], user="no-such-user")
        unknown = await stream.result_of(await stream.assign(shell=shell))
        assert "no-such-user" in unknown.error


async def test_a_job_receives_its_identity_and_sees_nothing_of_the_worker(
    workers: SharedWorkers,
) -> None:
    async with workers(environ={"WORKERS_SECRET": "x"}) as (member, _):
        stream = await member.attached()
        shell = job_pb2.ShellAction(argv=["env"], env={"MODE": "full"})
        key = await stream.assign(shell=shell, traceparent="00-ab-cd-01", timeout=60)
        environ = dict(
            line.split("=", 1) for line in text(await stream.result_of(key)).splitlines()
        )
        assert environ["SCHEDD_RUN_ID"] == environ["SCHEDD_IDEMPOTENCY_KEY"] == key.run_id
        assert environ["SCHEDD_FENCING_TOKEN"] == str(key.fencing_token)
        assert environ["SCHEDD_JOB"] == "probe"
        assert environ["SCHEDD_NAMESPACE"] == "default"
        assert environ["SCHEDD_ATTEMPT"] == "1"
        assert environ["SCHEDD_WORKER"] == "w1"
        assert environ["SCHEDD_SCHEDULED_AT"].endswith("Z")
        assert environ["SCHEDD_DEADLINE"] > environ["SCHEDD_SCHEDULED_AT"]
        assert environ["TRACEPARENT"] == "00-ab-cd-01"
        assert environ["MODE"] == "full"
        assert "WORKERS_SECRET" not in environ


async def test_the_payload_is_read_from_standard_input_and_from_a_file(
    workers: SharedWorkers,
) -> None:
    async with workers() as (member, worker):
        stream = await member.attached()
        script = 'cat; echo; cat "$SCHEDD_PAYLOAD_FILE"'
        key = await stream.assign(argv=["sh", "-c", script], payload='{"a":1}')
        assert text(await stream.result_of(key)) == '{"a":1}\n{"a":1}'
        assert [*(worker.spool / "scratch").iterdir()] == []


async def test_standard_input_may_be_a_text_or_nothing(workers: SharedWorkers) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        given = job_pb2.ShellAction(
            argv=["cat"], stdin=job_pb2.ShellAction.STDIN_TEXT, stdin_text="x"
        )
        none = job_pb2.ShellAction(argv=["cat"], stdin=job_pb2.ShellAction.STDIN_NONE)
        assert text(await stream.result_of(await stream.assign(shell=given, payload='"p"'))) == "x"
        assert text(await stream.result_of(await stream.assign(shell=none, payload='"p"'))) == ""


async def test_a_script_runs_in_its_interpreter(workers: SharedWorkers) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        script = "import json, sys; print(json.load(sys.stdin)['n'] * 2)"
        shell = job_pb2.ShellAction(script=script, interpreter=[sys.executable])
        key = await stream.assign(shell=shell, payload='{"n": 21}')
        assert text(await stream.result_of(key)) == "42\n"


async def test_the_first_and_last_64_kib_are_kept_and_the_rest_is_counted(
    workers: SharedWorkers,
) -> None:
    async with workers() as (member, worker):
        stream = await member.attached()
        program = (
            "import sys\n"
            f"for n in range({16 * OUTPUT_MIB}): sys.stdout.write(chr(97 + n % 26) * 65536)\n"
            "sys.stdout.write('THE END')\n"
        )
        before = resident(worker.pid)
        forget_peak(worker.pid)
        key = await stream.assign(argv=[sys.executable, "-c", program])
        pieces = (await stream.result_of(key, timeout=30 + OUTPUT_MIB / 8)).output
        total = OUTPUT_MIB * KIB * KIB + len("THE END")
        (cut,) = (place for place, piece in enumerate(pieces) if piece.omitted)
        assert pieces[0].offset == 0
        assert b"".join(piece.data for piece in pieces[:cut]) == b"a" * 64 * KIB
        last = b"".join(piece.data for piece in pieces[cut:])
        assert len(last) == 64 * KIB
        assert last.endswith(b"THE END")
        assert pieces[cut].offset == total - 64 * KIB
        assert pieces[cut].omitted == total - 128 * KIB
        peak = resident(worker.pid, "VmHWM")
        assert peak - before < 32 * KIB, "memory must stay flat"


async def test_followers_receive_the_output_of_a_job_as_it_is_written(
    workers: SharedWorkers, tmp_path: Path
) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        more, done = tmp_path / "more", tmp_path / "done"
        script = (
            f"echo before; while [ ! -e {more} ]; do sleep 0.02; done; echo during >&2;"
            f"while [ ! -e {done} ]; do sleep 0.02; done; echo after"
        )
        key = await stream.assign(argv=["sh", "-c", script])
        await stream.holds(key, pb.Holding.STATE_RUNNING)
        assert stream.chunks == [], "no member follows it"

        def followed() -> list[bytes]:
            assert all(chunk.key == key for chunk in stream.chunks)
            return [chunk.piece.data for chunk in stream.chunks]

        await stream.send(follows=[pb.Follow(key=key)])
        await stream.until(lambda: followed() == [b"before\n"], "what was written before")
        more.touch()
        await stream.until(lambda: followed() == [b"before\n", b"during\n"], "what is written now")
        await stream.send(follows=[pb.Follow(key=key)])
        both = [b"before\n", b"during\n"]
        await stream.until(lambda: followed() == [*both, *both], "all again, for one more reader")
        await stream.send(follows=[pb.Follow(key=key, stop=True)])
        await stream.result_of(await stream.assign(argv=["true"]))  # behind it on the stream
        done.touch()
        result = await stream.result_of(key)
        assert text(result) == "before\nafter\n"
        assert followed() == [*both, *both]


async def test_a_follower_before_the_assignment_receives_all_of_its_output(
    workers: SharedWorkers,
) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        followed, left = member.key(), member.key()
        await stream.send(follows=[pb.Follow(key=followed), pb.Follow(key=left)])
        await stream.send(follows=[pb.Follow(key=left, stop=True)])
        for key in (followed, left):
            await stream.assign(key=key, argv=["echo", "received"])
            await stream.result_of(key)
        pieces = [(chunk.key, chunk.piece.data) for chunk in stream.chunks]
        assert pieces == [(followed, b"received\n")]


async def test_output_that_is_not_text_is_kept_as_it_is(workers: SharedWorkers) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        key = await stream.assign(argv=["printf", r"\377\000\200"])
        assert (await stream.result_of(key)).output[0].data == b"\xff\x00\x80"


async def test_a_timeout_ends_the_whole_group(workers: SharedWorkers, tmp_path: Path) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        mark = tmp_path / "grandchild"
        script = f"sleep 300 & echo $! > {mark}; wait"
        key = await stream.assign(argv=["sh", "-c", script], timeout=1, kill_after=5)
        result = await stream.result_of(key)
        assert result.outcome == pb.Result.OUTCOME_FAILED
        assert result.reason == common_pb2.REASON_TIMEOUT
        await wait_until_ended(await pid_in(mark), within=1.0)


async def test_a_program_that_ignores_sigterm_is_killed_after_kill_after(
    workers: SharedWorkers, tmp_path: Path
) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        mark = tmp_path / "stubborn"
        script = f"trap '' TERM; (trap '' TERM; echo $$ > {mark}; while :; do sleep 1; done)"
        began = time.monotonic()
        key = await stream.assign(argv=["sh", "-c", script], timeout=1, kill_after=0.5)
        result = await stream.result_of(key)
        assert result.reason == common_pb2.REASON_TIMEOUT
        assert time.monotonic() - began >= 1.5
        await wait_until_ended(await pid_in(mark), within=1.0)


async def test_a_background_process_ends_with_its_attempt(
    workers: SharedWorkers, tmp_path: Path
) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        mark = tmp_path / "background"
        began = time.monotonic()
        key = await stream.assign(argv=["sh", "-c", f"sleep 300 & echo $! > {mark}; echo done"])
        result = await stream.result_of(key)
        assert result.outcome == pb.Result.OUTCOME_SUCCEEDED
        assert text(result) == "done\n"
        assert time.monotonic() - began < 3.0, "the holder of the pipe must not hold the attempt"
        await wait_until_ended(await pid_in(mark), within=1.0)


async def test_a_child_in_a_group_of_its_own_that_holds_the_pipe_ends_too(
    workers: SharedWorkers, tmp_path: Path
) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        mark = tmp_path / "other-group"
        script = (
            f"set -m; sh -c 'echo $$ > {mark}; exec sleep 300' & "
            f"until [ -s {mark} ]; do sleep 0.02; done; echo done"
        )
        began = time.monotonic()
        key = await stream.assign(argv=["bash", "-c", script])
        assert text(await stream.result_of(key)) == "done\n"
        assert time.monotonic() - began < 3.0
        await wait_until_ended(await pid_in(mark), within=1.0)


async def test_a_cancel_terminates_and_a_kill_does_not_wait(
    workers: SharedWorkers, tmp_path: Path
) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        mark = tmp_path / "started"
        gentle = await stream.assign(argv=["sleep", "300"])
        script = f"trap '' TERM; echo $$ > {mark}; while :; do sleep 0.1; done"
        stubborn = await stream.assign(argv=["sh", "-c", script], kill_after=300)
        await pid_in(mark)
        await stream.holds(gentle, pb.Holding.STATE_RUNNING)
        await stream.send(cancels=[pb.Cancel(key=gentle), pb.Cancel(key=stubborn, kill=True)])
        for key in (gentle, stubborn):
            result = await stream.result_of(key)
            assert result.outcome == pb.Result.OUTCOME_CANCELLED
            assert result.reason == common_pb2.REASON_BY_USER


async def test_variables_come_from_files_that_the_worker_allows(
    workers: SharedWorkers, tmp_path: Path
) -> None:
    """Their values stand in no definition, no row and no message."""
    secrets = tmp_path / "env"
    secrets.mkdir()
    (secrets / "db").write_text("# of the database\nPASSWORD='s3 cret'\n\nUSER_OF_DB=ann\nX=file\n")
    async with workers(config=f'secrets = ["{secrets}"]') as (member, _):
        stream = await member.attached()
        shell = job_pb2.ShellAction(
            argv=["sh", "-c", 'test "$PASSWORD" = "s3 cret" && echo "$PASSWORD|$USER_OF_DB|$X"'],
            env={"X": "job"},
            env_from=[str(secrets / "db")],
        )
        result = await stream.result_of(await stream.assign(shell=shell))
        assert text(result) == "***|ann|job\n", "what is short stands in any output"


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files of variables that a worker can't read or mustn't read."""
    folder = tmp_path_factory.mktemp("secrets")
    secrets = folder / "env"
    secrets.mkdir()
    (folder / "outside").write_text("A=hidden\n")
    (secrets / "link").symlink_to(folder / "outside")
    (secrets / "wrong").write_text("A=1\nhidden value\n")
    (secrets / "long").write_text("#" * (65 * KIB))
    (secrets / "binary").write_bytes(b"A=\xff\n")
    (secrets / "loop").symlink_to(secrets / "loop")
    os.mkfifo(secrets / "pipe")
    for number in range(1_500):
        (secrets / f"chain-{number}").symlink_to(secrets / f"chain-{number + 1}")
    return secrets


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("/etc/passwd", "/etc/passwd isn't in an allowed folder:"),
        ("/etc/no-such-file", "/etc/no-such-file isn't in an allowed folder:"),
        ("/etc/passwd/x", "/etc/passwd/x isn't in an allowed folder:"),
        ("{env}/loop", "Too many levels of symbolic links"),
        ("{env}/chain-0", "its symbolic links form a loop"),
        ("{env}/pipe", "pipe can't be read: it isn't a regular file"),
        ("{env}", "it isn't a regular file"),
        ("{env}/../outside", "isn't in an allowed folder:"),
        ("{env}/link", "isn't in an allowed folder:"),
        ("{env}/missing", "No such file or directory"),
        ("{env}/wrong", "wrong:2: the line isn't valid: write NAME=value"),
        ("{env}/long", "it is larger than 64 KiB"),
        ("{env}/binary", "it isn't text in UTF-8"),
    ],
)
async def test_variables_are_read_from_no_other_file_of_a_worker(
    workers: SharedWorkers, secrets: Path, wanted: str, message: str
) -> None:
    async with workers(config=f'secrets = ["{secrets}"]') as (member, _):
        stream = await member.attached()
        shell = job_pb2.ShellAction(argv=["true"], env_from=[wanted.format(env=secrets)])
        result = await stream.result_of(await stream.assign(shell=shell))
        assert result.outcome == pb.Result.OUTCOME_FAILED
        assert result.exit_code in {126, 127}
        assert message in result.error
        assert "hidden" not in result.error


async def test_a_worker_that_names_no_directory_reads_no_such_file(workers: SharedWorkers) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        shell = job_pb2.ShellAction(argv=["true"], env_from=["/etc/hostname"])
        result = await stream.result_of(await stream.assign(shell=shell))
        assert "the worker's setting `secrets` names no folder" in result.error


async def test_a_job_makes_its_files_by_its_own_umask(
    workers: SharedWorkers, tmp_path: Path
) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        shell = job_pb2.ShellAction(argv=["sh", "-c", f"umask; touch {tmp_path}/made"], umask=0o27)
        result = await stream.result_of(await stream.assign(shell=shell))
        assert text(result) == "0027\n"
        assert (tmp_path / "made").stat().st_mode & 0o777 == 0o640


def forget_peak(pid: int) -> None:
    """Reset the peak of the process's memory to its present use."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def resident(pid: int, what: str = "VmRSS") -> int:
    """KiB in memory; `VmHWM`: at most so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1])


async def test_a_daemon_that_left_its_session_ends_with_its_attempt(
    workers: SharedWorkers, tmp_path: Path
) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        mark, other = tmp_path / "daemon", tmp_path / "other"
        neighbour = await stream.assign(
            argv=["sh", "-c", f"setsid -f sh -c 'echo $$ > {other}; exec sleep 300'; sleep 300"]
        )
        script = (
            f"setsid -f sh -c 'echo $$ > {mark}; exec sleep 300' >/dev/null 2>&1; "
            f"until [ -s {mark} ]; do sleep 0.02; done"
        )
        key = await stream.assign(argv=["sh", "-c", script])
        daemon, neighbours = await pid_in(mark), await pid_in(other)
        assert (await stream.result_of(key)).outcome == pb.Result.OUTCOME_SUCCEEDED
        await wait_until_ended(daemon, within=1.0)
        assert alive(neighbours), "an attempt that runs keeps its own"
        await stream.send(cancels=[pb.Cancel(key=neighbour)])
        await wait_until_ended(neighbours)


async def test_no_dead_process_is_left_unreaped(workers: SharedWorkers) -> None:
    async with workers() as (member, worker):
        stream = await member.attached()
        for _ in range(3):
            key = await stream.assign(argv=["sh", "-c", "(sleep 0.1 & sleep 300 &) & sleep 0.3"])
            await stream.result_of(key)
        await wait_until_async(
            lambda: not worker.strangers(), WAIT_TIMEOUT, "its own processes alone"
        )


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="only root may run jobs as another user")
async def test_a_job_runs_as_the_user_it_names_and_in_no_other_group(
    workers: SharedWorkers,
) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        shell = job_pb2.ShellAction(argv=["sh", "-c", "id -un; id -G; echo $HOME"], user="nobody")
        other = pwd.getpwnam("nobody")
        result = await stream.result_of(await stream.assign(shell=shell))
        assert text(result).splitlines() == ["nobody", str(other.pw_gid), other.pw_dir]


async def test_a_program_that_doesnt_exist_or_isnt_executable_isnt_retried(
    workers: SharedWorkers, tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    async with workers() as (member, _):
        stream = await member.attached()
        for argv, code in (
            ([str(tmp_path / "absent")], 127),
            (["no-such-program"], 127),
            ([str(plain)], 126),
            ([str(plain / "below")], 126),
        ):
            run = await stream.assign(shell=job_pb2.ShellAction(argv=argv))
            result = await stream.result_of(run)
            assert (result.exit_code, result.reason) == (code, common_pb2.REASON_DONT_RETRY)
            assert "not started" in result.error
        script = job_pb2.ShellAction(script="true", interpreter=["/no/interpreter"])
        result = await stream.result_of(await stream.assign(shell=script))
        assert result.reason == common_pb2.REASON_DONT_RETRY


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="only root may run jobs as another user")
@pytest.mark.parametrize("config", ["", "cgroups = false"], ids=["in a cgroup", "without"])
async def test_a_job_of_another_user_gets_no_privileges_that_the_user_lacks(
    workers: SharedWorkers, config: str
) -> None:
    async with workers(config=config) as (member, _):
        stream = await member.attached()
        argv = ["grep", "NoNewPrivs", "/proc/self/status"]
        theirs = await stream.assign(shell=job_pb2.ShellAction(argv=argv, user="nobody"))
        assert text(await stream.result_of(theirs)).split() == ["NoNewPrivs:", "1"]
        missing = await stream.assign(shell=job_pb2.ShellAction(argv=["no-such"], user="nobody"))
        assert (await stream.result_of(missing)).exit_code == 127
        own = await stream.assign(shell=job_pb2.ShellAction(argv=argv))
        assert text(await stream.result_of(own)).split() == ["NoNewPrivs:", "0"]


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="only root may run jobs as another user")
async def test_a_jobs_files_are_its_users_alone_and_none_was_there_before(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    async with cluster(tmp_path) as (member, _):
        stream = await member.attached()
        script = 'cat; stat -c "%U %a" "$SCHEDD_PAYLOAD_FILE" "$(dirname "$SCHEDD_PAYLOAD_FILE")"'
        user = "nobody"
        shell = job_pb2.ShellAction(script=script, user=user)
        result = await stream.result_of(await stream.assign(shell=shell, payload='"hello"'))
        assert text(result) == f'"hello"{user} 600\n{user} 700\n', result.error


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize(
    ("script", "printed"),
    [
        (f"#!{sys.executable}\nimport sys\nprint(sys.implementation.name)\n", "cpython\n"),
        ("#!/usr/bin/env python3\nimport sys\nprint(sys.implementation.name)\n", "cpython\n"),
        ("#!/bin/bash\necho ${BASH_VERSION:+bash}\n", "bash\n"),
        ("#!/usr/bin/env -S bash -u\necho $-\n", "u"),
        ("\ufeffecho marked\n", "marked\n"),
        ("echo $1\n", "argument\n"),
    ],
    ids=["python", "python by env", "bash", "env", "byte order mark", "default"],
)
async def test_a_script_is_run_by_the_interpreter_of_its_first_line(
    workers: SharedWorkers, script: str, printed: str, end: str
) -> None:
    async with workers() as (member, _):
        stream = await member.attached()
        shell = job_pb2.ShellAction(script=script.replace("\n", end), argv=["argument"])
        result = await stream.result_of(await stream.assign(shell=shell))
        assert result.outcome == pb.Result.OUTCOME_SUCCEEDED, result.error
        assert printed in text(result)
        assert "\r" not in text(result)


async def test_a_script_or_file_whose_first_line_is_wrong_says_so(
    workers: SharedWorkers, tmp_path: Path
) -> None:
    windows, absent = tmp_path / "windows.sh", tmp_path / "absent.sh"
    windows.write_bytes(b"#!/bin/sh\r\necho hello\r\n")
    absent.write_bytes(b"#!/no/such/interpreter -x\necho hello\n")
    for each in (windows, absent):
        each.chmod(0o755)
    async with workers() as (member, _):
        stream = await member.attached()
        for shell, said in (
            (job_pb2.ShellAction(argv=[str(windows)]), "ends in a carriage return (CRLF)"),
            (
                job_pb2.ShellAction(argv=[str(absent)]),
                "the interpreter '/no/such/interpreter' in the first line",
            ),
            (job_pb2.ShellAction(script="#!/no/such\n"), "/no/such"),
            (job_pb2.ShellAction(script="#! \necho"), "names no interpreter"),
        ):
            result = await stream.result_of(await stream.assign(shell=shell))
            assert result.outcome == pb.Result.OUTCOME_FAILED
            assert said in result.error


async def test_a_deep_tree_in_its_scratch_directory_ends_a_run_by_its_exit_code(
    workers: SharedWorkers,
) -> None:
    script = f"""#!{sys.executable}
import os
os.chdir(os.path.dirname(__file__))
for _ in range(1500):
    os.mkdir("directory")
    os.chdir("directory")
"""
    async with workers() as (member, worker):
        stream = await member.attached()
        shell = job_pb2.ShellAction(script=script)
        result = await stream.result_of(await stream.assign(shell=shell))
        assert (result.outcome, result.error) == (pb.Result.OUTCOME_SUCCEEDED, "")
        scratch = worker.spool / "scratch"
        await wait_until_async(lambda: not [*scratch.iterdir()], WAIT_TIMEOUT, "the removal")
