"""Whatever comes up a stream is read, or is a BadFrame: never a surprise for the member."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, timedelta
from uuid import uuid4

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from schedd.core.dispatch.successes import Success, instant_of
from schedd.core.ids import Id, IncarnationId, RunId, Token, new_id
from schedd.core.runs.model import Assigned
from schedd.rpc.workers import frames
from schedkit.bounds.rules import END_OF_TIME, FIRST_TIME
from schedproto.v1 import worker_service_pb2 as wire
from support.definitions import cached_definition
from support.dispatching import SHELL
from support.runs import NOW, running, worker

KNOWN = cached_definition(SHELL)
HUGE = 1 << 62
WORKER = IncarnationId(new_id())
KEY = wire.AssignmentKey(run_id=str(uuid4()), fencing_token=7)


def hello(**changes: object) -> wire.Hello:
    plain = {"worker": "w1", "spool_id": "s", "incarnation": str(uuid4()), "slots": 4}
    return wire.Hello(**{**plain, **changes})


def batch(**changes: object) -> wire.ResultBatch:
    """A batch of one success."""
    plain = {
        "incarnation": str(uuid4()),
        "run_ids": bytes(range(16)),
        "fencing_tokens": [7],
        "scheduled_at": [1],
        "started_at": [2],
        "finished_at": [3],
    }
    return wire.ResultBatch(**{**plain, **changes})


@pytest.mark.parametrize(
    "read",
    [
        lambda: frames.check(wire.AssignmentKey(run_id="no id")),
        lambda: frames.check(
            wire.AssignmentKey(run_id=str(uuid4()), scheduled_at=Timestamp(seconds=HUGE))
        ),
        lambda: frames.incarnation_of(hello(worker="")),
        lambda: frames.incarnation_of(hello(worker="a/b")),
        lambda: frames.incarnation_of(hello(worker="a" * 300)),
        lambda: frames.incarnation_of(hello(incarnation="x")),
        lambda: frames.incarnation_of(hello(slots=-1)),
        lambda: frames.incarnation_of(hello(started_at=Timestamp(seconds=-HUGE))),
        lambda: frames.readable(wire.Result(), WORKER),
        lambda: frames.readable(wire.Result(key=wire.AssignmentKey(run_id="x")), WORKER),
        lambda: frames.successes(batch(run_ids=bytes(15))),
        lambda: frames.successes(batch(run_ids=bytes(32))),
        lambda: frames.successes(batch(run_ids=b"")),
        lambda: frames.successes(batch(fencing_tokens=[])),
        lambda: frames.successes(batch(fencing_tokens=[7, 8])),
        lambda: frames.successes(batch(fencing_tokens=[-1])),
        lambda: frames.successes(batch(scheduled_at=[])),
        lambda: frames.successes(batch(scheduled_at=[HUGE])),
        lambda: frames.successes(batch(started_at=[1, 2])),
        lambda: frames.successes(batch(finished_at=[])),
        lambda: frames.successes(batch(incarnation="x")),
        lambda: frames.successes(batch(incarnation="")),
        lambda: frames.successes(
            batch(
                run_ids=bytes(16 * 2_001),
                **dict.fromkeys(
                    ("fencing_tokens", "scheduled_at", "started_at", "finished_at"), [1] * 2_001
                ),
            )
        ),
        lambda: frames.holdings(wire.Heartbeat(held=wire.Held(waiting=bytes(25)))),
        lambda: frames.holdings(wire.Heartbeat(held=wire.Held(running=bytes(24)))),
        lambda: frames.holdings(wire.Heartbeat(held=wire.Held(spooled=bytes(24 * 50_001)))),
        lambda: frames.check(wire.Heartbeat(holdings=[wire.Holding()])),
        lambda: frames.since_epoch(HUGE),
        lambda: frames.since_epoch(-62_135_596_800_000_000),
        lambda: frames.check(wire.Heartbeat(since_refresh=Duration(seconds=HUGE))),
        lambda: frames.check(wire.Heartbeat(worker_cluster_time=Timestamp(nanos=-1, seconds=HUGE))),
    ],
)
def test_an_invalid_message_of_a_worker_is_a_bad_frame(read: Callable[[], object]):
    with pytest.raises(frames.BadFrame):
        read()


def test_a_refusal_for_an_unknown_reason_is_a_refusal():
    assert frames.refusal(wire.Refusal(key=KEY, why=99), "w1", WORKER).why == "UNSPECIFIED"


def test_a_run_whose_result_waits_in_the_spool_isnt_running():
    states = (wire.Holding.STATE_HELD, wire.Holding.STATE_RUNNING, wire.Holding.STATE_SPOOLED)
    beat = wire.Heartbeat(holdings=[wire.Holding(key=KEY, state=state) for state in states])
    held = frames.holdings(beat)
    assert (held.unended, held.spooled) == (2, 1)


def test_a_start_time_is_exact_to_the_microsecond_in_each_encoding():
    listed = wire.Holding(key=KEY, state=wire.Holding.STATE_RUNNING, started_at=frames.stamp(NOW))
    [(_, token, since)] = frames.holdings(wire.Heartbeat(holdings=[listed])).starts()
    assert (token, frames.since_epoch(since)) == (7, NOW)


def test_an_assignment_has_its_earliest_start_if_that_is_in_the_future():
    pre_dispatched = replace(
        running(1, worker()), ready_at=NOW, start_by=NOW + timedelta(seconds=5)
    )
    message = frames.assignment(Assigned(pre_dispatched, None), KNOWN)
    assert message.not_before.ToDatetime(UTC) == NOW
    assert message.start_by.ToDatetime(UTC) == NOW + timedelta(seconds=5)
    at_once = replace(pre_dispatched, start_by=NOW + timedelta(seconds=7))
    assert not frames.assignment(Assigned(at_once, None), KNOWN).HasField("not_before")


def test_a_batch_of_successes_is_read_as_columns():
    sent = batch(
        run_ids=bytes(range(32)),
        fencing_tokens=[7, 8],
        scheduled_at=[1, 2],
        started_at=[3, 4],
        finished_at=[5, 6],
    )
    successes, why = frames.successes(sent)
    sender = IncarnationId(Id.parse(sent.incarnation))
    ids = [RunId(Id(bytes(range(16)))), RunId(Id(bytes(range(16, 32))))]
    assert why == ""
    assert [*successes] == [
        Success(ids[0], Token(7), sender, 1, 3, 5),
        Success(ids[1], Token(8), sender, 2, 4, 6),
    ]
    assert [successes[0], *successes[1:]] == [*successes]
    assert {type(one) for one in successes.run_ids} == {Id}, "named as ids everywhere"


def test_an_empty_batch_has_no_successes():
    successes, _ = frames.successes(wire.ResultBatch(incarnation=str(uuid4())))
    assert len(successes) == 0


def test_a_run_of_a_batch_ends_though_its_times_are_impossible():
    """A worker sends the result until a member takes it."""
    successes, why = frames.successes(batch(started_at=[-5], finished_at=[HUGE]))
    assert "result_batches.started_at" in why
    [one] = successes
    assert instant_of(one.started) == FIRST_TIME
    assert END_OF_TIME - instant_of(one.finished) == timedelta(microseconds=1)
