"""A spool on a full disk: nothing is lost, nothing new is asked for, and it heals by itself."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from schedproto.v1 import job_pb2
from schedproto.v1 import worker_service_pb2 as pb
from support.worker_process import cluster


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


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


@pytest.mark.root
async def test_a_full_disk_stops_new_work_and_loses_no_result(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        async with cluster(tmp_path, spool=str(disk / "spool")) as (member, _):
            stream = await member.attached()
            script = "while [ ! -e go ]; do sleep 0.05; done; echo done"
            shell = job_pb2.ShellAction(argv=["sh", "-c", script], cwd=str(tmp_path))
            running = await stream.assign(shell=shell)
            await stream.holds(running, pb.Holding.STATE_RUNNING)
            filler = fill(disk)
            (tmp_path / "go").touch()
            await stream.until(lambda: stream.granted.slots == 0 or None, "no slots granted")
            await stream.holds(running, pb.Holding.STATE_SPOOLED)
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
