"""gRPC jobs: a real service at the other end, which knows nothing of schedd but one proto."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from schedclient import Run, SyncClient
from schedproto.v1 import job_handler_pb2, job_handler_pb2_grpc
from support.cluster import DevCluster
from support.wait import WAIT_TIMEOUT

HEALTH = "grpc.health.v1.Health"


class Greeter(job_handler_pb2_grpc.JobHandlerServicer):
    """Greets from the second attempt on."""

    def __init__(self) -> None:
        self.calls: list[job_handler_pb2.RunRequest] = []

    def Run(  # noqa: N802 - the name on the wire
        self, request: job_handler_pb2.RunRequest, context: grpc.ServicerContext
    ) -> job_handler_pb2.RunResponse:
        self.calls.append(request)
        if request.attempt == 1:
            context.abort(grpc.StatusCode.UNAVAILABLE, "still asleep")
        return job_handler_pb2.RunResponse(result=request.payload)


@pytest.fixture(scope="module")
def service() -> Iterator[tuple[Greeter, str]]:
    greeter, server = Greeter(), grpc.server(ThreadPoolExecutor(4))
    job_handler_pb2_grpc.add_JobHandlerServicer_to_server(greeter, server)
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    reflection.enable_server_reflection([HEALTH], server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield greeter, f"127.0.0.1:{port}"
    server.stop(None).wait()


def ended(client: SyncClient, **work: Any) -> Run:
    run = client.submit(
        retry={"max_attempts": 3, "backoff": "0.1s"} | work.pop("retry", {}), **work
    )
    return client.runs.wait(run, timeout=WAIT_TIMEOUT)


def test_a_users_service_runs_a_job_and_a_transient_status_is_retried(
    quiet_client: SyncClient, service: tuple[Greeter, str]
) -> None:
    greeter, endpoint = service
    run = ended(quiet_client, grpc={"endpoint": endpoint}, payload={"hello": "Ada"})
    assert (run.state, run.attempt) == ("SUCCEEDED", 2)
    assert quiet_client.runs.result(run.run_id).value == {"hello": "Ada"}
    first, second = (call for call in greeter.calls if call.run_id == run.run_id)
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.fencing_token < second.fencing_token
    errors = [one.error for one in quiet_client.runs.attempts(run.run_id)]
    assert errors[0] == "UNAVAILABLE: still asleep"


def test_a_status_that_a_job_names_is_final(
    quiet_client: SyncClient, service: tuple[Greeter, str]
) -> None:
    _, endpoint = service
    run = ended(quiet_client, grpc={"endpoint": endpoint}, retry={"fail_on": ["UNAVAILABLE"]})
    assert (run.state, run.reason, run.attempt) == ("FAILED", "GRPC_STATUS", 1)


def test_any_unary_method_is_called_with_json_from_the_command_line(
    quiet_cluster: DevCluster, service: tuple[Greeter, str]
) -> None:
    _, endpoint = service
    call = ["--grpc", endpoint, "--method", f"{HEALTH}/Check"]
    fine = quiet_cluster.schedctl("submit", "--wait", *call, "--payload", '{"service":""}')
    assert fine.returncode == 0, fine.stderr
    wrong = quiet_cluster.schedctl("submit", "--wait", *call, "--payload", '{"servise":""}')
    assert wrong.returncode != 0
    assert 'no field named "servise"' in wrong.stdout + wrong.stderr
    unfit = quiet_cluster.schedctl("submit", "--grpc", f"http://{endpoint}")
    assert unfit.returncode == 2
    assert (
        "isn't a valid endpoint: write host:port (without TLS) or grpcs://host:port" in unfit.stderr
    )
