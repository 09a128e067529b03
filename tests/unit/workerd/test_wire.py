"""Timestamps and durations of messages, converted as protobuf converts them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from uuid import uuid4

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as some

from schedd.core.ids import Id
from schedd.rpc.request_decoding import MOST_PARTS_OF_FRAME, reader
from schedd.rpc.workers import frames
from schedkit.net.channel import MAX_MESSAGE
from schedproto.v1 import common_pb2, run_pb2
from schedproto.v1 import worker_service_pb2 as pb
from workerd import messages
from workerd.config import MOST_SLOTS, WorkerConfig
from workerd.core.admission import AssignmentState
from workerd.core.ids import AssignmentKey, Incarnation, RunId, Token
from workerd.core.outcome import AttemptOutcome, AttemptVerdict, OutcomeReason, digest
from workerd.frame_queue import MAX_ITEMS
from workerd.runs.assignments import MOST_LISTED

EPOCH = datetime(1970, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=45)))


@given(some.timedeltas(timedelta(days=-700_000), timedelta(days=2_900_000)))
def test_an_instant_is_written_and_read_as_protobuf_does(since: timedelta) -> None:
    instant = EPOCH + since
    ours, theirs = Timestamp(), Timestamp()
    messages.put(instant, ours)
    theirs.FromDatetime(instant)
    assert ours == theirs
    assert messages.date_at(messages.microseconds(ours)) == instant


@given(some.integers(-62_135_596_800, 253_402_300_799), some.integers(0, 999_999_999))
def test_an_instant_of_nanoseconds_is_cut_to_the_microsecond(seconds: int, nanos: int) -> None:
    stamp = Timestamp(seconds=seconds, nanos=nanos)
    assert messages.date_at(messages.microseconds(stamp)) == stamp.ToDatetime(tzinfo=UTC)


@given(some.integers(-(10**9), 10**9), some.integers(0, 999_999_999))
def test_a_duration_is_read_as_protobuf_does(seconds: int, nanos: int) -> None:
    span = Duration(seconds=seconds, nanos=nanos if seconds >= 0 else -nanos)
    assert messages.span_of(span) == span.ToTimedelta()


@pytest.mark.parametrize("verdict", AttemptVerdict)
@pytest.mark.parametrize("reason", OutcomeReason)
def test_each_end_has_its_number_on_the_wire(
    verdict: AttemptVerdict, reason: OutcomeReason
) -> None:
    key, message = AssignmentKey(RunId("r"), Token(7)), pb.AssignmentKey(run_id="r")
    outcome = AttemptOutcome(verdict, reason)
    result = messages.result(key, message, Incarnation("i"), "w1", outcome, 7, 7)
    assert pb.Result.Outcome.Name(result.outcome) == f"OUTCOME_{verdict.name}"
    assert common_pb2.Reason.Name(result.reason).startswith("REASON_")
    assert result.reason == reason.value
    assert (result.key, result.incarnation) == (message, "i")
    assert result.digest == digest(key, outcome)


def test_the_same_outcome_has_the_digest_that_it_had_in_every_version() -> None:
    outcome = AttemptOutcome(AttemptVerdict.FAILED, OutcomeReason.EXIT_CODE, "exit code 3", 3)
    assert digest(AssignmentKey(RunId("r"), Token(1 << 33)), outcome).hex() == (
        "32ebc68ed6115638c00c65eaa57c42967f1385f61bbc546cffa99b3d0225aa93"
    )


@pytest.mark.slow
async def test_a_heartbeat_with_the_most_held_runs_is_read_by_a_member() -> None:
    """A frame's worth of results is sent along; a rejected frame would cost stream and lease."""
    now = datetime(2026, 11, 25, 9, 30, 17, 123_456, UTC)
    key = pb.AssignmentKey(run_id=str(uuid4()), fencing_token=2**62)
    messages.put(now, key.scheduled_at)
    beat = pb.Heartbeat()
    at = messages.microseconds(key.scheduled_at)
    messages.pack_holdings(
        beat, [(messages.key_of(key), at, AssignmentState.RUNNING, at)] * MOST_LISTED
    )
    piece = run_pb2.LogPiece(data=bytes(2_000))
    results = [pb.Result(key=key, output=[piece], finished_at=key.scheduled_at)] * MAX_ITEMS
    frame = pb.WorkerFrame(heartbeat=beat, results=results).SerializeToString()
    assert MOST_SLOTS < MOST_LISTED
    assert len(frame) < 0.9 * MAX_MESSAGE
    read = reader(pb.WorkerFrame, MOST_PARTS_OF_FRAME)(frame)
    assert isinstance(read, pb.WorkerFrame)
    assert frames.holdings(read.heartbeat).unended == MOST_LISTED


def test_a_member_reads_held_runs_and_their_start_times_from_a_heartbeat() -> None:
    start = datetime(2026, 11, 25, 9, 30, 17, 123_456, UTC)
    keys = [AssignmentKey(RunId(str(uuid4())), Token(2**62 + at)) for at in range(5)]
    states = [
        AssignmentState.HELD,
        AssignmentState.HELD,
        AssignmentState.RUNNING,
        AssignmentState.ENDED,
        AssignmentState.ENDED,
    ]
    starts = [None, None, round(start.timestamp() * 1e6), None, None]
    beat = pb.Heartbeat()
    messages.pack_holdings(beat, zip(keys, range(5), states, starts, strict=True))

    held = frames.holdings(beat)
    listed = [(Id.parse(run), token) for run, token in keys]
    assert (held.unended, held.spooled, {*held}) == (3, 2, {*listed})
    [(run, token, since)] = held.starts()
    assert ((run, token), frames.since_epoch(since)) == (listed[2], start)


def test_more_slots_than_a_heartbeat_can_list_are_rejected_with_the_reason() -> None:
    config = WorkerConfig(("localhost:1",), Path("spool"), slots=MOST_SLOTS + 1)
    [fault] = map(str, config.faults())
    assert fault.startswith(
        "slots: must be from 1 to 20000, not 20001; for more slots run several workers"
    )
