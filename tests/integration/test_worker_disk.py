"""A spool on a full disk: nothing is lost, no new run is requested, recovery is automatic."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from schedproto.v1 import job_pb2
from schedproto.v1 import worker_service_pb2 as pb
from support.fake_member import FakeMember, Stream
from support.wait import wait_until_async
from support.worker_process import cluster, http_get
from workerd.delivery.spool import Spool


@contextlib.contextmanager
def small_disk(at: Path) -> Iterator[Path]:
    at.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(at)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"can't mount: {mounted.stderr.decode().strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


@contextlib.contextmanager
def disk_that_fails(at: Path) -> Iterator[Path]:
    """A file system that can be made read-only while files of it are open."""
    at.mkdir()
    image = at.with_suffix(".ext4")
    image.write_bytes(b"")
    os.truncate(image, 8 << 20)
    for command in (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(at)]):
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"can't mount: {error}")
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


def fail(disk: Path) -> None:
    """Make the file system read-only, as after an error of its disk."""
    subprocess.run(["mount", "-o", "remount,abort", str(disk)], check=True)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


WAITS = "while [ ! -e go ]; do sleep 0.05; done; "


async def waiting(stream: Stream, at: Path, then: str = "echo done") -> pb.AssignmentKey:
    """A program that runs until there is a file `go`."""
    shell = job_pb2.ShellAction(argv=["sh", "-c", WAITS + then], cwd=str(at))
    running = await stream.assign(shell=shell)
    await stream.holds(running, pb.Holding.STATE_RUNNING)
    return running


async def ended_without_room(
    member: FakeMember, disk: Path, at: Path
) -> tuple[Stream, pb.AssignmentKey, Path]:
    """A run that has ended on a disk whose filler leaves its result no room."""
    stream = await member.attached()
    running = await waiting(stream, at)
    filler = fill(disk)
    (at / "go").touch()
    await stream.holds(running, pb.Holding.STATE_SPOOLED)
    return stream, running, filler


async def refused(stream: Stream) -> str:
    """Why the worker asks for no work, once it tells."""
    return await stream.until(
        lambda: stream.heartbeats[-1].refusal_reason if stream.heartbeats else None,
        "no work to be wanted",
    )


@pytest.mark.root
async def test_a_full_disk_stops_new_work_and_loses_no_result(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        async with cluster(tmp_path, spool=str(disk / "spool")) as (member, _):
            stream, running, filler = await ended_without_room(member, disk, tmp_path)
            await stream.until(lambda: stream.granted.slots == 0 or None, "no slots granted")
            other = await stream.assign(argv=["true"], payload='"needs room"')
            await stream.holds(other, pb.Holding.STATE_SPOOLED)
            assert not stream.results, "nothing is sent before it is on disk"
            filler.unlink()
            result = await stream.result_of(running)
            assert result.output[0].data == b"done\n"
            returned = await stream.result_of(other)
            assert returned.outcome == pb.Result.OUTCOME_RETURNED, "the host's failure, not its own"
            assert not returned.HasField("started_at"), "it never began"
            await stream.granted_at_least(1)
            later = await stream.assign(argv=["true"])
            assert (await stream.result_of(later)).outcome == pb.Result.OUTCOME_SUCCEEDED


@pytest.mark.root
async def test_an_ending_worker_sends_results_that_it_cant_write(tmp_path: Path) -> None:
    """Else its effects were done, and the run is reported as lost, and repeated."""
    with small_disk(tmp_path / "disk") as disk:
        async with cluster(tmp_path, spool=str(disk / "spool")) as (member, worker):
            stream, running, _ = await ended_without_room(member, disk, tmp_path)
            await refused(stream)
            assert not stream.results, "nothing is sent before it is on disk, or at the end"
            worker.signal(signal.SIGTERM)
            assert (await stream.result_of(running)).output[0].data == b"done\n"
            assert await worker.ended(20) == 0
            assert stream.goodbye, "all results are acknowledged"
            assert "lost" not in worker.log.read_text()
            assert "stay in the spool" not in worker.log.read_text()


@pytest.mark.root
async def test_a_worker_that_ends_on_a_read_only_disk_names_the_cause_and_leaves(
    tmp_path: Path,
) -> None:
    with disk_that_fails(tmp_path / "disk") as disk:
        async with cluster(tmp_path, spool=str(disk / "spool")) as (member, worker):
            stream = await member.attached()
            running = await waiting(stream, tmp_path)
            fail(disk)
            (tmp_path / "go").touch()
            await stream.holds(running, pb.Holding.STATE_SPOOLED)
            await refused(stream)
            worker.signal(signal.SIGTERM)
            assert (await stream.result_of(running)).output[0].data == b"done\n"
            assert await worker.ended(20) == 74
            assert stream.goodbye, "all results are acknowledged"
            log = worker.log.read_text()
    assert "the operating system rejected a write: " in log
    assert "Read-only file system; mount the file system read-write" in log
    assert "a bug" not in log


@pytest.mark.root
async def test_a_result_that_neither_disk_nor_member_takes_at_the_end_is_logged_as_lost(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        async with cluster(tmp_path, spool=str(disk / "spool")) as (member, worker):
            member.acknowledge_results = False
            stream = await member.attached()
            running = await waiting(stream, tmp_path)
            written = await stream.assign(argv=["true"])
            await stream.result_of(written)
            fill(disk)
            (tmp_path / "go").touch()
            await stream.holds(running, pb.Holding.STATE_SPOOLED)
            worker.signal(signal.SIGTERM)
            await worker.ended(30)
            said = worker.log.read_text()
            assert "1 results stay in the spool until the worker starts again" in said
            assert "1 results lost: no member accepted them, and spool rejects writes: No" in said


@pytest.mark.root
async def test_a_disk_with_room_for_some_results_stores_them_and_finally_all(
    tmp_path: Path,
) -> None:
    """A batch that finds no room is made smaller: what was stored makes room for the rest."""
    with small_disk(tmp_path / "disk") as disk:
        async with cluster(tmp_path, spool=str(disk / "spool"), slots="10") as (member, _):
            stream = await member.attached()
            talks = "head -c 60000 /dev/zero | tr '\\0' x"
            keys = [await waiting(stream, tmp_path, talks) for _ in range(10)]
            filler = fill(disk)
            (tmp_path / "go").touch()
            for key in keys:
                await stream.holds(key, pb.Holding.STATE_SPOOLED)
            os.truncate(filler, filler.stat().st_size - 300_000)
            for key in keys:
                pieces = (await stream.result_of(key)).output
                assert sum(len(piece.data) for piece in pieces) == 60_000
            await stream.granted_at_least(10)
            later = await stream.assign(argv=["true"])
            assert (await stream.result_of(later)).outcome == pb.Result.OUTCOME_SUCCEEDED


@pytest.mark.root
def test_a_new_worker_on_a_full_disk_is_refused_for_now_by_the_check_and_the_start(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        fill(disk)
        command = [sys.executable, "-m", "workerd", "--spool", str(disk / "spool")]
        command += ["--endpoints", "127.0.0.1:1", "--listen-http", "127.0.0.1:0"]
        for more in (["--check-config"], []):
            done = subprocess.run(
                [*command, *more], capture_output=True, text=True, env={}, timeout=60, check=False
            )
            assert done.returncode == 75, done
            assert (
                f"{disk}/spool can't be created or written: No space left on device" in done.stderr
            )
        assert [each.name for each in disk.iterdir()] == ["filler"]


@pytest.mark.root
@pytest.mark.parametrize("before", ["ended", "killed"])
async def test_a_worker_on_a_full_disk_sends_its_spooled_results_and_takes_no_work(
    tmp_path: Path, before: str
) -> None:
    """Nothing can be written down of what it would start. It recovers when there is room."""
    with small_disk(tmp_path / "disk") as disk:
        folder = disk / "spool"
        async with cluster(tmp_path, spool=str(folder)) as (member, worker):
            if before == "ended":
                await worker.stop()
            else:
                worker.kill()
            spool, key = Spool(folder), member.key()
            spool.write(pb.WorkerFrame(results=[pb.Result(key=key)]))
            spool.close()
            filler = fill(disk)
            worker.start()
            stream = await member.attached(2, grants=False)
            assert [*stream.hello.spooled] == [key]
            await stream.result_of(key)
            assert await refused(stream) == "spool rejects writes: No space left on device"
            port = await worker.http_port()

            async def not_ready_by_its_disk() -> bool:
                status, why = await http_get(port, "/readyz")
                return status == 503 and "No space left on device" in why

            await wait_until_async(not_ready_by_its_disk, 3.0, "/readyz to name the disk")
            assert all(beat.refusal_reason for beat in stream.heartbeats)
            assert stream.granted.slots == 0
            assert not [*folder.glob("*.new")]
            filler.unlink()
            await stream.granted_at_least(1)
            later = await stream.assign(argv=["true"])
            assert (await stream.result_of(later)).outcome == pb.Result.OUTCOME_SUCCEEDED
            assert [*folder.glob("*.journal")]
