"""A worker that reports successes in batches, over the real wire."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from uuid import uuid4

from schedclient import SyncClient
from schedd.core.ids import Id, new_id
from schedkit.clock import utcnow
from schedkit.outcome_digest import outcome_digest
from schedproto.v1 import worker_service_pb2 as pb
from support.cluster import DevCluster
from support.raw_worker import RawWorker, first_assigned, hello
from support.wait import WAIT_TIMEOUT, wait_until_async


def microseconds(key: pb.AssignmentKey) -> int:
    return key.scheduled_at.seconds * 1_000_000 + key.scheduled_at.nanos // 1_000


async def test_a_success_of_a_batch_is_stored_and_acknowledged_however_often_it_is_sent(
    quiet_cluster: DevCluster, quiet_client: SyncClient
) -> None:
    """To any member, whether or not it dispatched the run; a run that doesn't exist is stale."""
    name = f"raw-{uuid4().hex[:8]}"
    first = hello(name, actions=["python"], handlers=[name])
    async with AsyncExitStack() as stack:
        streams = [RawWorker(endpoint, first) for endpoint in quiet_cluster.endpoints]
        for each in streams:
            await stack.enter_async_context(each)
            assert (await each.welcomed()).reads_batches
        run = await asyncio.to_thread(quiet_client.submit, python={"handler": name})
        sender, assigned = await first_assigned(streams)
        key, unknown, now = assigned.key, new_id(), round(utcnow().timestamp() * 1e6)
        batch = pb.ResultBatch(
            incarnation=first.incarnation,
            run_ids=Id.parse(key.run_id) + unknown,
            fencing_tokens=[key.fencing_token] * 2,
            scheduled_at=[microseconds(key)] * 2,
            started_at=[now] * 2,
            finished_at=[now + 5] * 2,
        )
        for to in (sender, *streams):
            seen = len(to.frames)
            await to.send(pb.WorkerFrame(result_batches=[batch]))

            def answers(to: RawWorker = to, seen: int = seen) -> dict[str, int]:
                """The verdicts in frames since then, by run."""
                found = {
                    str(Id(acks.run_ids[at : at + 16])): pb.Acknowledgement.VERDICT_ACCEPTED
                    for frame in to.frames[seen:]
                    for acks in frame.ack_batches
                    for at in range(0, len(acks.run_ids), 16)
                }
                single = [one for frame in to.frames[seen:] for one in frame.acknowledgements]
                return found | {one.key.run_id: one.verdict for one in single}

            await wait_until_async(lambda: len(answers()) == 2, WAIT_TIMEOUT, "both answers")
            assert answers() == {
                key.run_id: pb.Acknowledgement.VERDICT_ACCEPTED,
                str(unknown): pb.Acknowledgement.VERDICT_STALE,
            }
        alone = pb.Result(
            key=key,
            incarnation=first.incarnation,
            digest=outcome_digest(key.run_id, key.fencing_token),
            outcome=pb.Result.OUTCOME_SUCCEEDED,
        )
        await sender.send(pb.WorkerFrame(results=[alone]))
        assert (await sender.answered(key)).verdict == pb.Acknowledgement.VERDICT_ACCEPTED
        found = await asyncio.to_thread(quiet_cluster.json, "run", "get", run.run_id)
        assert (found["state"], found["attempt"]) == ("SUCCEEDED", 1)
