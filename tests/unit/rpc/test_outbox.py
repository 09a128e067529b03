"""Messages to a worker, in frames that it can take."""

from schedd.core.ids import run_ids_of
from schedd.core.jobs.definition import Definition
from schedd.core.runs.model import DispatchedBatch
from schedd.rpc.workers.frame_queue import BYTES_IN_FRAME, WorkerFrameQueue
from schedkit.records import replace
from schedproto.v1 import common_pb2, job_pb2
from schedproto.v1 import worker_service_pb2 as wire
from support.definitions import cached_definition
from support.runs import run, running, worker

FRAME_LIMIT = 4 * 1024 * 1024


KNOWN = cached_definition(
    Definition(1, "default", action="shell"),
    spec=job_pb2.Job(shell=job_pb2.ShellAction(argv=["true"])),
)


def payload(size: int) -> bytes:
    return common_pb2.Payload(raw=b"x" * size).SerializeToString()


async def test_assignments_with_large_payloads_go_in_frames_that_a_worker_takes():
    outbox = WorkerFrameQueue()
    for number in range(40):
        large = DispatchedBatch.of([running(number, worker())], payload(256 * 1024))
        outbox.assign(large, [KNOWN])
    seen = 0
    while seen < 40:
        frame = await outbox.next()
        assert frame.ByteSize() < FRAME_LIMIT
        seen += len(frame.assignments)
    assert seen == 40


async def test_an_assignment_over_the_frame_size_is_sent_in_a_frame_of_its_own():
    outbox = WorkerFrameQueue()
    for number in range(2):
        large = DispatchedBatch.of([running(number, worker())], payload(BYTES_IN_FRAME + 1))
        outbox.assign(large, [KNOWN])
    assert [len((await outbox.next()).assignments) for _ in range(2)] == [1, 1]


async def test_a_batch_says_of_each_run_what_its_own_assignment_would_say():
    runs = [running(number, worker()) for number in range(1, 4)]
    waiting = [run(number) for number in range(1, 4)]
    batch = DispatchedBatch(runs[0], waiting, [one.token for one in runs])
    singly, together = WorkerFrameQueue(), WorkerFrameQueue(reads_batches=True)
    for outbox in (singly, together):
        outbox.assign(batch, [KNOWN] * 3)

    [sent] = (await together.next()).run_batches
    said = [*(await singly.next()).assignments]

    ids = [sent.run_ids[at : at + 16].hex() for at in range(0, len(sent.run_ids), 16)]
    assert ids == [one.key.run_id.replace("-", "") for one in said]
    assert [*sent.fencing_tokens] == [one.key.fencing_token for one in said]
    assert [*sent.scheduled_at] == [one.key.scheduled_at.ToMicroseconds() for one in said]
    assert (sent.common.job, [*sent.jobs]) == (said[0].job, [])
    for one in said:
        for name in ("key", "due_at", "traceparent"):
            one.ClearField(name)
        assert sent.common == one


async def test_a_batch_of_several_jobs_names_the_job_of_each_run():
    other = replace(KNOWN, name="other")
    outbox = WorkerFrameQueue(reads_batches=True)
    batch = DispatchedBatch.of([running(1, worker()), running(2, worker())])
    outbox.assign(batch, [KNOWN, other])
    [batch] = (await outbox.next()).run_batches
    assert [*batch.jobs] == ["j", "other"]


async def test_a_batch_has_the_payload_of_each_run():
    numbers = (1, 2, 3)
    runs = [running(number, worker()) for number in numbers]
    outbox = WorkerFrameQueue(reads_batches=True, reads_payloads=True)
    outbox.assign(DispatchedBatch.of(runs, *map(payload, numbers)), [KNOWN] * 3)
    [batch] = (await outbox.next()).run_batches
    assert [each.raw for each in batch.payloads] == [b"x", b"xx", b"xxx"]
    assert not batch.common.HasField("payload")


async def test_a_worker_that_reads_no_payloads_gets_such_runs_as_single_assignments():
    outbox = WorkerFrameQueue(reads_batches=True)
    outbox.assign(DispatchedBatch.of([running(3, worker())]), [KNOWN])
    runs = [running(number, worker()) for number in (1, 2)]
    outbox.assign(DispatchedBatch.of(runs, payload(1), payload(2)), [KNOWN] * 2)
    first, second = await outbox.next(), await outbox.next()
    assert [each.payload.raw for each in first.assignments] == [b"x", b"xx"]
    assert len(second.run_batches) == 1


async def test_batches_with_large_payloads_go_in_frames_that_a_worker_takes():
    outbox = WorkerFrameQueue(reads_batches=True, reads_payloads=True)
    for number in range(40):
        large = DispatchedBatch.of([running(number, worker())], payload(256 * 1024))
        outbox.assign(large, [KNOWN])
    seen = 0
    while seen < 40:
        frame = await outbox.next()
        assert frame.ByteSize() < FRAME_LIMIT
        seen += len(frame.run_batches)
    assert seen == 40


async def test_a_newer_answer_replaces_an_unsent_one_and_messages_of_runs_accumulate():
    outbox = WorkerFrameQueue()
    for number in (1, 2):
        run = running(number, worker())
        outbox.put(wire.MemberFrame(heartbeat_answer=wire.HeartbeatAnswer(sequence=number)))
        outbox.acknowledge(run.key, run.token, stale=False)
        outbox.revoke(run.key, run.token)
        outbox.cancel(run.key, run.token, kill=False)
    frame = await outbox.next()
    assert frame.heartbeat_answer.sequence == 2
    for gathered in (frame.acknowledgements, frame.revokes, frame.cancels):
        assert [one.key.run_id for one in gathered] == [
            str(running(number, worker()).key.run_id) for number in (1, 2)
        ]


async def test_a_stalled_stream_keeps_each_run_once():
    """A cancel is sent again at every scan, by relay too, for as long as the run runs."""
    outbox, run = WorkerFrameQueue(), running(1, worker())
    other = WorkerFrameQueue()
    other.cancel(run.key, run.token, kill=False)
    other.revoke(run.key, run.token)
    relayed = await other.next()
    for scan in range(100):
        outbox.cancel(run.key, run.token, kill=scan == 50)
        outbox.revoke(run.key, run.token)
        outbox.acknowledge(run.key, run.token, stale=False)
        outbox.pass_on(relayed)
    frame = await outbox.next()
    assert (len(frame.revokes), len(frame.acknowledgements)) == (1, 1)
    assert [one.kill for one in frame.cancels] == [True], "a kill isn't downgraded"


async def test_many_cancels_go_in_several_frames_none_lost_none_twice():
    outbox = WorkerFrameQueue()
    for number in range(1_201):
        run = running(number, worker())
        outbox.cancel(run.key, run.token, kill=False)
    sizes = [len((await outbox.next()).cancels) for _ in range(3)]
    assert sizes == [500, 500, 201]


async def test_acknowledgements_of_batches_are_columns_none_lost_none_twice():
    outbox = WorkerFrameQueue()
    runs = [running(number, worker(), token=number + 1) for number in range(2_001)]
    for some in (runs[:3], runs[1:5], runs):
        outbox.acknowledge_all([run.key.run_id for run in some], [run.token for run in some])
    sent: list[tuple[bytes, int]] = []
    sizes: list[int] = []
    for _ in range(2):
        [batch] = (await outbox.next()).ack_batches
        ids = run_ids_of(batch.run_ids)
        sent += zip(ids, batch.fencing_tokens, strict=True)
        sizes.append(len(ids))
    assert sizes == [2_000, 1]
    assert sorted(sent) == sorted((run.key.run_id, run.token) for run in runs)
    outbox.drain(on=True)
    assert not (await outbox.next()).ack_batches
