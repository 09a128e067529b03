"""Deaths and ends of a worker: kill -9, a lost keeper, restarts with a full spool, drains."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

from schedproto.v1 import common_pb2
from schedproto.v1 import worker_service_pb2 as pb
from support.fake_member import FakeMember
from support.wait import WAIT_TIMEOUT, wait_until_async
from support.worker_process import WorkerProcess, alive, cluster, pid_in, wait_until_ended
from workerd.process import proc_files


def spooled(worker: WorkerProcess) -> list[Path]:
    return [*worker.spool.glob("*.results")]


async def test_kill_minus_9_leaves_no_process_of_its_jobs(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (member, worker):
        stream = await member.attached()
        child, deaf, daemon = tmp_path / "child", tmp_path / "deaf", tmp_path / "daemon"
        script = (
            f"sh -c 'echo $$ > {child}; exec sleep 300' & "
            f"sh -c 'trap \"\" TERM HUP; echo $$ > {deaf}; while :; do sleep 1; done' & "
            f"setsid -f sh -c 'echo $$ > {daemon}; exec sleep 300'; wait"
        )
        await stream.assign(argv=["sh", "-c", script])
        pids = [await pid_in(mark) for mark in (child, deaf, daemon)]
        worker.kill()
        for pid in pids:
            await wait_until_ended(pid, within=2.0)


async def test_a_job_killed_with_its_worker_at_birth_is_not_left(tmp_path: Path) -> None:
    """A worker killed while it starts jobs: whichever were born are gone soon after."""
    async with cluster(tmp_path, slots="64") as (member, worker):
        stream = await member.attached()
        assignments = [
            member.assignment(
                incarnation=stream.hello.incarnation,
                argv=["sh", "-c", f"echo $$ > {tmp_path}/born-{n}; exec sleep 300"],
            )
            for n in range(40)
        ]
        await stream.send(assignments=assignments)
        await wait_until_async(
            lambda: [*tmp_path.glob("born-*")], WAIT_TIMEOUT, "the first birth", every=0
        )
        worker.kill()
        await wait_until_async(lambda: not born(tmp_path), 2.0, "the end of all that were born")


def born(folder: Path) -> list[str]:
    """Command lines that run and name this folder."""
    lines = []
    for process in proc_files.everyone():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            lines.append(Path(f"/proc/{process.pid}/cmdline").read_bytes().decode())
    return [line for line in lines if f"{folder}/born" in line]


async def test_a_lost_keeper_is_replaced(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (member, worker):
        stream = await member.attached()
        first = worker.keeper_pid()
        os.kill(first, signal.SIGKILL)
        await wait_until_async(
            lambda: worker.own("workerd.process.keeper") not in ([first], []),
            WAIT_TIMEOUT,
            "a new keeper",
        )
        mark = tmp_path / "job"
        await stream.assign(argv=["sh", "-c", f"echo $$ > {mark}; exec sleep 300"])
        pid = await pid_in(mark)
        worker.kill()
        await wait_until_ended(pid, within=2.0)


async def test_a_restarted_worker_kills_what_a_worker_without_keeper_left(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (member, worker):
        stream = await member.attached()
        mark = tmp_path / "job"
        await stream.assign(argv=["sh", "-c", f"echo $$ > {mark}; exec sleep 300"])
        pid = await pid_in(mark)
        keeper = worker.keeper_pid()
        os.kill(keeper, signal.SIGSTOP)
        worker.kill()
        os.kill(keeper, signal.SIGKILL)
        assert alive(pid)
        worker.start()
        again = await member.attached(2)
        assert not alive(pid), "leftovers are killed before the hello"
        assert again.hello.incarnation != stream.hello.incarnation
        assert not again.hello.running


async def test_a_result_survives_kill_minus_9_and_is_sent_by_the_next_process(
    tmp_path: Path,
) -> None:
    """W2: it stays on disk until it is acknowledged."""
    async with cluster(tmp_path) as (member, worker):
        member.acknowledge_results = False
        old = await member.attached()
        key = await old.assign(argv=["sh", "-c", "echo precious; exit 3"])
        sent = await old.result_of(key)
        worker.kill()
        worker.start()
        new = await member.attached(2)
        assert [*new.hello.spooled] == [key]
        assert new.hello.incarnation != old.hello.incarnation
        again = await new.result_of(key)
        assert again == sent
        assert again.incarnation == old.hello.incarnation
        await new.holds(key, pb.Holding.STATE_SPOOLED)
        await new.acknowledge(key)
        await wait_until_async(lambda: not spooled(worker), WAIT_TIMEOUT, "an empty spool")


async def test_a_result_is_on_disk_before_it_is_sent(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (member, worker):
        member.acknowledge_results = False
        stream = await member.attached()
        key = await stream.assign(argv=["true"])
        await stream.result_of(key)
        (file,) = spooled(worker)
        assert [each.key for each in pb.WorkerFrame.FromString(file.read_bytes()).results] == [key]


async def test_a_damaged_spool_file_is_set_aside_and_the_rest_is_sent(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (member, worker):
        member.acknowledge_results = False
        old = await member.attached()
        first = await old.assign(argv=["true"])
        await old.result_of(first)
        second = await old.assign(argv=["true"])
        await old.result_of(second)
        worker.kill()
        min(spooled(worker)).write_bytes(b"\xff" * 20)
        worker.start()
        new = await member.attached(2)
        assert [*new.hello.spooled] == [second]
        assert [*worker.spool.glob("*.damaged")]


DEEP_TREE = """
import os
os.chdir(os.path.dirname(os.environ["SCHEDD_PAYLOAD_FILE"]))
for _ in range(1500):
    open("file", "w").close()
    os.mkdir("directory")
    os.chdir("directory")
"""


async def test_a_job_that_leaves_a_deep_tree_ends_by_its_exit_code_and_its_worker_starts_again(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as (member, worker):
        stream = await member.attached()
        for code, outcome in ((0, pb.Result.OUTCOME_SUCCEEDED), (3, pb.Result.OUTCOME_FAILED)):
            program = f"{DEEP_TREE}raise SystemExit({code})"
            key = await stream.assign(argv=[sys.executable, "-c", program])
            result = await stream.result_of(key)
            assert (result.outcome, result.exit_code) == (outcome, code)
        mark = tmp_path / "job"
        program = f"{DEEP_TREE}import time\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\n"
        await stream.assign(argv=[sys.executable, "-c", f"{program}time.sleep(300)"])
        pid = await pid_in(mark)
        worker.kill()
        await wait_until_ended(pid)
        left = [*(worker.spool / "scratch").iterdir()]  # of the first runs, too: removed beside
        assert any((each / "directory" / "directory").is_dir() for each in left)
        worker.start()
        again = await member.attached(2)
        assert [*(worker.spool / "scratch").iterdir()] == []
        result = await again.result_of(await again.assign(argv=["true"]))
        assert result.outcome == pb.Result.OUTCOME_SUCCEEDED


async def test_one_spool_serves_one_worker(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (member, worker):
        other = WorkerProcess(tmp_path / "other", [member.address], spool=str(worker.spool))
        other.start()
        assert await other.ended() == 2
        holder = f"process {worker.pid} on host {socket.gethostname()}: end that process"
        assert f"in use by another worker, {holder}" in other.log.read_text()


async def test_a_drain_finishes_running_work_and_gives_back_waiting_runs(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (member, worker):
        stream = await member.attached()
        end = tmp_path / "end"
        script = f"until [ -e {end} ]; do sleep 0.02; done; echo done"
        running = await stream.assign(argv=["sh", "-c", script])
        waiting = await stream.assign(argv=["true"], start_in=60)
        await stream.holds(running, pb.Holding.STATE_RUNNING)
        worker.signal(signal.SIGTERM)
        assert (await stream.refusal_of(waiting)).why == pb.Refusal.WHY_DRAINING
        await stream.until(lambda: stream.heartbeats[-1].draining or None, "a draining heartbeat")
        late = await stream.assign(argv=["true"])
        assert (await stream.refusal_of(late)).why == pb.Refusal.WHY_DRAINING
        end.touch()
        assert (await stream.result_of(running)).outcome == pb.Result.OUTCOME_SUCCEEDED
        assert await worker.ended() == 0
        await stream.closed()
        assert stream.goodbye
        assert stream.granted.slots == 0
        assert not spooled(worker)
        assert not [*worker.spool.glob("*.journal")]


async def test_a_run_that_outlasts_the_drain_is_given_back(tmp_path: Path) -> None:
    """W4: when its result has come, no process of it runs here, though it ignores SIGTERM."""
    async with cluster(tmp_path, drain_timeout="300ms") as (member, worker):
        member.acknowledge_results = False  # until it has looked: then the worker may end
        stream = await member.attached()
        mark = tmp_path / "job"
        deaf = f"trap '' TERM; echo $$ > {mark}; exec sleep 300"
        key = await stream.assign(argv=["sh", "-c", deaf], kill_after=1)
        pid = await pid_in(mark)
        worker.signal(signal.SIGTERM)
        result = await stream.result_of(key)
        assert not alive(pid), "another may begin it from here on"
        await stream.acknowledge(key)
        assert result.outcome == pb.Result.OUTCOME_RETURNED
        assert result.reason == common_pb2.REASON_UNSPECIFIED
        assert result.HasField("started_at"), "it had begun: one at_most_once may not begin again"
        assert await worker.ended() == 0
        await stream.closed()
        assert stream.goodbye
        lines = worker.log.read_text().splitlines()
        [line] = [line for line in lines if "drain timed out after drain_timeout" in line]
        assert f"run_ids={key.run_id}" in line


async def test_a_worker_without_members_drains_at_once(tmp_path: Path) -> None:
    async with FakeMember() as member:
        address = member.address
    worker = WorkerProcess(tmp_path, [address])
    worker.start()
    await worker.http_port()
    worker.signal(signal.SIGTERM)
    assert await worker.ended(10.0) == 0, "long before its drain_timeout"


async def test_the_keeper_ends_with_its_worker(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (_, worker):
        keeper = worker.keeper_pid()
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
        await wait_until_ended(keeper)
