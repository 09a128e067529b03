"""Batches of successes on their way to members: split, answered in part, requested again."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from schedproto.v1 import worker_service_pb2 as pb
from support.fake_member import FakeMember, runs_of
from support.wait import WAIT_TIMEOUT, wait_until_async
from workerd import messages
from workerd.batches import SuccessBatch
from workerd.core.ids import Address, AssignmentKey, Incarnation, RunId, Token
from workerd.delivery import result_sender
from workerd.delivery.result_sender import RESEND_AFTER, ResultSender
from workerd.delivery.spool import Spool

ME = Incarnation("11111111-2222-3333-4444-555555555555")


class Stream:
    """A member's stream that records what the worker sends."""

    address = Address("m1")

    def __init__(self) -> None:
        self.results: list[pb.Result] = []
        self.batches: list[pb.ResultBatch] = []

    def send_result(self, result: pb.Result) -> None:
        self.results.append(result)

    def send_result_batch(self, batch: pb.ResultBatch) -> None:
        self.batches.append(batch)

    def take(self) -> list[list[tuple[str, int]]]:
        """Return the runs of each batch since the last call."""
        sent, self.batches = self.batches, []
        return [runs_of(batch) for batch in sent]


class RecordingSpool(Spool):
    """A spool that records its files, and rejects them while it is full."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.full = False
        self.written: list[pb.WorkerFrame] = []

    def write(self, frame: pb.WorkerFrame, results: Mapping[Path, int] | None = None) -> Path:
        if self.full:
            self.acknowledged(results or {})
            raise OSError(errno.ENOSPC, "No space left on device")
        self.written.append(frame)
        return super().write(frame, results)


def files(spool: Path) -> list[Path]:
    return [*spool.glob("*.results")]


def keys(count: int) -> list[AssignmentKey]:
    return [AssignmentKey(RunId(FakeMember().key().run_id), Token(5)) for _ in range(count)]


def successes(of: Sequence[AssignmentKey]) -> SuccessBatch:
    count = len(of)
    return SuccessBatch(ME, [*of], [1] * count, [2] * count, [3] * count)


def acknowledgement(of: Sequence[AssignmentKey]) -> pb.AckBatch:
    return pb.AckBatch(run_ids=messages.packed_ids(of), fencing_tokens=[token for _, token in of])


def single_result() -> pb.Result:
    return pb.Result(key=FakeMember().key())


@contextlib.asynccontextmanager
async def running(loop: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    task = asyncio.create_task(loop)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_batch_that_was_answered_in_part_before_it_is_split_is_written_once(
    tmp_path: Path,
) -> None:
    """W2: otherwise the worker writes it without end, and never leaves."""
    spool, stream, runs = RecordingSpool(tmp_path), Stream(), keys(8)
    sender = ResultSender(spool, lambda _keys, _verdict: None)
    sender.attached(stream)
    spool.full = True
    first = single_result()
    async with running(sender.keep_spooling()):
        sender.put(first, None)
        await wait_until_async(lambda: sender.refusal_reason, WAIT_TIMEOUT, "a full disk")
    sender.shut_down()
    sender.put_successes(successes(runs), None)
    async with running(sender.keep_sending()):
        await wait_until_async(lambda: stream.batches, WAIT_TIMEOUT, "the unspooled batch")
    assert stream.take() == [runs]
    sender.acknowledge((), [acknowledgement(runs[:2] + runs[5:7])])
    spool.full = False
    async with running(sender.keep_spooling()):
        await wait_until_async(lambda: not sender._unspooled, WAIT_TIMEOUT, "all to be on disk")
        written = [
            run for frame in spool.written for each in frame.result_batches for run in runs_of(each)
        ]
        assert written == [*runs[2:5], runs[7]]
        assert sender.count_remaining == (5, 0)
        accepted = pb.Acknowledgement.VERDICT_ACCEPTED
        sender.acknowledge(
            [pb.Acknowledgement(key=first.key, verdict=accepted)], [acknowledgement(runs)]
        )
        async with asyncio.timeout(WAIT_TIMEOUT):
            await sender.delivered()
    assert spool.size == 0
    spool.close()


async def test_a_batch_that_is_answered_while_it_is_written_is_removed(tmp_path: Path) -> None:
    spool, stream, runs = RecordingSpool(tmp_path), Stream(), keys(3)
    sender = ResultSender(spool, lambda _keys, _verdict: None)
    sender.attached(stream)
    sender.put_successes(successes(runs), None)
    (batch,) = sender._unspooled
    sender._send(batch)
    loop, write = asyncio.get_running_loop(), spool.write

    async def acknowledge() -> None:
        sender.acknowledge((), [acknowledgement(runs)])

    def answered(frame: pb.WorkerFrame, results: Mapping[Path, int]) -> Path:
        asyncio.run_coroutine_threadsafe(acknowledge(), loop).result(WAIT_TIMEOUT)
        return write(frame, results)

    spool.write = answered  # type: ignore[method-assign]
    async with running(sender.keep_spooling()):
        await wait_until_async(lambda: spool.written, WAIT_TIMEOUT, "the write")
        await wait_until_async(lambda: not spool.size, WAIT_TIMEOUT, "the removal of its file")
    assert len(spool.written) == 1
    spool.close()


async def test_a_file_that_cant_be_removed_delays_no_new_result_and_is_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New results are written by the same job of the thread."""
    spool, stream, first, second = Spool(tmp_path), Stream(), keys(2), keys(3)
    sender = ResultSender(spool, lambda _keys, _verdict: None)
    sender.attached(stream)
    sender.put_successes(successes(first), None)
    async with running(sender.keep_spooling()):
        await wait_until_async(lambda: stream.batches, WAIT_TIMEOUT, "the first batch")
        (old,) = files(tmp_path)
        unlink, refused = Path.unlink, list[Path]()

        def broken(path: Path, missing_ok: bool = False) -> None:
            if path == old and len(refused) < 2:
                refused.append(path)
                raise OSError(errno.EIO, "Input/output error")
            unlink(path, missing_ok)

        monkeypatch.setattr(Path, "unlink", broken)
        sender.put_successes(successes(second), None)
        sender.acknowledge((), [acknowledgement(first)])
        await wait_until_async(lambda: not old.exists(), WAIT_TIMEOUT, "the removal")
        assert len(refused) == 2
        assert stream.take() == [first, second]
        assert len(files(tmp_path)) == 1
    spool.close()


async def test_only_requested_results_are_sent_again_and_each_once_in_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request for one run must not bring the other 1,999 of its batch."""
    now = 1000.0
    monkeypatch.setattr(result_sender, "boottime", lambda: now)
    spool, stream, runs = Spool(tmp_path), Stream(), keys(10)
    sender = ResultSender(spool, lambda _keys, _verdict: None)
    sender.attached(stream)
    sender.put_successes(successes(runs), None)
    async with running(sender.keep_spooling()):
        await wait_until_async(lambda: stream.batches, WAIT_TIMEOUT, "the batch")
    assert stream.take() == [runs]
    sender.again(runs)
    assert stream.take() == [], "it was sent just now"
    sender.acknowledge((), [acknowledgement(runs[:1])])
    now += RESEND_AFTER
    sender.again([runs[0], runs[3], runs[1], runs[3]])
    assert stream.take() == [[runs[1], runs[3]]]
    sender.again(runs[1:5])
    assert stream.take() == [[runs[2], runs[4]]]
    sender.again(runs[1:5])
    assert stream.take() == []
    now += RESEND_AFTER
    sender.again(runs)
    assert stream.take() == [runs[1:]], "all that no member has answered"
    sender.again(runs[1:2])
    assert stream.take() == []
    sender.detached(stream)
    other = Stream()
    sender.attached(other)
    assert other.take() == [runs[1:]], "by another stream at once"
    spool.close()


async def test_batches_and_single_results_are_in_separate_files(tmp_path: Path) -> None:
    """W2: an earlier version can't read batches: it must not remove them with their file."""
    spool, stream, runs = RecordingSpool(tmp_path), Stream(), keys(4)
    sender = ResultSender(spool, lambda _keys, _verdict: None)
    sender.attached(stream)
    for part in (runs[:2], runs[2:]):
        sender.put(single_result(), None)
        sender.put_successes(successes(part), None)
    async with running(sender.keep_spooling()):
        await wait_until_async(lambda: not sender._unspooled, WAIT_TIMEOUT, "all to be on disk")
    counts = [(len(each.results), len(each.result_batches)) for each in spool.written]
    assert counts == [(2, 0), (0, 1)]
    assert len(stream.results) == 2
    assert stream.take() == [runs]
    spool.close()
