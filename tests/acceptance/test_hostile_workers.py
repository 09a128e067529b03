"""A worker that sends what no worker should: it is refused by name, and no member ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from acceptance.conftest import pids
from schedclient import SyncClient
from schedd.core.ids import new_id
from schedkit.clock import utcnow
from schedproto.v1 import worker_service_pb2 as pb
from support.cluster import DevCluster
from support.raw_worker import RawWorker, first_assigned, hello
from support.wait import WAIT_TIMEOUT, wait_until

LAST_DAY = Timestamp(seconds=int(datetime(9999, 12, 31, tzinfo=UTC).timestamp()))
YEAR_ONE = Timestamp(seconds=int(datetime(1, 1, 1, tzinfo=UTC).timestamp()))


@pytest.fixture(autouse=True)
def all_processes_survive(quiet_cluster: DevCluster) -> Iterator[None]:
    """Whatever a test sends, every member and worker runs on, takes work and shows its pages."""
    before = pids(quiet_cluster)
    yield
    for member in quiet_cluster.record["members"]:
        for page in ("/", "/runs"):
            answer = quiet_cluster.get(member["name"], page)
            assert answer is not None
            assert answer.status == 200, page
    done = quiet_cluster.schedctl("submit", "--wait", "--", "true")
    assert done.returncode == 0, done.stderr
    assert pids(quiet_cluster) == before
    for name in before:
        assert quiet_cluster.process(name).alive(), name


def key(at: Timestamp | None = None, token: int = 1 << 32) -> pb.AssignmentKey:
    found = pb.AssignmentKey(run_id=str(uuid4()), fencing_token=token)
    found.scheduled_at.FromDatetime(utcnow())
    if at is not None:
        found.scheduled_at.CopyFrom(at)
    return found


def result(worker: RawWorker, of: pb.AssignmentKey, **changes: object) -> pb.Result:
    plain = {
        "incarnation": worker.hello.incarnation,
        "digest": bytes(32),
        "outcome": pb.Result.OUTCOME_SUCCEEDED,
    }
    return pb.Result(key=of, **{**plain, **changes})


@pytest.mark.parametrize("at", [LAST_DAY, YEAR_ONE], ids=["year 9999", "year 1"])
async def test_a_result_of_an_impossible_time_is_set_aside_and_the_others_are_answered(
    quiet_cluster: DevCluster, at: Timestamp
) -> None:
    async with RawWorker(quiet_cluster.endpoints[0]) as worker:
        await worker.welcomed()
        wrong, right = key(at), key()
        late = result(worker, key(), started_at=at)
        await worker.send(
            pb.WorkerFrame(results=[result(worker, wrong), late, result(worker, right)])
        )
        for each in (wrong, late.key, right):
            assert (await worker.answered(each)).verdict == pb.Acknowledgement.VERDICT_STALE
        assert worker.status is None
        name = worker.hello.worker

    def audited() -> list[str]:
        rows = quiet_cluster.json("audit", "list", "--object", f"worker/{name}")
        return [row["action"] for row in rows if row["action"] == "result"]

    assert wait_until(audited, WAIT_TIMEOUT, "a row of the audit log") == ["result"]


@pytest.mark.parametrize(
    ("wrong", "state"),
    [
        ({"retry_after": {"seconds": 4_000 * 86_400}}, "SUCCEEDED"),
        ({"started_at": YEAR_ONE}, "SUCCEEDED"),
        ({"outcome": 99}, "FAILED"),
        ({"incarnation": "unknown", "digest": bytes(65)}, "FAILED"),
    ],
)
async def test_a_run_whose_result_is_out_of_bounds_ends_and_never_starts_again(
    quiet_cluster: DevCluster, quiet_client: SyncClient, wrong: dict[str, object], state: str
) -> None:
    """Were its result dropped, the run would be taken for one that never started."""
    name = f"raw-{uuid4().hex[:8]}"
    action = {"actions": ["python"], "handlers": [name]}
    first = hello(name, **action)
    async with AsyncExitStack() as stack:
        streams = [RawWorker(endpoint, first) for endpoint in quiet_cluster.endpoints]
        for each in streams:
            await stack.enter_async_context(each)
            await each.welcomed()
        run = await asyncio.to_thread(
            quiet_client.submit, python={"handler": name}, delivery="at_most_once"
        )
        worker, assigned = await first_assigned(streams)
        await worker.send(pb.WorkerFrame(results=[result(worker, assigned.key, **wrong)]))
        answer = await worker.answered(assigned.key)
        assert answer.verdict == pb.Acknowledgement.VERDICT_ACCEPTED
        await worker.beat(1_000, free=1)
        found = await asyncio.to_thread(quiet_cluster.json, "run", "get", run.run_id)
        assert (found["state"], found["attempt"]) == (state, 1)
        audit = ("audit", "list", "--object", f"worker/{name}")
        assert "results." in json.dumps(await asyncio.to_thread(quiet_cluster.json, *audit))


@pytest.mark.parametrize(
    ("kind", "item", "field"),
    [
        (
            "refusal",
            pb.Refusal(key=key(), greatest_token_seen=(1 << 63) - 1),
            "refusals.greatest_token_seen",
        ),
        ("refusal", pb.Refusal(key=key(LAST_DAY)), "refusals.key.scheduled_at"),
        ("refusal", pb.Refusal(), "refusals.key"),
        (
            "revoke_answer",
            pb.RevokeAnswer(key=key(LAST_DAY), outcome=pb.RevokeAnswer.OUTCOME_REVOKED),
            "revoke_answers.key.scheduled_at",
        ),
    ],
)
async def test_a_refusal_or_revoke_answer_out_of_its_bounds_is_set_aside_and_audited(
    quiet_cluster: DevCluster, kind: str, item: Message, field: str
) -> None:
    async with RawWorker(quiet_cluster.endpoints[0]) as worker:
        await worker.welcomed()
        good, name = key(), worker.hello.worker
        frame = pb.WorkerFrame(results=[result(worker, good)])
        getattr(frame, f"{kind}s").append(item)
        await worker.send(frame)
        await worker.answered(good)
        assert worker.status is None

    def problems() -> list[str]:
        rows = quiet_cluster.json("audit", "list", "--object", f"worker/{name}")
        return [json.loads(row["after"])["problem"] for row in rows if row["action"] == kind]

    [problem] = wait_until(problems, WAIT_TIMEOUT, "a row of the audit log")
    assert problem.startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"spooled": [key(LAST_DAY)]}, "hello.spooled.scheduled_at"),
        ({"running": [key(LAST_DAY)]}, "hello.running.scheduled_at"),
        ({"started_at": YEAR_ONE}, "hello.started_at"),
        ({"slots": -1}, "hello.slots"),
        ({"spool_id": "a\0b"}, "hello.spool_id"),
    ],
)
async def test_a_hello_out_of_its_bounds_is_refused_with_the_field_named(
    quiet_cluster: DevCluster, changes: dict[str, object], field: str
) -> None:
    first = hello(f"raw-{uuid4().hex[:8]}", **changes)
    async with RawWorker(quiet_cluster.endpoints[0], first) as worker:
        status, message = await worker.ended()
        assert (status, message.split(":")[0]) == ("INVALID_ARGUMENT", field)


async def test_a_heartbeat_that_claims_a_start_in_year_one_changes_nothing(
    quiet_cluster: DevCluster,
) -> None:
    long_ago = int(YEAR_ONE.seconds * 1_000_000)
    piece = new_id() + (1 << 32).to_bytes(8, "big", signed=True)
    running = piece + long_ago.to_bytes(8, "big", signed=True)
    async with RawWorker(quiet_cluster.endpoints[0]) as worker:
        await worker.welcomed()
        beat = pb.Heartbeat(sequence=1, free=1, held=pb.Held(running=running))
        beat.worker_cluster_time.FromDatetime(utcnow())
        good = key()
        await worker.send(pb.WorkerFrame(heartbeat=beat, results=[result(worker, good)]))
        await worker.answered(good)
        await worker.send(
            pb.WorkerFrame(heartbeat=pb.Heartbeat(sequence=2, worker_cluster_time=YEAR_ONE))
        )
        status, message = await worker.ended()
        assert (status, message.split(":")[0]) == (
            "INVALID_ARGUMENT",
            "heartbeat.worker_cluster_time",
        )
