"""Calls take an object by its id or name, or by the value that an earlier call returned."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import pytest
from google.protobuf import message_factory
from google.protobuf.message import Message

from schedclient import Client
from schedclient.values.base import Value
from schedclient.values.cluster import Member, Worker
from schedclient.values.dead_letters import DeadLetter, Redrive
from schedclient.values.jobs import Backfill, Calendar, Job, Pool
from schedclient.values.reading import value_of
from schedclient.values.runs import Run
from schedproto.v1 import (
    calendar_service_pb2,
    cluster_service_pb2,
    common_pb2,
    job_pb2,
    job_service_pb2,
    pool_service_pb2,
    run_pb2,
    run_service_pb2,
)
from support.scripted import SERVICES, Scripted

ENDED = run_pb2.Run(run_id="the-run", state=common_pb2.RUN_STATE_SUCCEEDED)
RUN = value_of(Run, ENDED)
LETTER = value_of(DeadLetter, run_pb2.DeadLetter(run=ENDED))
JOB = value_of(Job, job_pb2.Job(job_id="the-job", name="etl", namespace="elsewhere"))
POOL = value_of(Pool, pool_service_pb2.Pool(name="the-pool", namespace="elsewhere"))
CALENDAR = value_of(
    Calendar, calendar_service_pb2.Calendar(name="the-calendar", namespace="elsewhere")
)
BACKFILL = value_of(Backfill, job_service_pb2.Backfill(backfill_id="the-backfill"))
REDRIVE = value_of(Redrive, run_pb2.Redrive(redrive_id="the-redrive"))
WORKER = value_of(Worker, cluster_service_pb2.Worker(name="the-worker"))
MEMBER = value_of(Member, cluster_service_pb2.Member(name="the-member"))

DAY = "2026-11-20T00:00:00Z"


class Call(NamedTuple):
    """A call of the client, the wire's name of it, and what it is on."""

    wire: str
    value: Value
    said: str
    do: Callable[[Client, Any], Awaitable[Any] | AsyncIterator[Any]]


CALLS = [
    Call("GetRun", RUN, "the-run", lambda c, run: c.runs.get(run)),
    Call("WatchRuns", RUN, "the-run", lambda c, run: c.runs.watch(run)),
    Call("WatchRuns", RUN, "the-run", lambda c, run: c.runs.wait(run)),
    Call("CancelRun", RUN, "the-run", lambda c, run: c.runs.cancel(run)),
    Call("RetryRun", RUN, "the-run", lambda c, run: c.runs.retry(run)),
    Call("ReadLogs", RUN, "the-run", lambda c, run: c.runs.logs(run)),
    Call("ListAttempts", RUN, "the-run", lambda c, run: c.runs.attempts(run)),
    Call("ExplainRun", RUN, "the-run", lambda c, run: c.runs.why(run)),
    Call("GetRunResult", RUN, "the-run", lambda c, run: c.runs.result(run)),
    Call("GetDeadLetter", RUN, "the-run", lambda c, run: c.dead_letters.get(run)),
    Call("GetDeadLetter", LETTER, "the-run", lambda c, one: c.dead_letters.get(one)),
    Call(
        "DiscardDeadLetters",
        LETTER,
        "the-run",
        lambda c, one: c.dead_letters.discard(run_ids=[one]),
    ),
    Call("GetJob", JOB, "the-job", lambda c, job: c.jobs.get(job)),
    Call("UpdateJob", JOB, "the-job", lambda c, job: c.jobs.update(job, timeout="5s")),
    Call("DeleteJob", JOB, "the-job", lambda c, job: c.jobs.delete(job)),
    Call("PauseJob", JOB, "the-job", lambda c, job: c.jobs.pause(job)),
    Call("ResumeJob", JOB, "the-job", lambda c, job: c.jobs.resume(job)),
    Call("TriggerJob", JOB, "the-job", lambda c, job: c.jobs.trigger(job)),
    Call("ListNextInstants", JOB, "the-job", lambda c, job: c.jobs.next(job)),
    Call("ExplainInstant", JOB, "the-job", lambda c, job: c.jobs.explain(job, DAY)),
    Call("BackfillJob", JOB, "the-job", lambda c, job: c.jobs.backfill(job, DAY, DAY)),
    Call("ListBackfills", JOB, "the-job", lambda c, job: c.jobs.backfills(job)),
    Call("GetBackfill", BACKFILL, "the-backfill", lambda c, one: c.jobs.get_backfill(one)),
    Call("WatchBackfill", BACKFILL, "the-backfill", lambda c, one: c.jobs.watch_backfill(one)),
    Call("CancelBackfill", BACKFILL, "the-backfill", lambda c, one: c.jobs.cancel_backfill(one)),
    Call("GetRedrive", REDRIVE, "the-redrive", lambda c, one: c.redrives.get(one)),
    Call("WatchRedrive", REDRIVE, "the-redrive", lambda c, one: c.redrives.watch(one)),
    Call("StopRedrive", REDRIVE, "the-redrive", lambda c, one: c.redrives.stop(one)),
    Call("ResumeRedrive", REDRIVE, "the-redrive", lambda c, one: c.redrives.resume(one)),
    Call("GetPool", POOL, "the-pool", lambda c, pool: c.pools.get(pool)),
    Call("DeletePool", POOL, "the-pool", lambda c, pool: c.pools.delete(pool)),
    Call("PausePool", POOL, "the-pool", lambda c, pool: c.pools.pause(pool)),
    Call("ResumePool", POOL, "the-pool", lambda c, pool: c.pools.resume(pool)),
    Call("GetCalendar", CALENDAR, "the-calendar", lambda c, one: c.calendars.get(one)),
    Call("DeleteCalendar", CALENDAR, "the-calendar", lambda c, one: c.calendars.delete(one)),
    Call("GetWorker", WORKER, "the-worker", lambda c, one: c.workers.get(one)),
    Call("WatchWorker", WORKER, "the-worker", lambda c, one: anext(c.workers.watch(one))),
    Call("DrainWorker", WORKER, "the-worker", lambda c, one: c.workers.drain(one)),
    Call("UndrainWorker", WORKER, "the-worker", lambda c, one: c.workers.undrain(one)),
    Call("TransferLeader", MEMBER, "the-member", lambda c, one: c.cluster.transfer_leader(one)),
]
every_call = pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.wire}-{call.said}")

TO_THE_END: dict[str, list[Message]] = {
    "WatchRuns": [run_service_pb2.RunEvent(run=ENDED)],
    "WatchRedrive": [run_pb2.Redrive(state=run_pb2.Redrive.STATE_DONE)],
    "WatchBackfill": [job_service_pb2.Backfill(state=job_service_pb2.Backfill.STATE_DONE)],
    "WatchWorker": [cluster_service_pb2.Worker()],
}
"""Streams after which a watch makes no more requests."""


def answer_to(call: str) -> Any:
    """Return the shortest answer of a member. A stream's answer ends it."""
    if call in TO_THE_END:
        return TO_THE_END[call]
    [method] = [one.methods_by_name[call] for one in SERVICES if call in one.methods_by_name]
    return [] if method.server_streaming else message_factory.GetMessageClass(method.output_type)()


async def done(call: Awaitable[Any] | AsyncIterator[Any]) -> None:
    """Await a call, or read a stream to its end."""
    if isinstance(call, AsyncIterator):
        async for _ in call:
            pass
    else:
        await call


@every_call
async def test_a_value_and_its_id_make_the_same_request(
    client: Client, member: Scripted, call: Call
):
    member.say(call.wire, answer_to(call.wire))
    await done(call.do(client, call.said))
    await done(call.do(client, call.value))
    by_id, by_value = member.received(call.wire)
    assert call.said in str(by_id)
    for request in (by_id, by_value):  # a key is made for each call
        if "idempotency_key" in request.DESCRIPTOR.fields_by_name:
            request.ClearField("idempotency_key")
    if call.value in (JOB, POOL, CALENDAR):
        assert "elsewhere" in str(by_value), "a value is the one of its own namespace"
    assert str(by_value).replace("elsewhere", "default") == str(by_id)


@every_call
@pytest.mark.parametrize("given", [None, 7, {"name": "etl"}], ids=repr)
async def test_a_call_with_a_value_of_another_type_raises_a_type_error(
    client: Client, member: Scripted, call: Call, given: object
):
    with pytest.raises(TypeError, match=f"(expected the|comes first).*got {type(given).__name__}"):
        await done(call.do(client, given))
    assert member.requests == []


async def test_a_value_of_another_type_is_refused(client: Client, member: Scripted):
    with pytest.raises(TypeError, match=r"expected the id of a run .*or a Run .*got Job"):
        await client.runs.cancel(JOB)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expected the id or name of a job .*got Run"):
        await client.jobs.get(RUN)  # type: ignore[arg-type]
    assert member.requests == []
