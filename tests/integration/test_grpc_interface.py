"""The gRPC interface of a member: health, no reflection unless asked for, refusals with details."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from schedproto.v1 import (
    job_pb2,
    job_service_pb2,
    job_service_pb2_grpc,
    peer_service_pb2,
    peer_service_pb2_grpc,
    run_service_pb2,
    run_service_pb2_grpc,
    worker_service_pb2,
    worker_service_pb2_grpc,
)
from support.cluster import DevCluster
from support.wait import WAIT_TIMEOUT, wait_until

DEADLINE = 10


@pytest.fixture(scope="module")
def cluster(pair: DevCluster) -> DevCluster:
    """Two members; the second serves reflection."""
    return pair


@pytest.fixture(scope="module")
def channels(cluster: DevCluster) -> Iterator[list[grpc.Channel]]:
    opened = [grpc.insecure_channel(member["grpc"]) for member in cluster.record["members"]]
    yield opened
    for channel in opened:
        channel.close()


def details(error: grpc.RpcError) -> tuple[ErrorInfo, BadRequest]:
    """Return the details of a refusal, from the trailing metadata."""
    [packed] = [v for k, v in error.trailing_metadata() if k == "grpc-status-details-bin"]
    info, fields = ErrorInfo(), BadRequest()
    for detail in Status.FromString(packed).details:
        for kind in (info, fields):
            if detail.Is(kind.DESCRIPTOR):
                detail.Unpack(kind)
    return info, fields


def test_health_is_served(channels: list[grpc.Channel]):
    health = health_pb2_grpc.HealthStub(channels[0])

    def serves() -> bool:
        answer = health.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE)
        return answer.status == health_pb2.HealthCheckResponse.SERVING

    wait_until(
        serves, WAIT_TIMEOUT, "the member to serve"
    )  # where much else runs a lease may lapse


def test_reflection_is_served_only_where_it_was_asked_for(channels: list[grpc.Channel]):
    served = ProtoReflectionDescriptorDatabase(channels[1]).get_services()
    assert "schedd.v1.JobService" in served
    with pytest.raises(grpc.RpcError) as refused:
        list(ProtoReflectionDescriptorDatabase(channels[0]).get_services())
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_refusal_says_what_why_and_what_to_do(channels: list[grpc.Channel]):
    jobs = job_service_pb2_grpc.JobServiceStub(channels[0])
    wrong = job_pb2.Job(name="Bad Name", cron=["61 * * * *"])
    with pytest.raises(grpc.RpcError) as refused:
        jobs.CreateJob(job_service_pb2.CreateJobRequest(job=wrong), timeout=DEADLINE)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    info, fields = details(refused.value)
    assert (info.reason, info.domain) == ("INVALID_JOB", "schedd")
    assert "nothing was stored" in info.metadata["remedy"]
    assert {field.field for field in fields.field_violations} >= {"name", "action"}


FROM_TOMORROW = b"\xba\x3e\x05hello"
"""A field of number 999 that holds a text."""


def test_unknown_fields_of_a_newer_caller_are_refused_and_not_dropped(channels: list[grpc.Channel]):
    runs = run_service_pb2_grpc.RunServiceStub(channels[0])
    submit = run_service_pb2.SubmitRunRequest.FromString(FROM_TOMORROW)
    batch = run_service_pb2.BatchSubmitRunsRequest(requests=[submit])
    watch = run_service_pb2.WatchRunsRequest.FromString(FROM_TOMORROW)
    for call in (
        lambda: runs.SubmitRun(submit, timeout=DEADLINE),
        lambda: runs.BatchSubmitRuns(batch, timeout=DEADLINE),
        lambda: next(runs.WatchRuns(watch, timeout=DEADLINE)),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            call()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details().endswith("this member doesn't know, by number: 999")
        info, _ = details(refused.value)
        assert (info.reason, info.metadata["remedy"]) == (
            "UNKNOWN_FIELD",
            "upgrade the members first; nothing was changed",
        )


def test_a_definition_of_a_newer_version_is_stored_with_its_unknown_fields(
    channels: list[grpc.Channel],
):
    jobs = job_service_pb2_grpc.JobServiceStub(channels[0])
    newer = job_pb2.Job(name="of-tomorrow", cron=["@daily"], shell={"argv": ["true"]})
    newer.MergeFromString(FROM_TOMORROW)
    made = jobs.CreateJob(job_service_pb2.CreateJobRequest(job=newer), timeout=DEADLINE)
    read = jobs.GetJob(job_service_pb2.GetJobRequest(job=made.job_id), timeout=DEADLINE)
    assert FROM_TOMORROW in read.SerializeToString()


def test_an_invalid_filter_is_refused_with_a_suggestion(channels: list[grpc.Channel]):
    jobs = job_service_pb2_grpc.JobServiceStub(channels[0])
    with pytest.raises(grpc.RpcError) as refused:
        jobs.ListJobs(job_service_pb2.ListJobsRequest(filter="pol:reports"), timeout=DEADLINE)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert 'did you mean "pool"?' in refused.value.details()
    assert details(refused.value)[0].reason == "BAD_FILTER"


def test_a_relay_to_an_unknown_worker_says_so_and_an_invalid_one_is_refused(
    channels: list[grpc.Channel],
):
    peers = peer_service_pb2_grpc.PeerServiceStub(channels[0])
    unknown = "00000000-0000-0000-0000-000000000000"
    answer = peers.Relay(peer_service_pb2.RelayRequest(incarnation=unknown), timeout=DEADLINE)
    assert answer.not_attached
    with pytest.raises(grpc.RpcError) as refused:
        peers.Relay(peer_service_pb2.RelayRequest(incarnation="no id"), timeout=DEADLINE)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_an_unknown_run_is_not_found(channels: list[grpc.Channel]):
    runs = run_service_pb2_grpc.RunServiceStub(channels[0])
    unknown = "00000000-0000-0000-0000-000000000000"
    with pytest.raises(grpc.RpcError) as refused:
        runs.GetRun(run_service_pb2.GetRunRequest(run_id=unknown), timeout=DEADLINE)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert details(refused.value)[0].reason == "NO_SUCH_RUN"


@pytest.mark.parametrize(
    "first",
    [
        worker_service_pb2.WorkerFrame(),
        worker_service_pb2.WorkerFrame(heartbeat=worker_service_pb2.Heartbeat(sequence=1)),
        worker_service_pb2.WorkerFrame(hello=worker_service_pb2.Hello(worker="x")),
        worker_service_pb2.WorkerFrame(
            hello=worker_service_pb2.Hello(worker="x", spool_id="s", incarnation="not-a-uuid")
        ),
    ],
    ids=["empty", "no hello", "hello without spool", "hello without an id"],
)
def test_a_stream_that_doesnt_begin_with_a_hello_is_ended_with_a_reason(
    channels: list[grpc.Channel], first: worker_service_pb2.WorkerFrame
):
    workers = worker_service_pb2_grpc.WorkerServiceStub(channels[0])
    with pytest.raises(grpc.RpcError) as refused:
        next(iter(workers.Attach(iter([first]), timeout=DEADLINE)))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_thousand_jobs_of_many_parts_are_created_in_one_call(channels: list[grpc.Channel]):
    """Twice as many as a single request may have."""
    stub = job_service_pb2_grpc.JobServiceStub(channels[0])
    shell = job_pb2.ShellAction(argv=["echo", *"abcdefghijklmnopqrstuvwxyzabcd"])
    jobs = [job_pb2.Job(name=f"wide-{n}", on_demand=True, shell=shell) for n in range(1_000)]
    requests = [job_service_pb2.CreateJobRequest(job=job) for job in jobs]
    request = job_service_pb2.BatchCreateJobsRequest(requests=requests)
    answer = stub.BatchCreateJobs(request, timeout=DEADLINE)
    assert [one.job.name for one in answer.results] == [job.name for job in jobs]


def test_a_batch_of_more_parts_than_it_may_have_is_refused(channels: list[grpc.Channel]):
    stub = job_service_pb2_grpc.JobServiceStub(channels[0])
    shell = job_pb2.ShellAction(argv=[""] * 101)
    job = job_pb2.Job(name="wide", on_demand=True, shell=shell)
    request = job_service_pb2.BatchCreateJobsRequest(
        requests=[job_service_pb2.CreateJobRequest(job=job)] * 1_000
    )
    with pytest.raises(grpc.RpcError) as refused:
        stub.BatchCreateJobs(request, timeout=DEADLINE)
    assert details(refused.value)[0].reason == "TOO_MANY_PARTS"
