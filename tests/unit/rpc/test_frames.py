"""Values and the wire: instants as protobuf itself converts them, and nothing that is none."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta, timezone

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from schedd.core.ids import Id, IncarnationId
from schedd.core.runs.retry import ReportedOutcome
from schedd.rpc.workers import frames
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


SENDER = IncarnationId(Id.parse("1" * 32))


def wire_result(**changes: object) -> worker_service_pb2.Result:
    fields: dict[str, object] = {
        "key": worker_service_pb2.AssignmentKey(run_id="0" * 32, fencing_token=1),
        "incarnation": "1" * 32,
        "outcome": worker_service_pb2.Result.OUTCOME_SUCCEEDED,
        "reason": common_pb2.REASON_UNSPECIFIED,
        "digest": bytes(32),
    }
    return worker_service_pb2.Result(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"outcome": worker_service_pb2.Result.OUTCOME_UNSPECIFIED},
        {"outcome": 999},
        {"incarnation": "unknown"},
        {"digest": bytes(65)},
        {"result": {"json": "a\0b"}},
    ],
)
def test_a_result_of_an_unknown_kind_is_a_failed_attempt(wrong: dict[str, object]) -> None:
    """Dropped, its run would be taken for one that never started, and start once more."""
    result, again = wire_result(**wrong), wire_result(**wrong)
    [field] = wrong
    assert frames.readable(result, SENDER).startswith(f"results.{field}")
    found = frames.reported(result, "w1")
    assert (found.outcome, found.sender, found.result) == (ReportedOutcome.FAILED, SENDER, None)
    assert f"isn't valid: results.{field}" in found.error
    frames.readable(again, SENDER)
    assert frames.reported(again, "w1") == found  # sent again, it is the same one


def test_unreadable_optional_fields_are_left_out_and_the_result_counts() -> None:
    """As a Retry-After of the year 9999, by a worker of the version before."""
    result = wire_result(retry_after={"seconds": 4_000 * 86_400}, started_at={"seconds": -1})
    assert "and 1 more" in frames.readable(result, SENDER)
    found = frames.reported(result, "w1")
    assert (found.outcome, found.retry_after, found.started_at) == (
        ReportedOutcome.SUCCEEDED,
        None,
        None,
    )


def test_a_reason_of_a_newer_worker_is_read_as_none() -> None:
    result = worker_service_pb2.Result(
        key=worker_service_pb2.AssignmentKey(run_id="0" * 32, fencing_token=1),
        incarnation="1" * 32,
        outcome=worker_service_pb2.Result.OUTCOME_FAILED,
        reason=999,  # type: ignore[arg-type]  # a number without a name
    )
    assert frames.reported(result, "w1").reason is None
