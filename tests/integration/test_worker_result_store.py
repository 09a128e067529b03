"""Results too large for a row: a real worker, a real S3 API and files, and unavailable stores."""

from __future__ import annotations

import hashlib
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from schedkit.objects import Objects, Unframed, log_key, open_objects, parts, result_key
from schedproto.v1 import job_pb2, run_pb2
from schedproto.v1 import worker_service_pb2 as pb
from support.s3 import S3Server, s3_server
from support.wait import WAIT_TIMEOUT, wait_until_async
from support.worker_process import cluster

MIB = 1 << 20

PRINTS = "import os,sys\nfor n in range(%d): os.write(1 + n %% 2, bytes([n %% 256]) * 65536)"
"""So many pieces of 64 KiB, by turns on both streams; most of them aren't UTF-8."""

HANDLERS = """
from schedclient import handler

@handler
def large(payload, ctx):
    return b"\\xff" * payload

@handler
def text(payload, ctx):
    return "é" * payload
"""


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def config_of(s3: S3Server, more: str = "") -> str:
    options = "\n".join(f'{key} = "{value}"' for key, value in s3.options.items())
    return f'[results]\nurl = "{s3.url}"\n{more}\n[results.options]\n{options}\n'


@pytest.fixture
def hanging() -> Iterator[S3Server]:
    """A store that takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield S3Server(listener.getsockname()[1])


def whole(objects: Objects, key: str, kept: run_pb2.StoredObject) -> dict[int, bytes]:
    """Each stream of a log, byte for byte, and in the order of its pieces."""
    unframed, streams = Unframed(), {1: b"", 2: b""}
    for part in parts(objects, key, kept.size, kept.sha256):
        for message in unframed.feed(part):
            piece = run_pb2.LogPiece.FromString(message)
            assert piece.offset == len(streams[piece.stream])
            assert piece.HasField("at")
            streams[piece.stream] += piece.data
    return streams


async def test_a_whole_log_is_stored_byte_for_byte_before_its_end_is_reported(
    tmp_path: Path, s3: S3Server
) -> None:
    async with cluster(tmp_path, config=config_of(s3)) as (member, worker):
        stream = await member.attached()
        key = await stream.assign(argv=["python3", "-c", PRINTS % 80])
        result = await stream.result_of(key)
        assert result.log.problem == ""
        assert result.log.omitted == 0
        log = log_key("default", key.run_id, key.fencing_token)
        read = whole(open_objects(s3.url, s3.options), log, result.log)
        for number, content in read.items():
            assert content == b"".join(bytes([n]) * 65536 for n in range(80) if n % 2 == number - 1)
        assert sum(piece.omitted for piece in result.output) == 5 * MIB - 4 * 65536
        assert not [*(worker.spool / "kept").iterdir()]


async def test_an_inline_result_uses_no_store_and_no_disk(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (member, worker):
        stream = await member.attached()
        result = await stream.result_of(await stream.assign(argv=["sh", "-c", "echo out"]))
        assert not result.HasField("log")
        assert not (tmp_path / "results").exists()
        assert not (worker.spool / "kept").exists()


async def test_output_over_the_limit_is_left_out_and_counted(tmp_path: Path) -> None:
    async with cluster(tmp_path, config="[results]\nlog_mib = 1\n") as (member, _):
        stream = await member.attached()
        key = await stream.assign(argv=["python3", "-c", PRINTS % 40])
        result = await stream.result_of(key)
        assert result.log.omitted == 40 * 65536 - MIB
        objects = open_objects((tmp_path / "results").as_uri())
        read = whole(objects, log_key("default", key.run_id, key.fencing_token), result.log)
        assert sum(map(len, read.values())) == MIB


@pytest.mark.parametrize(
    ("handler", "size", "json"), [("large", MIB, False), ("text", 40_000, True)]
)
async def test_a_large_result_is_stored(
    tmp_path: Path, handler: str, size: int, json: bool
) -> None:
    (tmp_path / "large_handlers.py").write_text(HANDLERS)
    environ = {"PYTHONPATH": str(tmp_path)}
    config = 'handlers = ["large_handlers"]\n'
    async with cluster(tmp_path, config=config, environ=environ) as (member, _):
        stream = await member.attached()
        python = job_pb2.PythonAction(handler=handler)
        key = await stream.assign(python=python, payload=str(size))
        result = await stream.result_of(key)
        assert result.outcome == pb.Result.OUTCOME_SUCCEEDED
        assert not result.HasField("result")
        content = b"\xff" * size if not json else f'"{"é" * size}"'.encode()
        kept = result.stored_result
        assert (kept.size, kept.json, kept.problem) == (len(content), json, "")
        assert kept.sha256 == hashlib.sha256(content).digest()
        objects = open_objects((tmp_path / "results").as_uri())
        stored = result_key("default", key.run_id, key.fencing_token)
        assert b"".join(parts(objects, stored, kept.size, kept.sha256)) == content


async def test_a_temporarily_unavailable_store_loses_no_log(tmp_path: Path) -> None:
    server = S3Server()
    async with cluster(tmp_path, config=config_of(server)) as (member, worker):
        stream = await member.attached()
        key = await stream.assign(argv=["python3", "-c", PRINTS % 8])
        await wait_until_async(
            lambda: [*worker.spool.glob("*.results")], WAIT_TIMEOUT, "its end to be spooled"
        )
        server.start()
        try:
            result = await stream.result_of(key)
            assert result.log.problem == ""
            objects = open_objects(server.url, server.options)
            read = whole(objects, log_key("default", key.run_id, key.fencing_token), result.log)
            assert sum(map(len, read.values())) == 8 * 65536
        finally:
            server.stop()


async def test_an_unavailable_store_loses_the_log_and_not_the_result(tmp_path: Path) -> None:
    config = config_of(S3Server(), 'timeout = "1s"')
    async with cluster(tmp_path, config=config, slots="1") as (member, worker):
        stream = await member.attached()
        for _ in range(2):  # the one slot is free meanwhile
            key = await stream.assign(argv=["python3", "-c", PRINTS % 8])
            result = await stream.result_of(key)
            assert result.outcome == pb.Result.OUTCOME_SUCCEEDED
            assert result.log.problem
            assert sum(len(piece.data) for piece in result.output) == 4 * 65536
        assert not [*(worker.spool / "kept").iterdir()]


async def test_a_worker_killed_during_a_store_outage_loses_no_result(tmp_path: Path) -> None:
    config = config_of(S3Server(), 'timeout = "10m"')
    async with cluster(tmp_path, config=config) as (member, worker):
        stream = await member.attached()
        key = await stream.assign(argv=["python3", "-c", PRINTS % 8])
        await wait_until_async(
            lambda: [*worker.spool.glob("*.results")], WAIT_TIMEOUT, "its end to be spooled"
        )
        assert not stream.results
        worker.kill()
        worker.start()
        again = await member.attached(2)
        result = await again.result_of(key)
        assert result.outcome == pb.Result.OUTCOME_SUCCEEDED
        assert result.log.problem == "worker stopped before the upload"


async def test_a_worker_with_a_hanging_store_requests_no_work_beyond_its_spool_limit(
    tmp_path: Path, hanging: S3Server
) -> None:
    config = config_of(hanging, 'timeout = "3s"\nspool_mib = 1')
    async with cluster(tmp_path, config=config) as (member, _):
        stream = await member.attached()
        key = await stream.assign(argv=["python3", "-c", PRINTS % 10])
        await stream.until(lambda: stream.granted.slots == 0 or None, "no slots granted")
        await stream.until(lambda: stream.heartbeats[-1].refusal_reason or None, "why")
        assert "wait in the spool for the result store" in stream.heartbeats[-1].refusal_reason
        result = await stream.result_of(key)
        assert result.log.problem
        await stream.granted_at_least(1)


async def test_a_worker_that_ends_while_its_store_hangs_reports_all_ends_and_exits(
    tmp_path: Path, hanging: S3Server
) -> None:
    config = config_of(hanging, 'timeout = "10m"')
    async with cluster(tmp_path, config=config) as (member, worker):
        stream = await member.attached()
        key = await stream.assign(argv=["python3", "-c", PRINTS % 8])
        await wait_until_async(
            lambda: [*worker.spool.glob("*.results")], WAIT_TIMEOUT, "its end to be spooled"
        )
        worker.signal(signal.SIGTERM)
        result = await stream.result_of(key)
        assert result.outcome == pb.Result.OUTCOME_SUCCEEDED
        assert result.log.problem == "worker stopped before the upload"
        assert sum(len(piece.data) for piece in result.output) == 4 * 65536
        assert await worker.ended() == 0
        assert not [*worker.spool.glob("*.results")]
