"""Values and the wire: instants as protobuf itself converts them, and nothing that is none."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta, timezone

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from schedd.rpc import frames
from schedproto.v1 import common_pb2, worker_service_pb2

FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def instants() -> list[datetime]:
    chance = random.Random(7)
    span = (LAST - FIRST) // timedelta(microseconds=1)
    drawn = [FIRST + timedelta(microseconds=chance.randrange(span)) for _ in range(500)]
    here = timezone(timedelta(hours=-9, minutes=-30))
    return [FIRST, LAST, datetime(1970, 1, 1, tzinfo=UTC), *drawn, drawn[0].astimezone(here)]


def test_instants_go_over_the_wire_as_protobuf_writes_them() -> None:
    for at in instants():
        theirs = Timestamp()
        theirs.FromDatetime(at)
        assert frames.stamp(at) == theirs
        assert frames.instant(theirs) == theirs.ToDatetime(tzinfo=UTC) == at
        assert frames.instant(theirs).utcoffset() == timedelta(0)


def test_durations_go_over_the_wire_as_protobuf_writes_them() -> None:
    for at in instants():
        mine, theirs = Duration(), Duration()
        frames.put_span(mine, at - FIRST)
        theirs.FromTimedelta(at - FIRST)
        assert mine == theirs


@pytest.mark.parametrize(
    "stamped",
    [
        Timestamp(nanos=-1),
        Timestamp(nanos=1_000_000_000),
        Timestamp(seconds=-62_135_596_801),
        Timestamp(seconds=253_402_300_800),
        Timestamp(seconds=2**63 - 1),
        Timestamp(seconds=-(2**63)),
    ],
)
def test_a_timestamp_that_no_calendar_has_is_a_bad_frame(stamped: Timestamp) -> None:
    key = worker_service_pb2.AssignmentKey(run_id="0" * 32, scheduled_at=stamped)
    with pytest.raises(frames.BadFrame, match=r"^key\.scheduled_at: .* out of range"):
        frames.check(key, "key")


@pytest.mark.parametrize(
    "wrong",
    [
        {"outcome": worker_service_pb2.Result.OUTCOME_UNSPECIFIED},
        {"outcome": 999},
        {"incarnation": "nobody"},
    ],
)
def test_a_result_that_says_nothing_known_is_a_bad_frame_each_time(
    wrong: dict[str, object],
) -> None:
    key = worker_service_pb2.AssignmentKey(run_id="0" * 32, fencing_token=1)
    said: dict[str, object] = {
        "key": key,
        "incarnation": "1" * 32,
        "outcome": worker_service_pb2.Result.OUTCOME_SUCCEEDED,
        "reason": common_pb2.REASON_UNSPECIFIED,
    }
    assert frames.reported(worker_service_pb2.Result(**said), "w1").reason is None  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(frames.BadFrame):
            frames.reported(worker_service_pb2.Result(**said | wrong), "w1")  # type: ignore[arg-type]


def test_a_reason_of_a_newer_worker_is_read_as_none() -> None:
    result = worker_service_pb2.Result(
        key=worker_service_pb2.AssignmentKey(run_id="0" * 32, fencing_token=1),
        incarnation="1" * 32,
        outcome=worker_service_pb2.Result.OUTCOME_FAILED,
        reason=999,  # type: ignore[arg-type]  # a number without a name
    )
    assert frames.reported(result, "w1").reason is None
