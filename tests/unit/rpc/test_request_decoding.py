"""Requests are read from bytes that anybody may have sent."""

from __future__ import annotations

import random

import pytest

from faults.hostile import garbage
from schedd.rpc.request_decoding import MOST_PARTS, MOST_PARTS_OF_FRAME, UndecodedRequest, reader
from schedproto.v1 import job_service_pb2 as jobs
from schedproto.v1 import peer_service_pb2 as peers
from schedproto.v1 import worker_service_pb2 as workers

NONSENSE = dict(garbage.nonsense(random.Random(0)))
CREATE = reader(jobs.CreateJobRequest)
FRAME = reader(workers.WorkerFrame, MOST_PARTS_OF_FRAME)


def test_a_message_of_a_client_is_read() -> None:
    sent = jobs.CreateJobRequest(idempotency_key="k")
    sent.job.shell.argv.extend(["echo"] * 1000)
    assert CREATE(sent.SerializeToString()) == sent


@pytest.mark.parametrize("name", [*NONSENSE])
def test_a_malformed_message_is_an_invalid_argument(name: str) -> None:
    found = CREATE(NONSENSE[name])
    assert isinstance(found, UndecodedRequest)
    assert found.status == "INVALID_ARGUMENT"


@pytest.mark.parametrize("field", [1, 2, 3, 60])
def test_a_message_of_a_million_parts_is_refused_before_they_are_made(field: int) -> None:
    for read in (CREATE, FRAME):
        found = read(garbage.wide(field))
        assert isinstance(found, UndecodedRequest)
        assert (found.status, found.reason) == ("RESOURCE_EXHAUSTED", "TOO_MANY_PARTS")


def test_nested_parts_count_for_the_limit_too() -> None:
    found = CREATE(garbage.inside(1, garbage.wide(33)))
    assert isinstance(found, UndecodedRequest)
    assert found.reason == "TOO_MANY_PARTS"


def test_packed_numbers_count_each() -> None:
    nudge = peers.WakeUpRequest(shards=[1] * (3 * MOST_PARTS))
    found = reader(peers.WakeUpRequest)(nudge.SerializeToString())
    assert isinstance(found, UndecodedRequest)
    assert found.reason == "TOO_MANY_PARTS"


@pytest.mark.slow
def test_a_frame_of_all_results_that_a_worker_may_hold_is_read() -> None:
    sent, runs = workers.WorkerFrame(), 500
    for _ in range(22_000 // runs):
        sent.result_batches.add(
            incarnation="0f6c52ab-0000-4000-8000-000000000000",
            run_ids=bytes(16) * runs,
            fencing_tokens=[1 << 40] * runs,
            scheduled_at=[1_790_000_000_000_000] * runs,
            started_at=[1_790_000_000_000_000] * runs,
            finished_at=[1_790_000_000_000_000] * runs,
        )
    assert len(sent.SerializeToString()) > 1_000_000
    assert FRAME(sent.SerializeToString()) == sent


def test_packed_numbers_of_fixed_width_count_by_their_number() -> None:
    sent = workers.WorkerFrame()
    sent.result_batches.add(started_at=[1] * (MOST_PARTS_OF_FRAME + 1))
    found = FRAME(sent.SerializeToString())
    assert isinstance(found, UndecodedRequest)
    assert found.reason == "TOO_MANY_PARTS"


def test_a_long_text_is_one_part() -> None:
    sent = jobs.CreateJobRequest()
    sent.job.payload.json = '"' + "\0" * 3_000_000 + '"'
    assert CREATE(sent.SerializeToString()) == sent


@pytest.mark.slow
def test_the_heartbeat_of_a_worker_with_25_000_runs_is_read() -> None:
    sent = workers.WorkerFrame()
    for token in range(1, 25_001):
        held = sent.heartbeat.holdings.add(state=workers.Holding.STATE_RUNNING)
        held.key.run_id = "0f6c52ab-0000-4000-8000-000000000000"
        held.key.fencing_token = token << 32
        held.key.scheduled_at.FromSeconds(1_790_000_000 + token)
        held.started_at.FromSeconds(1_790_000_000 + token)
    assert isinstance(FRAME(sent.SerializeToString()), workers.WorkerFrame)
