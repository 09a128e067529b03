"""Batching of frames to a member."""

from __future__ import annotations

from schedproto.v1 import run_pb2
from schedproto.v1 import worker_service_pb2 as pb
from workerd.core.ids import Address
from workerd.frame_queue import MAX_BYTES, MAX_ITEMS, MemberFrameQueue


def result(size: int = 0) -> pb.Result:
    return pb.Result(error="x" * size)


async def test_waiting_messages_are_sent_together_in_bounded_frames() -> None:
    outbox = MemberFrameQueue(Address("m1"))
    for _ in range(MAX_ITEMS + 1):
        outbox.send_result(result())
    outbox.send_refusal(pb.Refusal())
    first = outbox.take_frame()
    assert (len(first.refusals), len(first.results)) == (1, MAX_ITEMS - 1)
    await outbox.wait()
    assert len(outbox.take_frame().results) == 2


async def test_large_results_are_spread_over_frames() -> None:
    outbox = MemberFrameQueue(Address("m1"))
    for _ in range(4):
        outbox.send_result(result(MAX_BYTES // 2))
    assert len(outbox.take_frame().results) == 2
    assert len(outbox.take_frame().results) == 2


async def test_followed_output_is_sent_last_and_dropped_if_there_is_no_room() -> None:
    outbox = MemberFrameQueue(Address("m1"))
    piece = run_pb2.LogPiece(data=bytes(MAX_BYTES // 5))
    for _ in range(10):
        outbox.send_log(pb.LogChunk(piece=piece))
    for _ in range(2):
        outbox.send_result(result(MAX_BYTES // 2))
    first = outbox.take_frame()
    assert (len(first.results), len(first.log_chunks)) == (2, 0)
    assert len(outbox.take_frame().log_chunks) == 4
    outbox.send_log(pb.LogChunk(piece=piece))
    assert len(outbox.take_frame().log_chunks) == 1


async def test_only_the_newest_grant_is_sent() -> None:
    outbox = MemberFrameQueue(Address("m1"))
    outbox.send_grant(pb.Granted(slots=1, received=0))
    outbox.send_grant(pb.Granted(slots=4, received=2))
    assert outbox.take_frame().granted == pb.Granted(slots=4, received=2)
    assert not outbox.take_frame().HasField("granted")


async def test_the_end_of_the_stream_follows_all_waiting_messages() -> None:
    outbox = MemberFrameQueue(Address("m1"))
    outbox.end(pb.WorkerFrame(goodbye=pb.Goodbye()))
    for _ in range(MAX_ITEMS + 1):
        outbox.send_result(result())
    assert not outbox.take_frame().HasField("goodbye")
    assert not outbox.over
    assert outbox.take_frame().HasField("goodbye")
    assert outbox.over
