"""Each call of a member by each kind of caller, over real TLS and a real database."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import grpc.aio
import pytest
from google.protobuf.message_factory import GetMessageClass

from schedctl.authority import Authority as Issuing
from schedctl.authority import Subject
from schedd.api import deadlines
from schedd.api.auth import authentication
from schedd.api.auth.access_tokens import create_token, revoke_token
from schedd.api.auth.authentication import FRESH
from schedd.api.calls import STREAMING, methods
from schedd.api.errors import InvalidArgumentError
from schedd.api.services import Caller
from schedd.core.auth.rights import ANONYMOUS, EVERY, Role, uris_of_user
from schedd.core.ids import AccessTokenId, Id
from schedd.rpc.auth_interceptor import AuthInterceptor
from schedd.rpc.calls import serve_calls
from schedd.rpc.health import Health
from schedd.rpc.server import make_server
from schedkit.net.channel import TLS, connect, listen
from schedproto.v1 import auth_service_pb2 as auth
from schedproto.v1 import cluster_service_pb2 as cluster
from schedproto.v1 import job_service_pb2 as jobs
from schedproto.v1 import run_service_pb2 as runs
from support.certs import Authority
from support.web import Web, served

VIEWER = """
GetJob ListJobs GetBackfill WatchBackfill ListBackfills ListNextInstants ExplainInstant ExplainCron
GetRun ListRuns WatchRuns ListAttempts GetRunResult ReadResult ReadLogs ExplainRun
ListDeadLetters GetDeadLetter ListDeadLetterGroups GetRedrive WatchRedrive ListRedrives
GetCalendar ListCalendars GetPool ListPools
"""
OPERATOR = """
PauseJob ResumeJob TriggerJob BackfillJob CancelBackfill CancelRun RetryRun
DiscardDeadLetters RedriveDeadLetters StopRedrive ResumeRedrive PausePool ResumePool
"""
ADMIN = """
CreateJob BatchCreateJobs UpdateJob DeleteJob SubmitRun BatchSubmitRuns
ApplyCalendar DeleteCalendar SetPool DeletePool
"""
VIEWER_OF_ALL = "GetCluster ListMembers ListShards CheckCluster ListWorkers GetWorker WatchWorker"
OPERATOR_OF_ALL = "DrainWorker UndrainWorker"
ADMIN_OF_ALL = """
TransferLeader RebalanceCluster PauseCluster ResumeCluster ListAudit
CreateToken ListTokens RevokeToken
"""
KNOWN = "GetIdentity"
LEAST = {
    name: (role, everywhere)
    for names, role, everywhere in (
        (KNOWN, 1, False),
        (VIEWER, 1, False),
        (OPERATOR, 2, False),
        (ADMIN, 3, False),
        (VIEWER_OF_ALL, 1, True),
        (OPERATOR_OF_ALL, 2, True),
        (ADMIN_OF_ALL, 3, True),
    )
    for name in names.split()
}
"""Written down once more: what each call takes, and whether in all namespaces."""

ROLES = {"viewer": 1, "operator": 2, "admin": 3}
OWN, OTHER = "default", "other"
DENIED, UNKNOWN = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
BY_ID = frozenset({"run_id", "run_ids", "backfill_id", "redrive_id"})
"""Fields with ids: a caller who may not see the object gets NOT_FOUND."""


@dataclass
class Place:
    """A member's gRPC over TLS: `mutual` asks for certificates, `tokens` for none."""

    web: Web
    authority: Authority
    mutual: str
    tokens: str

    def certificate(self, *uris: str) -> TLS:
        san = ",".join(f"URI:{uri}" for uri in uris) or "DNS:nameless.example"
        return self.authority.issue(f"c{uuid4().hex}", san=san)

    @property
    def trust(self) -> TLS:
        return TLS(self.authority.folder / "ca.pem")

    async def token(self, role: int, *namespaces: str, **more: Any) -> tuple[str, str]:
        """Its id and text."""
        asked = auth.CreateTokenRequest(
            name="alice", role=auth.Role.ValueType(role), namespaces=namespaces, **more
        )
        made = await create_token(self.web.services, Caller(ANONYMOUS, "test"), asked)
        return made.token.token_id, made.secret

    async def code(
        self, method: Any, request: Any, endpoint: str, tls: TLS, token: str = ""
    ) -> grpc.StatusCode:
        """Return the status code of the call."""
        async with connect(endpoint, tls=tls, use=uuid4().hex) as channel:
            return await self.code_on(channel, method, request, token)

    async def code_on(
        self, channel: grpc.aio.Channel, method: Any, request: Any, token: str = ""
    ) -> grpc.StatusCode:
        path = f"/{method.containing_service.full_name}/{method.name}"
        sent = (("authorization", f"Bearer {token}"),) if token else ()
        try:
            if method.full_name in STREAMING:
                async for _ in channel.unary_stream(path, _bytes)(
                    request, timeout=5, metadata=sent
                ):
                    break
            else:
                await channel.unary_unary(path, _bytes)(request, timeout=5, metadata=sent)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK


def _bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("authority"))


@pytest.fixture
async def place(dsn: str, authority: Authority) -> AsyncIterator[Place]:
    async with served(dsn, demanded=True) as web, serving(web, authority) as found:
        yield found


@asynccontextmanager
async def serving(web: Web, authority: Authority) -> AsyncIterator[Place]:
    server, gate = make_server(64), AuthInterceptor(web.services.authentication)
    serve_calls(server, gate, web.services)
    Health(list).serve(server, gate)
    tls = authority.issue("member", san="IP:127.0.0.1,URI:schedd://member/m1")
    mutual = listen(server, "127.0.0.1:0", tls)
    tokens = listen(server, "127.0.0.1:0", tls, certificates=False)
    await server.start()
    try:
        yield Place(web, authority, f"127.0.0.1:{mutual}", f"127.0.0.1:{tokens}")
    finally:
        await server.stop(None)


def by_name(name: str) -> Any:
    return next(method for method in methods() if method.name == name)


def request_of(method: Any, namespace: str) -> Any:
    """A request that names this namespace, wherever it says which."""
    cls = GetMessageClass(method.input_type)
    match method.name:
        case "CreateJob" | "UpdateJob":
            return cls(job={"namespace": namespace, "name": "j"})
        case "BatchCreateJobs":
            return cls(requests=[{"job": {"namespace": namespace, "name": "j"}}])
        case "BatchSubmitRuns":
            return cls(requests=[{"namespace": namespace}])
        case "ApplyCalendar":
            return cls(calendar={"namespace": namespace, "name": "c"})
        case "SetPool":
            return cls(pool={"namespace": namespace, "name": "p"})
        case "ExplainCron":
            return cls(namespace=namespace, expression="@daily")
        case "ExplainInstant":
            return cls(namespace=namespace, at={"seconds": 1})
        case "CreateToken":
            return cls(name="bob", role=auth.ROLE_VIEWER)
    request = cls()
    if "namespace" in method.input_type.fields_by_name and method.name != "WatchRuns":
        request.namespace = namespace
    for field in BY_ID & {*method.input_type.fields_by_name}:
        value = str(uuid4())
        if field == "run_ids":
            request.run_ids.append(value)
        else:
            setattr(request, field, value)
    return request


def test_the_table_names_every_call() -> None:
    assert LEAST.keys() == {method.name for method in methods()}


@pytest.mark.parametrize("way", ["token", "certificate"])
async def test_each_call_by_each_role_is_let_through_exactly_if_the_table_says_so(
    place: Place, way: str
) -> None:
    """The outcome of a call that is let through (a missing job, say) isn't checked here."""
    for role, where in product(ROLES, (EVERY, OWN, OTHER)):
        token, endpoint, tls = "", place.mutual, place.trust
        if way == "token":
            _, token = await place.token(ROLES[role], where)
            endpoint = place.tokens
        else:
            tls = place.certificate(f"schedd://user/alice/{role}/{where}")
        async with connect(endpoint, tls=tls, use=uuid4().hex) as channel:
            for method in methods():
                code = await place.code_on(channel, method, request_of(method, OWN), token)
                case = f"{method.name} by {role} of {where}: {code}"
                assert code is not UNKNOWN, case
                assert (code is not DENIED) == _expected(method, role, where), case


def _expected(method: Any, role: str, where: str) -> bool:
    least, everywhere = LEAST[method.name]
    if ROLES[role] < least:
        return False
    fields = method.input_type.fields_by_name
    by_id = BY_ID & {*fields} and ("namespace" not in fields or method.name == "WatchRuns")
    if method.name == KNOWN or (by_id and not everywhere):
        return True  # what is named by an id: there is none, or none to be seen
    return where == EVERY or (where == OWN and not everywhere)


@pytest.mark.parametrize("kind", ["worker", "member"])
async def test_no_user_call_is_open_to_a_worker_or_member(place: Place, kind: str) -> None:
    tls = place.certificate(f"schedd://{kind}/n1")
    async with connect(place.mutual, tls=tls, use=uuid4().hex) as channel:
        for method in methods():
            assert await place.code_on(channel, method, request_of(method, OWN)) is DENIED


async def test_a_caller_without_identity_gets_only_health(place: Place) -> None:
    nameless = place.certificate()
    for endpoint, tls in ((place.mutual, nameless), (place.tokens, place.trust)):
        async with connect(endpoint, tls=tls, use=uuid4().hex) as channel:
            for method in methods():
                code = await place.code_on(channel, method, request_of(method, OWN))
                assert code is UNKNOWN, method.name
            await channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=5)


async def test_a_certificate_without_an_identity_is_described_to_its_caller_and_in_the_log(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    both = place.certificate("schedd://worker/w1", "schedd://worker/w2")
    with caplog.at_level(logging.INFO):
        async with connect(place.mutual, tls=both, use=uuid4().hex) as channel:
            listing = channel.unary_unary("/schedd.v1.JobService/ListJobs", _bytes)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await listing(jobs.ListJobsRequest(), timeout=5)
    assert refused.value.code() is UNKNOWN
    said = "has no name that schedd knows: 'schedd://worker/w1', 'schedd://worker/w2'"
    assert said in (refused.value.details() or "")
    assert re.search(rf"rejected=1 error=.*{re.escape(said)}", caplog.text)


async def test_a_certificate_of_another_authority_an_expired_one_and_none_are_refused(
    place: Place, tmp_path: Path
) -> None:
    stranger = Authority.create(tmp_path / "stranger").issue("s", san="URI:schedd://user/x/admin/*")
    foreign = TLS(place.trust.ca, stranger.cert, stranger.key)
    ended = Subject("late", uris_of_user("x", Role.ADMIN, ["*"]))
    expired = Issuing(place.authority.folder).issue(ended, tmp_path, timedelta(minutes=-1))
    for tls in (foreign, expired, place.trust):
        code = await place.code(by_name("ListJobs"), jobs.ListJobsRequest(), place.mutual, tls)
        assert code is grpc.StatusCode.UNAVAILABLE


async def test_a_wrong_revoked_or_expired_token_is_rejected_on_every_endpoint(
    place: Place,
) -> None:
    admin = place.certificate("schedd://user/root/admin/*")
    token_id, text = await place.token(3)
    ask = by_name("ListJobs"), jobs.ListJobsRequest()
    assert await place.code(*ask, place.tokens, place.trust, text) is grpc.StatusCode.OK
    wrong = text[:-1] + ("A" if text[-1] != "A" else "B")
    assert await place.code(*ask, place.mutual, admin, wrong) is UNKNOWN
    revoke = by_name("RevokeToken"), auth.RevokeTokenRequest(token_id=token_id)
    assert await place.code(*revoke, place.mutual, admin) is grpc.StatusCode.OK
    assert await place.code(*ask, place.tokens, place.trust, text) is UNKNOWN
    ended_id, ended = await place.token(3)
    await place.web.store.database.call(
        lambda c: c.exec_driver_sql(
            "UPDATE access_tokens SET expires_at = now() - interval '1 min' WHERE token_id = %s",
            (ended_id,),
        )
    )
    assert await place.code(*ask, place.tokens, place.trust, ended) is UNKNOWN


async def test_the_doctor_answers_recent_callers_while_postgresql_is_silent(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every refusal then points to the doctor."""

    async def silent(*_: object) -> None:
        await asyncio.Event().wait()

    ask = by_name("CheckCluster"), cluster.CheckClusterRequest()
    _, text = await place.token(1)
    _, never_seen = await place.token(1)
    assert await place.code(*ask, place.tokens, place.trust, text) is grpc.StatusCode.OK
    monkeypatch.setattr(authentication, "FRESH", 0.0)
    monkeypatch.setattr(deadlines, "READ_WITHIN", 2.0)
    for lookup in ("find", "find_all"):
        monkeypatch.setattr(type(place.web.services.access_tokens), lookup, silent)
    assert await place.code(*ask, place.tokens, place.trust, text) is grpc.StatusCode.OK
    away = grpc.StatusCode.UNAVAILABLE
    assert await place.code(*ask, place.tokens, place.trust, never_seen) is away
    other = by_name("GetCluster"), cluster.GetClusterRequest()
    assert await place.code(*other, place.tokens, place.trust, text) is away


async def test_a_call_with_two_tokens_is_rejected(place: Place) -> None:
    _, text = await place.token(3)
    both = tuple(("authorization", f"Bearer {each}") for each in (text, "schedd_x"))
    async with connect(place.tokens, tls=place.trust, use=uuid4().hex) as channel:
        ask = channel.unary_unary("/schedd.v1.JobService/ListJobs", _bytes)
        with pytest.raises(grpc.aio.AioRpcError, match="is given twice") as refused:
            await ask(jobs.ListJobsRequest(), timeout=5, metadata=both)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_quiet_stream_ends_when_its_certificate_or_token_ends(
    place: Place, dsn: str, tmp_path: Path
) -> None:
    watch = "/schedd.v1.RunService/WatchRuns"
    brief = Subject("bob", uris_of_user("bob", Role.VIEWER, ["*"]))
    bob = Issuing(place.authority.folder).issue(brief, tmp_path, timedelta(seconds=5))

    async def until_over(
        endpoint: str, tls: TLS, over: Callable[[], Awaitable[Any]], token: str = ""
    ) -> str:
        sent = (("authorization", f"Bearer {token}"),) if token else ()
        async with connect(endpoint, tls=tls, use=uuid4().hex) as channel:
            stream = channel.unary_stream(watch, _bytes)(runs.WatchRunsRequest(), metadata=sent)
            await stream.read()  # that it stands
            await over()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await asyncio.wait_for(to_end(stream), 2 * FRESH)
        assert refused.value.code() is UNKNOWN
        return str(refused.value.details())

    async def to_end(stream: Any) -> None:
        while await stream.read() is not grpc.aio.EOF:
            continue  # says how far it is, and then nothing

    async def nothing() -> None:
        pass

    assert "certificate has expired" in await until_over(place.mutual, bob, nothing)
    async with served(dsn, demanded=True) as other:
        for member in (place.web, other):
            token_id, text = await place.token(1)
            revoke = partial(revoke_token, member.services, Caller(ANONYMOUS, "test"))
            asked = partial(revoke, auth.RevokeTokenRequest(token_id=token_id))
            message = await until_over(place.tokens, place.trust, asked, text)
            assert "was revoked" in message


async def test_an_admin_of_a_namespace_makes_tokens_for_it_and_for_no_other(
    place: Place,
) -> None:
    alice = place.certificate("schedd://user/alice/admin/billing")
    make = by_name("CreateToken")
    for namespaces, expected in (
        (["billing"], grpc.StatusCode.OK),
        (["billing", "default"], DENIED),
        (["*"], DENIED),
        ([], DENIED),
    ):
        asked = auth.CreateTokenRequest(name="b", role=auth.ROLE_ADMIN, namespaces=namespaces)
        assert await place.code(make, asked, place.mutual, alice) is expected, namespaces


async def test_a_token_makes_none_that_outlives_it(place: Place) -> None:
    """Else one of an hour, in the wrong hands, is one of a year."""
    token_id, text = await place.token(auth.ROLE_ADMIN, EVERY, lifetime=timedelta(hours=1))
    found = await place.web.services.access_tokens.find(AccessTokenId(Id.parse(token_id)))
    assert found is not None
    maker = Caller(found.identity, "test")
    for longer in (timedelta(hours=1, seconds=1), timedelta(days=366)):
        asked = auth.CreateTokenRequest(name="b", role=auth.ROLE_ADMIN)
        asked.lifetime.FromTimedelta(longer)
        assert await place.code(by_name("CreateToken"), asked, place.tokens, place.trust, text) is (
            grpc.StatusCode.INVALID_ARGUMENT
        )
        with pytest.raises(
            InvalidArgumentError, match=f"expires at {found.expires_at:%Y-%m-%dT%H:%M}"
        ):
            await create_token(place.web.services, maker, asked)
    half = auth.CreateTokenRequest(name="b", role=auth.ROLE_ADMIN)
    unsaid = await create_token(place.web.services, maker, half)
    assert unsaid.token.expires_at.ToDatetime(UTC) == found.expires_at
    half.lifetime.FromTimedelta(timedelta(minutes=30))
    shorter = await create_token(place.web.services, maker, half)
    assert shorter.token.expires_at.ToDatetime(UTC) < found.expires_at


async def test_a_run_of_another_namespace_is_reported_as_missing(place: Place) -> None:
    admin = place.certificate("schedd://user/root/admin/*")
    async with connect(place.mutual, tls=admin, use=uuid4().hex) as channel:
        submit = channel.unary_unary("/schedd.v1.RunService/SubmitRun", _bytes)
        asked = runs.SubmitRunRequest(namespace="billing", spec={"shell": {"argv": ["true"]}})
        run = runs.GetRunRequest(run_id=_field(await submit(asked, timeout=5)))
    get, absent = by_name("GetRun"), runs.GetRunRequest(run_id=str(uuid4()))
    here = place.certificate("schedd://user/bob/viewer/billing")
    elsewhere = place.certificate("schedd://user/eve/admin/default")
    assert await place.code(get, run, place.mutual, here) is grpc.StatusCode.OK
    assert await place.code(get, run, place.mutual, elsewhere) is grpc.StatusCode.NOT_FOUND
    assert await place.code(get, absent, place.mutual, elsewhere) is grpc.StatusCode.NOT_FOUND
    cancel = runs.CancelRunRequest(run_id=run.run_id)
    assert await place.code(by_name("CancelRun"), cancel, place.mutual, here) is DENIED


def _field(answer: bytes) -> str:
    from schedproto.v1 import run_pb2

    return str(run_pb2.Run.FromString(answer).run_id)


async def test_a_watch_of_a_namespace_needs_a_role_in_it(place: Place) -> None:
    here = place.certificate("schedd://user/bob/viewer/billing")
    watch = by_name("WatchRuns")
    for namespace, expected in (("billing", grpc.StatusCode.OK), ("default", DENIED)):
        asked = runs.WatchRunsRequest(namespace=namespace)
        assert await place.code(watch, asked, place.mutual, here) is expected
    nothing = runs.WatchRunsRequest()
    assert await place.code(watch, nothing, place.mutual, here) is DENIED


async def test_the_audit_names_the_actor_and_the_token(place: Place) -> None:
    admin = place.certificate("schedd://user/root@example.com/admin/*")
    token_id, text = await place.token(3)
    pool = by_name("SetPool")
    for name, way in (("a", (place.mutual, admin)), ("b", (place.tokens, place.trust, text))):
        request = GetMessageClass(pool.input_type)(pool={"name": name, "limit": 1})
        assert await place.code(pool, request, *way) is grpc.StatusCode.OK
    lines = await place.web.services.store.list_audit("set", None, None, None, 5)
    assert [entry.actor for _, entry in lines] == ["user/alice", "user/root@example.com"]
    assert f"token:{token_id}" in lines[0][1].source
    made = await place.web.services.store.list_audit("create", f"token/{token_id}", None, None, 1)
    assert text not in str(made)
    assert '"role":"admin"' in made[0][1].after
