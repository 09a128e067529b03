"""Bounds of every field that enters a process; a value out of them is named."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from schedkit.bounds import FRAME
from schedproto.v1 import peer_service_pb2, worker_service_pb2
from schedproto.v1 import worker_service_pb2 as wire
from support.messages import messages, unknown_rows

LAST_DAY = Timestamp(seconds=int(datetime(9999, 12, 31, tzinfo=UTC).timestamp()))
YEAR_ONE = Timestamp(seconds=int(datetime(1, 1, 1, tzinfo=UTC).timestamp()))
LAST_DAY_OFF = Duration(seconds=4_000 * 86_400)
KEY = wire.AssignmentKey(run_id=str(uuid4()), fencing_token=7)


def frames_and_calls() -> list[Descriptor]:
    services = (
        worker_service_pb2.DESCRIPTOR.services_by_name["WorkerService"],
        peer_service_pb2.DESCRIPTOR.services_by_name["PeerService"],
    )
    return [
        each
        for service in services
        for method in service.methods
        for each in (method.input_type, method.output_type)
    ]


def test_every_field_of_the_workers_stream_and_of_calls_between_members_has_bounds() -> None:
    found = messages(*frames_and_calls())
    assert [*unknown_rows(FRAME.table, found)] == []


def test_a_field_without_a_row_is_found() -> None:
    table = {name: {**rows} for name, rows in FRAME.table.items()}
    del table["schedd.v1.Result"]["digest"]
    found = [*unknown_rows(table, messages(*frames_and_calls()))]
    assert found == ["schedd.v1.Result.digest has no row"]


def hello(**changes: object) -> wire.Hello:
    plain = {"worker": "w1", "spool_id": "s", "incarnation": str(uuid4()), "slots": 4}
    return wire.Hello(**{**plain, **changes})


def result(**changes: object) -> wire.Result:
    plain = {
        "key": KEY,
        "incarnation": str(uuid4()),
        "outcome": wire.Result.OUTCOME_SUCCEEDED,
    }
    return wire.Result(**{**plain, **changes})


def far(key: wire.AssignmentKey = KEY) -> wire.AssignmentKey:
    return wire.AssignmentKey(run_id=key.run_id, fencing_token=7, scheduled_at=LAST_DAY)


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (result(key=far()), "key.scheduled_at"),
        (result(key=wire.AssignmentKey(run_id="x")), "key.run_id"),
        (result(started_at=YEAR_ONE), "started_at"),
        (result(finished_at=LAST_DAY), "finished_at"),
        (result(error="x" * 4_097), "error"),
        (result(digest=bytes(65)), "digest"),
        (result(outcome=99), "outcome"),
        (result(retry_after=Duration(seconds=1 << 62)), "retry_after"),
        (result(retry_after=Duration(seconds=-1)), "retry_after"),
        (result(output=[{"at": YEAR_ONE}]), "output.at"),
        (result(output=[{}] * 1_001), "output"),
        (wire.Refusal(key=far()), "key.scheduled_at"),
        (wire.Refusal(key=KEY, greatest_token_seen=(1 << 63) - 1), "greatest_token_seen"),
        (wire.Refusal(key=KEY, greatest_token_seen=-1), "greatest_token_seen"),
        (wire.Refusal(), "key"),
        (wire.RevokeAnswer(key=far()), "key.scheduled_at"),
        (hello(spooled=[far()]), "spooled.scheduled_at"),
        (hello(running=[far()]), "running.scheduled_at"),
        (hello(started_at=YEAR_ONE), "started_at"),
        (hello(worker="a/b"), "worker"),
        (hello(host="\0"), "host"),
        (hello(labels={"a": "\0"}), "labels"),
        (hello(labels={str(n): "" for n in range(1_001)}), "labels"),
        (hello(slots=20_001), "slots"),
        (wire.Heartbeat(worker_cluster_time=LAST_DAY), "worker_cluster_time"),
        (wire.Heartbeat(since_refresh=Duration(seconds=1, nanos=-1)), "since_refresh"),
        (wire.Granted(before={"waiting_since": LAST_DAY}), "before.waiting_since"),
        (wire.Granted(slots=-1), "slots"),
        (wire.Progress(key=KEY, fraction=float("nan")), "fraction"),
        (wire.Progress(key=KEY, done=float("inf")), "done"),
        (wire.Welcome(cluster_time=LAST_DAY), "cluster_time"),
        (wire.Assignment(key=KEY, start_by=LAST_DAY), "start_by"),
        (wire.Demand.Head(priority=77), "priority"),
        (peer_service_pb2.WakeUpRequest(shards=[256]), "shards"),
        (peer_service_pb2.WakeUpRequest(job_ids=["x"]), "job_ids"),
        (peer_service_pb2.WorkersRequest(incarnations=[b"x"]), "incarnations"),
        (wire.WorkerFrame(hello=hello(slots=-1)), "hello.slots"),
    ],
)
def test_a_value_out_of_its_bounds_is_named_by_its_path(message: Message, path: str) -> None:
    assert [at for at, _ in FRAME.violations(message)] == [path]


def test_an_invalid_field_for_display_is_cleared_and_its_message_counts() -> None:
    said = result(retry_after=LAST_DAY_OFF, output=[{"at": YEAR_ONE}], error="x" * 5_000)
    left, cleared = FRAME.tidy(said, "results")
    assert (left, {path for path, _ in cleared}) == (
        [],
        {"results.retry_after", "results.output.at", "results.error"},
    )
    assert FRAME.violations(said) == []
    assert said.outcome == wire.Result.OUTCOME_SUCCEEDED

    frame = wire.WorkerFrame(heartbeat={"free": 3, "disk_free_bytes": -1}, granted={"slots": -1})
    assert [path for path, _ in FRAME.tidy(frame)[0]] == ["granted.slots"]
    assert (frame.heartbeat.free, frame.heartbeat.disk_free_bytes) == (3, 0)


def test_an_invalid_item_of_a_frame_is_left_to_its_reader() -> None:
    frame = wire.WorkerFrame(results=[result(key=far()), result()])
    assert FRAME.violations(frame) == []
    assert [bool(FRAME.violations(one)) for one in frame.results] == [True, False]


def test_only_the_first_of_many_invalid_list_entries_are_reported() -> None:
    assert len(FRAME.violations(hello(spooled=[far()] * 100))) == 20
