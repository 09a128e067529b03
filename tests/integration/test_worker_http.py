"""HTTP jobs against a real server on loopback."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from standardwebhooks import Webhook, WebhookVerificationError

from schedproto.v1 import common_pb2, job_pb2
from schedproto.v1 import worker_service_pb2 as pb
from support.addresses import NO_PUBLIC_HOST, THIS_HOST
from support.fake_member import Stream
from support.shared_workers import SharedWorkers

pytestmark = pytest.mark.asyncio(loop_scope="module")

ALLOWED = 'egress.allow = ["127.0.0.1"]\n'


class Target:
    """A server that keeps what it was asked."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, Mapping[str, str], bytes]] = []
        self.port = 0
        self.elsewhere = ""

    def url(self, path: str = "/ok") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append((request.method, request.path, dict(request.headers), body))
        match request.path:
            case "/ok":
                return web.json_response({"fine": True})
            case "/backtracks":
                return web.Response(text="a" * 40 + "!")
            case "/broken":
                return web.Response(status=500, text="oh no")
            case "/busy":
                return web.Response(status=503, headers={"Retry-After": "42"})
            case "/large":
                return web.Response(body=b"x" * 200_000)
            case "/away":
                return web.Response(status=307, headers={"Location": "/ok"})
            case "/elsewhere":
                return web.Response(status=307, headers={"Location": self.elsewhere})
            case "/inside":
                return web.Response(status=302, headers={"Location": "http://169.254.169.254/"})
            case _:
                return web.Response(status=404)


@contextlib.asynccontextmanager
async def target() -> AsyncIterator[Target]:
    served = Target()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", served.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    served.port = runner.addresses[0][1]
    try:
        yield served
    finally:
        await runner.cleanup()


async def request(stream: Stream, payload: str | None = None, **action: Any) -> pb.Result:
    key = await stream.assign(http=job_pb2.HttpAction(**action), payload=payload, timeout=10)
    return await stream.result_of(key)


async def test_a_request_names_its_run_and_its_answer_is_the_result(workers: SharedWorkers) -> None:
    async with target() as server, workers(config=ALLOWED) as (member, _):
        stream = await member.attached()
        result = await request(stream, '{"a":1}', url=server.url(), headers={"X-Own": "yes"})
        assert result.outcome == pb.Result.OUTCOME_SUCCEEDED
        assert json.loads(result.result.json) == {"fine": True}
        ((method, _, headers, body),) = server.requests
        assert (method, body) == ("POST", b'{"a":1}')
        assert headers["Schedd-Run-Id"] == result.key.run_id
        assert headers["Schedd-Fencing-Token"] == str(result.key.fencing_token)
        assert headers["Schedd-Idempotency-Key"] == result.key.run_id
        assert headers["Content-Type"] == "application/json"
        assert headers["X-Own"] == "yes"


async def test_a_job_stored_by_an_earlier_version_overrides_no_header_of_schedd(
    workers: SharedWorkers,
) -> None:
    """Members refuse such a job now; one may have been stored earlier."""
    wrong = {"content-length": "5", "Transfer-Encoding": "chunked", "schedd-run-id": "fake"}
    async with target() as server, workers(config=ALLOWED) as (member, _):
        stream = await member.attached()
        named = {**wrong, "user-agent": "own", "content-type": "text/plain"}
        result = await request(stream, '"0123456789"', url=server.url(), headers=named)
        assert result.outcome == pb.Result.OUTCOME_SUCCEEDED
        ((_, _, headers, body),) = server.requests
        assert body == b'"0123456789"'
        assert headers["Schedd-Run-Id"] == result.key.run_id
        sent = [name.lower() for name in headers]
        assert len(sent) == len({*sent}), "none is sent twice"
        assert "Transfer-Encoding" not in headers
        lowered = {name.lower(): value for name, value in headers.items()}
        assert (lowered["user-agent"], lowered["content-type"]) == ("own", "text/plain")


async def test_the_body_may_be_json_or_a_text_of_the_jobs_own(workers: SharedWorkers) -> None:
    async with target() as server, workers(config=ALLOWED) as (member, _):
        stream = await member.attached()
        own = common_pb2.Payload(json='{"b":2}')
        await request(stream, '{"a":1}', method="put", url=server.url(), json=own)
        await request(stream, '{"a":1}', url=server.url(), body="plain")
        assert [(method, body) for method, _, _, body in server.requests] == [
            ("PUT", b'{"b":2}'),
            ("POST", b"plain"),
        ]


async def test_a_status_other_than_2xx_fails_and_says_so(workers: SharedWorkers) -> None:
    async with target() as server, workers(config=ALLOWED) as (member, _):
        stream = await member.attached()
        broken = await request(stream, url=server.url("/broken"))
        assert broken.outcome == pb.Result.OUTCOME_FAILED
        assert broken.reason == common_pb2.REASON_HTTP_STATUS
        assert broken.error == "HTTP 500 Internal Server Error"
        assert broken.output[0].data == b"oh no"
        busy = await request(stream, url=server.url("/busy"))
        assert busy.retry_after.seconds == 42
        listed = await request(stream, url=server.url("/broken"), success_statuses=[500])
        assert listed.outcome == pb.Result.OUTCOME_SUCCEEDED


async def test_a_signed_request_is_one_that_its_receiver_can_verify(
    workers: SharedWorkers, tmp_path: Path
) -> None:
    """By the reference library of Standard Webhooks."""
    key = f"whsec_{base64.b64encode(b'k' * 32).decode()}"
    (tmp_path / "hook").write_text(f"{key}\n")
    receiver = Webhook(key)
    config = f'{ALLOWED}secrets = ["{tmp_path}"]\n'
    async with target() as server, workers(config=config) as (member, _):
        stream = await member.attached()
        action = {"signing_key": str(tmp_path / "hook"), "follow_redirects": True}
        for path in ("/ok", "/away"):
            result = await request(stream, '{"a":1}', url=server.url(path), **action)
            assert result.outcome == pb.Result.OUTCOME_SUCCEEDED
            _, _, headers, body = server.requests[-1]
            assert receiver.verify(body, dict(headers)) == {"a": 1}
            assert headers["webhook-id"] == result.key.run_id
            with pytest.raises(WebhookVerificationError):
                receiver.verify(body + b" ", dict(headers))


async def test_nothing_is_signed_for_another_origin_and_nothing_sent_without_its_key(
    workers: SharedWorkers,
    tmp_path: Path,
) -> None:
    (tmp_path / "hook").write_text(f"whsec_{base64.b64encode(b'k' * 32).decode()}\n")
    config = f'{ALLOWED}secrets = ["{tmp_path}"]\n'
    async with (
        target() as first,
        target() as other,
        workers(config=config) as (member, _),
    ):
        first.elsewhere = other.url()
        stream = await member.attached()
        signed = {"signing_key": str(tmp_path / "hook"), "follow_redirects": True}
        await request(stream, url=first.url("/elsewhere"), **signed)
        assert "webhook-signature" in first.requests[0][2]
        assert "webhook-signature" not in other.requests[0][2]
        unsigned = await request(stream, url=first.url(), signing_key="/etc/hostname")
        assert "isn't in an allowed folder:" in unsigned.error
        assert len(first.requests) == 1


async def test_a_pattern_must_be_found_in_the_body(workers: SharedWorkers) -> None:
    async with target() as server, workers(config=ALLOWED) as (member, _):
        stream = await member.attached()
        found = await request(stream, url=server.url(), success_pattern="fi.e")
        assert found.outcome == pb.Result.OUTCOME_SUCCEEDED
        missed = await request(stream, url=server.url(), success_pattern="no such")
        assert missed.reason == common_pb2.REASON_HTTP_STATUS
        wrong = await request(stream, url=server.url(), success_pattern="(")
        assert wrong.reason == common_pb2.REASON_DONT_RETRY


async def test_no_pattern_stalls_the_worker(workers: SharedWorkers) -> None:
    async with target() as server, workers(config=ALLOWED) as (member, _):
        stream = await member.attached()
        found = await request(stream, url=server.url("/backtracks"), success_pattern="^(a+)+$")
        assert found.reason == common_pb2.REASON_HTTP_STATUS


async def test_a_large_http_answer_is_stored_in_the_result_store(workers: SharedWorkers) -> None:
    async with target() as server, workers(config=ALLOWED) as (member, _):
        stream = await member.attached()
        result = await request(stream, url=server.url("/large"))
        assert result.outcome == pb.Result.OUTCOME_SUCCEEDED
        assert not result.HasField("result")
        assert not result.output
        assert result.stored_result.problem == ""
        assert result.stored_result.size > 64 * 1024


async def test_64_kib_of_an_answer_over_the_limit_are_kept(workers: SharedWorkers) -> None:
    config = f"{ALLOWED}\n[results]\nresult_mib = 0\n"
    async with target() as server, workers(config=config) as (member, _):
        stream = await member.attached()
        result = await request(stream, url=server.url("/large"))
        assert result.outcome == pb.Result.OUTCOME_SUCCEEDED
        assert not result.HasField("result")
        assert not result.HasField("stored_result")
        assert len(result.output[0].data) == 64 * 1024


async def test_redirects_are_followed_only_when_asked_and_checked_on_the_way(
    workers: SharedWorkers,
) -> None:
    async with target() as server, workers(config=ALLOWED) as (member, _):
        stream = await member.attached()
        kept = await request(stream, url=server.url("/away"))
        assert kept.error.startswith("HTTP 307")
        followed = await request(stream, url=server.url("/away"), follow_redirects=True)
        assert followed.outcome == pb.Result.OUTCOME_SUCCEEDED
        inside = await request(stream, url=server.url("/inside"), follow_redirects=True)
        assert inside.reason == common_pb2.REASON_DONT_RETRY
        assert "169.254.169.254" in inside.error
        for server.elsewhere in ("file:///etc/passwd", "ftp://example.com/", "mailto:ops@x"):
            other = await request(stream, url=server.url("/elsewhere"), follow_redirects=True)
            assert other.reason == common_pb2.REASON_DONT_RETRY
            assert f"{server.elsewhere} isn't an http or https URL" in other.error


async def test_a_host_that_the_worker_allows_is_called_and_another_names_the_setting(
    workers: SharedWorkers,
) -> None:
    """`localhost` stands for a sibling container: a name with an address that isn't public."""
    config = 'egress.allow = ["localhost"]\n'
    async with target() as server, workers(config=config) as (member, _):
        stream = await member.attached()
        allowed = await request(stream, url=f"http://localhost:{server.port}/ok")
        assert allowed.outcome == pb.Result.OUTCOME_SUCCEEDED
        refused = await request(stream, url=server.url())
        assert refused.reason == common_pb2.REASON_DONT_RETRY
        assert refused.error == (
            "the target 127.0.0.1 isn't a public address, and jobs and webhooks call only public"
            " addresses."
            ' To permit this target, write in workerd.toml: [egress] allow = ["127.0.0.1"]'
        )
        assert len(server.requests) == 1


async def test_metadata_services_are_refused_though_every_network_is_allowed(
    workers: SharedWorkers,
) -> None:
    config = 'egress.allow = ["0.0.0.0/0", "::/0", "*.internal"]\n'
    async with target() as server, workers(config=config) as (member, _):
        stream = await member.attached()
        for host in ("169.254.169.254", "[fd00:ec2::254]", "metadata.google.internal"):
            refused = await request(stream, url=f"http://{host}/latest/meta-data/")
            assert refused.reason == common_pb2.REASON_DONT_RETRY
            assert "jobs and webhooks can't call it" in refused.error
        redirected = await request(stream, url=server.url("/inside"), follow_redirects=True)
        assert redirected.reason == common_pb2.REASON_DONT_RETRY
        assert "jobs and webhooks can't call it" in redirected.error


async def test_no_spelling_of_an_address_reaches_a_host_that_is_not_public(
    workers: SharedWorkers,
) -> None:
    async with target() as server, workers() as (member, _):
        stream = await member.attached()
        odd = {}
        for host in THIS_HOST + NO_PUBLIC_HOST:
            before, _, after = host.partition("#")
            url = f"http://{before}:{server.port}/ok" + (f"#{after}" if after else "")
            result = await request(stream, url=url)
            assert result.outcome == pb.Result.OUTCOME_FAILED, host
            if not any(refusal in result.error for refusal in REFUSED):
                odd[host] = result.error
        assert server.requests == []
        assert odd == {}


REFUSED = (
    "isn't a public address",
    "can't call it",
    "not a canonical",
    "its notation isn't that of a public address",
    "Invalid",
    "Name or service not known",
)
"""Texts which show that the address was refused, and not by chance out of reach. (`localhost.` is a
name on some hosts alone.)
"""


async def test_an_unavailable_target_is_an_exception_that_is_retried(
    workers: SharedWorkers,
) -> None:
    async with workers(config=ALLOWED) as (member, _):
        stream = await member.attached()
        result = await request(stream, url="http://127.0.0.1:1/")
        assert result.reason == common_pb2.REASON_EXCEPTION
        odd = await request(stream, url="ftp://example.com/")
        assert odd.reason == common_pb2.REASON_DONT_RETRY
