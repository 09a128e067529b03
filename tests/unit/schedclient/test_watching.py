"""The SDK watches all runs of a job or a namespace, across broken streams and gaps."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from schedclient import Client, DeadlineExceeded, InvalidArgument, NotFound
from schedproto.v1 import common_pb2, run_pb2
from schedproto.v1 import run_service_pb2 as wire
from support.endless import first
from support.scripted import Refusal, Scripted

FOR_EVER = asyncio.Event
"""An answer that keeps the stream open and silent."""
ONWARD = wire.RunEvent(cursor="1-9")


def run(number: int, state: str = "PENDING") -> run_pb2.Run:
    return run_pb2.Run(run_id=f"r{number}", state=common_pb2.RunState.Value(f"RUN_STATE_{state}"))


def event(cursor: str, number: int, state: str = "PENDING") -> wire.RunEvent:
    return wire.RunEvent(cursor=cursor, run=run(number, state))


def gap(cursor: str) -> wire.RunEvent:
    return wire.RunEvent(cursor=cursor, gap=wire.RunEvent.Gap(why="too old"))


async def test_a_broken_stream_continues_after_its_last_cursor(client: Client, member: Scripted):
    member.say(
        "WatchRuns",
        [
            event("1-1", 1),
            event("1-1", 1, "RUNNING"),
            ONWARD,
            Refusal("UNAVAILABLE"),
        ],
        [event("1-9", 1, "RUNNING"), event("1-9", 1, "SUCCEEDED"), FOR_EVER()],
    )
    states = [one.state for one in await first(3, client.runs.watch(job="etl"))]
    assert states == ["PENDING", "RUNNING", "SUCCEEDED"]
    asked = member.received("WatchRuns")
    assert [(one.job, one.namespace, one.resume_after) for one in asked] == [
        ("etl", "default", ""),
        ("etl", "default", "1-9"),
    ]


async def test_a_stream_that_its_member_ends_continues_too(client: Client, member: Scripted):
    member.say("WatchRuns", [event("1-1", 1)], [event("1-2", 2), FOR_EVER()])
    found = await first(2, client.runs.events())
    assert [one.run.run_id for one in found] == ["r1", "r2"]
    assert [one.cursor for one in found] == ["1-1", "1-2"]


async def test_after_a_gap_unfinished_runs_are_read(client: Client, member: Scripted):
    member.say(
        "WatchRuns",
        [event("1-1", 1), event("1-1", 2, "SUCCEEDED"), event("1-1", 3), gap("1-2"), FOR_EVER()],
    )
    member.say("GetRun", run(1, "FAILED"), Refusal("NOT_FOUND"))
    found = await first(4, client.runs.watch(job="etl"))
    assert [(one.run_id, one.state) for one in found][3:] == [("r1", "FAILED")]
    assert [one.run_id for one in member.received("GetRun")] == ["r1"]


async def test_a_read_after_a_gap_is_retried_until_a_member_answers(member: Scripted):
    member.say("WatchRuns", [event("1-1", 1), gap("1-2"), event("1-3", 2), FOR_EVER()])
    away = Refusal("UNAVAILABLE", reason="DATABASE_AWAY")
    member.say("GetRun", *[away] * 5, Refusal("DEADLINE_EXCEEDED"), run(1, "FAILED"))
    async with Client(member.address, timeout=0.2) as client:
        found = await first(3, client.runs.watch(job="etl"))
    assert [(one.run_id, one.state) for one in found] == [
        ("r1", "PENDING"),
        ("r1", "FAILED"),
        ("r2", "PENDING"),
    ]
    assert len(member.received("GetRun")) == 7
    assert len(member.received("WatchRuns")) == 1


async def test_events_report_a_gap_and_continue_from_a_stored_cursor(
    client: Client, member: Scripted
):
    member.say("WatchRuns", [gap("1-2"), event("1-2", 1), FOR_EVER()])
    missing, one = await first(2, client.runs.events(after="1-1"))
    assert (missing.run, missing.gap.why, missing.gap.scheduled_before) == (None, "too old", None)
    assert (one.run.run_id, one.gap) == ("r1", None)
    assert member.received("WatchRuns")[0].resume_after == "1-1"


async def test_a_watch_with_many_changes_is_one_request(client: Client, member: Scripted):
    events = [
        event("1-1", number, state) for number in range(200) for state in ("PENDING", "FAILED")
    ]
    member.say("WatchRuns", [*events, FOR_EVER()])
    assert len(await first(400, client.runs.watch(job="etl"))) == 400
    assert [name for name, _ in member.requests] == ["WatchRuns"]


async def test_a_missing_job_is_reported(client: Client, member: Scripted):
    member.say("WatchRuns", Refusal("NOT_FOUND"))
    with pytest.raises(NotFound):
        await first(1, client.runs.watch(job="elt"))


@pytest.mark.parametrize(("runs", "job"), [((), ""), (("r1",), "etl")])
async def test_a_watch_is_of_runs_or_of_a_job(client: Client, member: Scripted, runs, job):
    with pytest.raises(InvalidArgument, match="either runs or a job"):
        await first(1, client.runs.watch(*runs, job=job))
    assert member.requests == []


@pytest.mark.slow
@pytest.mark.parametrize("breaks", [[event("1-1", 1), Refusal("UNAVAILABLE")], [event("1-1", 1)]])
@pytest.mark.parametrize("of", ["run", "job", "all"])
async def test_one_deadline_covers_all_streams_of_a_watch(
    client: Client, member: Scripted, breaks: list, of: str
):
    member.say("WatchRuns", breaks)
    stream = {
        "run": lambda: client.runs.watch("r1", deadline=1.0),
        "job": lambda: client.runs.watch(job="etl", deadline=1.0),
        "all": lambda: client.runs.events(deadline=1.0),
    }[of]()
    began = monotonic()
    async with asyncio.timeout(10):
        with pytest.raises(DeadlineExceeded):
            async for _ in stream:
                pass
    assert 0.9 <= monotonic() - began < 2.0


@pytest.mark.slow
async def test_one_deadline_covers_the_reads_after_a_gap_too(client: Client, member: Scripted):
    member.say("WatchRuns", [event("1-1", 1), gap("1-2"), FOR_EVER()])
    member.say("GetRun", Refusal("UNAVAILABLE", reason="DATABASE_SILENT"))
    began = monotonic()
    async with asyncio.timeout(10):
        with pytest.raises(
            DeadlineExceeded, match="the watch timed out after 1 s; the last try was rejected"
        ):
            async for _ in client.runs.watch(job="etl", deadline=1.0):
                pass
    assert 0.9 <= monotonic() - began < 2.0
