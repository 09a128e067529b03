"""Recording of an attempt's output: bounded, and never a cause of failure."""

from __future__ import annotations

import hashlib
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from schedkit.objects import Unframed
from schedproto.v1 import run_pb2
from support.wait import WAIT_TIMEOUT, wait_until_async
from workerd.core.capture import Piece
from workerd.core.ids import AssignmentKey, RunId, Token
from workerd.logs import attempt_log as module
from workerd.logs.attempt_log import MOST_WAITING, AttemptLogFolder, Recording

KEY = AssignmentKey(RunId("run"), Token(7))
AT = datetime(2026, 1, 1, tzinfo=UTC)
CHUNK = 64 * 1024


@pytest.fixture
def folder(tmp_path: Path) -> AttemptLogFolder:
    return AttemptLogFolder(tmp_path / "kept", 1 << 30)


def feed(recording: Recording, count: int, *, size: int = CHUNK, begin: int = 0) -> bytes:
    """Feed `count` pieces; return the bytes."""
    data = b"".join(bytes([n % 256]) * size for n in range(count))
    for n in range(count):
        piece = data[n * size : (n + 1) * size]
        recording.record_piece(Piece(stderr=False, data=piece, offset=begin + n * size, at=AT))
    return data


async def test_the_file_has_all_output_in_order(folder: AttemptLogFolder) -> None:
    recording = Recording(folder, KEY, 1 << 30)
    data = feed(recording, 20)
    recorded = await recording.finish()
    content = recorded.file.read_bytes()
    pieces = [run_pb2.LogPiece.FromString(each) for each in Unframed().feed(content)]
    assert b"".join(piece.data for piece in pieces) == data
    assert (recorded.size, recorded.sha256) == (len(content), hashlib.sha256(content).digest())
    assert folder.used == len(content)
    folder.remove(recorded)
    assert (folder.used, recorded.file.exists()) == (0, False)


async def test_short_output_uses_no_disk(folder: AttemptLogFolder) -> None:
    recording = Recording(folder, KEY, 1 << 30)
    feed(recording, 10, size=100)
    await recording.discard()
    assert not folder.directory.exists()


async def test_output_past_the_limit_is_counted_and_not_recorded(
    folder: AttemptLogFolder,
) -> None:
    recording = Recording(folder, KEY, 3 * CHUNK + 5)
    data = feed(recording, 10)
    recorded = await recording.finish()
    pieces = Unframed().feed(recorded.file.read_bytes())
    kept = b"".join(run_pb2.LogPiece.FromString(each).data for each in pieces)
    assert kept == data[: 3 * CHUNK + 5]
    assert recording.omitted == len(data) - len(kept)


async def test_a_hanging_disk_is_waited_for_and_then_abandoned(
    folder: AttemptLogFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    stands, resume = threading.Event(), threading.Event()
    folder.thread.submit(lambda: (stands.set(), resume.wait()))
    stands.wait()
    recording = Recording(folder, KEY, 1 << 30)
    feed(recording, MOST_WAITING // CHUNK + 1)
    assert recording.full
    monkeypatch.setattr(module, "DISK_TIMEOUT", 0.05)
    await recording.room()
    assert not recording.full
    assert "too slow" in recording.problem
    feed(recording, 3)
    assert recording.omitted == 3 * CHUNK
    resume.set()
    await recording.discard()
    assert folder.used == 0


async def test_a_disk_that_catches_up_loses_no_output(folder: AttemptLogFolder) -> None:
    resume = threading.Event()
    folder.thread.submit(resume.wait)
    recording = Recording(folder, KEY, 1 << 30)
    data = feed(recording, MOST_WAITING // CHUNK + 1)
    assert recording.full
    resume.set()
    await recording.room()
    data += feed(recording, 2, begin=len(data))
    recorded = await recording.finish()
    pieces = Unframed().feed(recorded.file.read_bytes())
    assert b"".join(run_pb2.LogPiece.FromString(each).data for each in pieces) == data


async def test_a_full_disk_ends_the_recording_with_a_message(
    folder: AttemptLogFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESERVE", 1 << 60)
    recording = Recording(folder, KEY, 1 << 30)
    feed(recording, 3)
    await wait_until_async(lambda: recording.problem, WAIT_TIMEOUT, "it to end")
    with pytest.raises(OSError, match="full"):
        await recording.finish()


async def test_recordings_share_the_limit_of_the_spool(tmp_path: Path) -> None:
    folder = AttemptLogFolder(tmp_path / "kept", 10 * CHUNK)
    first, second = (
        Recording(folder, AssignmentKey(RunId(run), Token(1)), 1 << 30) for run in "ab"
    )
    feed(first, 12)
    recorded = await first.finish()
    feed(second, 2)
    with pytest.raises(OSError, match="spool"):
        await second.finish()
    folder.remove(recorded)
    third = Recording(folder, AssignmentKey(RunId("c"), Token(1)), 1 << 30)
    feed(third, 2)
    assert (await third.finish()).size > 2 * CHUNK


def test_a_result_without_room_leaves_no_file(
    folder: AttemptLogFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESERVE", 1 << 60)
    file = folder.file(KEY, "result")
    with pytest.raises(OSError, match="full"):
        module.write(folder, file, b"x")
    assert (folder.used, file.exists()) == (0, False)
