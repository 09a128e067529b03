"""Batches of runs and of results, in a real worker."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from schedproto.v1 import common_pb2, job_pb2
from schedproto.v1 import worker_service_pb2 as pb
from support.fake_member import FakeMember, Stream, runs_of
from support.wait import WAIT_TIMEOUT, wait_until_async
from support.worker_process import WorkerProcess, cluster

MODULE = """
import asyncio, sys
from schedclient.handlers import handler

@handler
async def nothing(payload, ctx):
    return None

@handler
async def echo(payload, ctx):
    print(payload)

@handler
async def odd(payload, ctx):
    if ctx.fencing_token % 4 == 1:
        raise RuntimeError(ctx.job)
    if ctx.fencing_token % 4 == 3:
        await asyncio.sleep(300)
    if ctx.fencing_token % 8 == 2:
        print("hello from", ctx.run_id, ctx.traceparent)
"""


@contextlib.asynccontextmanager
async def handlers(home: Path) -> AsyncIterator[tuple[FakeMember, WorkerProcess, Stream]]:
    """Return a member, a worker with handlers, and their stream."""
    (home / "batch_tasks.py").write_text(MODULE)
    environ = {"PYTHONPATH": str(home)}
    async with cluster(home, environ=environ, handlers="batch_tasks", slots="200") as (
        member,
        worker,
    ):
        yield member, worker, await member.attached()


def call(name: str) -> job_pb2.PythonAction:
    return job_pb2.PythonAction(handler=name)


async def test_a_batch_of_handlers_is_reported_in_a_batch_and_frees_its_slots(
    tmp_path: Path,
) -> None:
    async with handlers(tmp_path) as (_, _, stream):
        assert stream.hello.reads_batches
        keys = await stream.assign_batch(150, python=call("nothing"))
        await stream.succeeded(keys)
        reported = [each for batch in stream.result_batches for each in runs_of(batch)]
        assert sorted(reported) == sorted((key.run_id, key.fencing_token) for key in keys)
        await stream.until(
            lambda: stream.granted == pb.Granted(slots=200, received=150) or None, "free slots"
        )
        await stream.succeeded(await stream.assign_batch(200, python=call("nothing")))
        assert not stream.results
        assert not stream.refusals


async def test_runs_of_a_batch_that_fail_write_or_time_out_are_reported_alone(
    tmp_path: Path,
) -> None:
    async with handlers(tmp_path) as (member, _, stream):
        keys = [member.key(token=token) for token in range(8)]
        batch = member.run_batch(
            keys, incarnation=stream.hello.incarnation, python=call("odd"), timeout=3.0
        )
        batch.jobs.extend(f"job-{token}" for token in range(8))
        await stream.send(run_batches=[batch])
        await stream.succeeded([keys[0], keys[4], keys[6]])
        for token in (1, 5):
            assert (await stream.result_of(keys[token])).error == f"RuntimeError: job-{token}"
        (piece,) = (await stream.result_of(keys[2])).output
        run = keys[2].run_id
        trace = f"00-{run.replace('-', '')}-{2:016x}-01"
        assert piece.data.decode() == f"hello from {run} {trace}\n"
        for token in (3, 7):
            result = await stream.result_of(keys[token])
            assert result.reason == common_pb2.REASON_TIMEOUT


async def test_programs_of_a_batch_get_the_facts_of_their_own_runs(tmp_path: Path) -> None:
    async with cluster(tmp_path, slots="5") as (member, _):
        stream = await member.attached()
        keys = [member.key() for _ in range(3)]
        line = 'echo "$SCHEDD_RUN_ID $SCHEDD_FENCING_TOKEN $SCHEDD_JOB $TRACEPARENT"'
        batch = member.run_batch(
            keys, incarnation=stream.hello.incarnation, argv=["sh", "-c", line]
        )
        batch.jobs.extend(["a", "b", "c"])
        await stream.send(run_batches=[batch])
        for key, job in zip(keys, "abc", strict=True):
            (piece,) = (await stream.result_of(key)).output
            trace = f"00-{key.run_id.replace('-', '')}-{key.fencing_token:016x}-01"
            assert piece.data.decode().split() == [
                key.run_id,
                str(key.fencing_token),
                job,
                trace,
            ]


async def test_each_run_of_a_batch_gets_its_own_payload(tmp_path: Path) -> None:
    own = [common_pb2.Payload(json="1"), common_pb2.Payload(raw=b"two"), common_pb2.Payload()]
    async with handlers(tmp_path) as (member, _, stream):
        for action, shown in (
            ({"python": call("echo")}, ["1", "b'two'", "None"]),
            ({"argv": ["cat"]}, ["1", "two", ""]),
        ):
            keys = [member.key() for _ in own]
            batch = member.run_batch(keys, incarnation=stream.hello.incarnation, **action)
            batch.payloads.extend(own)
            await stream.send(run_batches=[batch])
            for key, text in zip(keys, shown, strict=True):
                output = (await stream.result_of(key)).output
                assert b"".join(piece.data for piece in output).decode().strip() == text


async def test_a_killed_worker_sends_its_spooled_batch_again(
    tmp_path: Path,
) -> None:
    async with handlers(tmp_path) as (member, worker, stream):
        member.acknowledge_results = False
        keys = await stream.assign_batch(20, python=call("nothing"))
        await stream.succeeded(keys)
        worker.kill()
        worker.start()
        again = await member.attached(count=2)
        spooled = [(key.run_id, key.fencing_token) for key in again.hello.spooled]
        assert sorted(spooled) == sorted((key.run_id, key.fencing_token) for key in keys)
        for key in keys:
            assert (await again.result_of(key)).incarnation == stream.hello.incarnation
        await again.send(
            acknowledgements=[
                pb.Acknowledgement(key=key, verdict=pb.Acknowledgement.VERDICT_ACCEPTED)
                for key in keys
            ]
        )
        await wait_until_async(
            lambda: not [*worker.spool.glob("*.results")], WAIT_TIMEOUT, "an empty spool"
        )


async def test_a_batch_out_of_bounds_costs_no_stream(tmp_path: Path) -> None:
    async with handlers(tmp_path) as (member, _, stream):
        keys = [member.key() for _ in range(3)]
        batch = member.run_batch(keys, incarnation=stream.hello.incarnation, python=call("nothing"))
        del batch.scheduled_at[2]
        await stream.send(
            run_batches=[batch], ack_batches=[pb.AckBatch(run_ids=b"x", fencing_tokens=[1])]
        )
        for key in keys[:2]:
            assert (await stream.refusal_of(key)).why == pb.Refusal.WHY_UNABLE
        await stream.succeeded(await stream.assign_batch(3, python=call("nothing")))
        assert len(member.streams) == 1
