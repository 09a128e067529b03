"""Every method that a member serves has its line: who may call it."""

import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

import schedproto.v1
from schedd.api.auth.policy import OPEN, POLICY, In, Of, authorize_method, authorize_request
from schedd.api.calls import methods
from schedd.api.errors import PermissionDeniedError
from schedd.core.auth.rights import EVERY, CallerIdentity, IdentityKind, Role
from schedproto.v1 import job_service_pb2, peer_service_pb2, run_service_pb2, worker_service_pb2

OF_OTHERS = {"JobHandler"}
"""Services that schedd calls and other processes serve."""
PROTOS = Path(next(iter(schedproto.v1.__path__)))


def _served() -> set[str]:
    """Every method of every service in the protos, and of those that grpcio brings."""
    found = set()
    for proto in PROTOS.glob("*.proto"):
        name = f"schedproto/v1/{proto.name}"
        __import__(f"schedproto.v1.{proto.stem}_pb2")
        for service in descriptor_pool.Default().FindFileByName(name).services_by_name.values():
            if service.name not in OF_OTHERS:
                found |= {method.full_name for method in service.methods}
    for module in (health_pb2, reflection_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            found |= {method.full_name for method in service.methods}
    return found - {"grpc.health.v1.Health.List"}  # which isn't served


def test_every_method_has_a_line_and_every_line_its_method() -> None:
    served = _served()
    assert {each.full_name for each in methods()} < served
    assert not served - POLICY.keys(), "give each a line in schedd/api/auth/policy.py"
    assert not POLICY.keys() - served


def test_a_method_without_a_line_is_closed_to_every_caller() -> None:
    mighty = CallerIdentity(IdentityKind.USER, "root", {EVERY: Role.ADMIN})
    with pytest.raises(PermissionDeniedError, match="isn't allowed for any caller"):
        authorize_method(mighty, "schedd.v1.JobService.Unheard")


def test_only_health_is_served_before_authentication() -> None:
    opened = {method for method, rule in POLICY.items() if rule == OPEN}
    assert {method.rpartition(".")[0] for method in opened} == {"grpc.health.v1.Health"}


@pytest.mark.parametrize("method", methods(), ids=lambda each: each.name)
def test_each_request_has_the_field_that_its_line_reads(method: Any) -> None:
    where = POLICY[method.full_name].where
    if where is None:
        return
    message = method.input_type
    path = where.path.split(".") if isinstance(where, In) else [where.field]
    for name in path:
        field = message.fields_by_name[name]
        message = field.message_type
    assert field.type == field.TYPE_STRING


@pytest.mark.parametrize("method", methods(), ids=lambda each: each.name)
def test_a_request_that_names_a_namespace_is_judged_by_it(method: Any) -> None:
    """No call acts in a namespace whose rights weren't checked."""
    where = POLICY[method.full_name].where
    if "namespace" in method.input_type.fields_by_name and not isinstance(where, Of):
        assert where == In("namespace")


def test_a_batch_is_judged_by_each_of_its_requests() -> None:
    request = run_service_pb2.BatchSubmitRunsRequest(
        requests=[{"namespace": "a"}, {}, {"namespace": "b"}]
    )
    where = POLICY["schedd.v1.RunService.BatchSubmitRuns"].where
    assert isinstance(where, In)
    assert where.namespaces_of(request) == {"a", "b", "default"}


def test_reading_needs_only_viewer_and_changing_needs_more() -> None:
    for method in methods():
        rule = POLICY[method.full_name]
        reads = re.match("Get|List|Explain|Check|Watch|Read", method.name) is not None
        if reads and method.name not in {"ListAudit", "ListTokens", "GetIdentity"}:
            assert rule.role is Role.VIEWER, method.name
        elif not reads:
            assert rule.role is not None, method.name
            assert rule.role >= Role.OPERATOR, method.name


@pytest.mark.parametrize(
    ("kind", "service"),
    [
        (IdentityKind.WORKER, worker_service_pb2.DESCRIPTOR.services_by_name["WorkerService"]),
        (IdentityKind.MEMBER, peer_service_pb2.DESCRIPTOR.services_by_name["PeerService"]),
    ],
)
def test_methods_of_one_kind_of_caller_are_refused_to_all_others(
    kind: IdentityKind, service: Any
) -> None:
    mighty = {EVERY: Role.ADMIN}
    for method in service.methods:
        authorize_method(CallerIdentity(kind, "n1"), method.full_name)
        for other in {IdentityKind.USER, IdentityKind.WORKER, IdentityKind.MEMBER} - {kind}:
            with pytest.raises(PermissionDeniedError, match="requires the certificate of a"):
                authorize_method(CallerIdentity(other, "n1", mighty), method.full_name)


@pytest.mark.parametrize("kind", [IdentityKind.WORKER, IdentityKind.MEMBER])
def test_workers_and_members_make_no_user_calls(kind: IdentityKind) -> None:
    for method in job_service_pb2.DESCRIPTOR.services_by_name["JobService"].methods:
        with pytest.raises(PermissionDeniedError):
            authorize_method(CallerIdentity(kind, "n1"), method.full_name)


def test_a_caller_without_a_role_learns_where_it_is_needed() -> None:
    viewer = CallerIdentity(IdentityKind.USER, "alice", {"billing": Role.VIEWER})
    for call, where in (
        ("Cluster.ListAudit", "all namespaces"),
        ("Job.PauseJob", "the request's namespace"),
    ):
        service, _, method = call.partition(".")
        with pytest.raises(PermissionDeniedError, match=f"in {where}"):
            authorize_method(viewer, f"schedd.v1.{service}Service.{method}")


@pytest.mark.parametrize("namespace", ["billing", ""])
async def test_a_caller_without_any_role_sees_the_namespace_of_the_request(
    namespace: str,
) -> None:
    operator = CallerIdentity(IdentityKind.USER, "bob", {EVERY: Role.OPERATOR})
    request = job_service_pb2.CreateJobRequest(job={"namespace": namespace})
    services: Any = None  # nothing is looked up
    with pytest.raises(PermissionDeniedError) as denied:
        await authorize_request(services, operator, "schedd.v1.JobService.CreateJob", request)
    assert denied.value.message == (
        f"the call CreateJob requires the role admin in namespace {namespace or 'default'};"
        " user/bob doesn't have it"
    )
