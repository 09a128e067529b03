"""Callers over HTTP are known, or sent to the login. A login lasts until logout or revocation."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from schedd.api import deadlines
from schedd.api.auth import authentication
from schedd.api.auth.authentication import FRESH
from schedd.api.calls import UNARY
from schedd.api.definitions.validation import MAX_PAYLOAD
from schedd.api.services import Caller
from schedd.core.auth.rights import ANONYMOUS, CallerIdentity, IdentityKind, Role
from schedd.web import http_auth as login_face
from schedd.web.app import PAGES
from schedd.web.pages.page import PageRequest
from schedd.web.server import bound
from schedkit.daemon import log_rate_limit
from schedkit.errors import Unavailable
from schedkit.net.https import context_of
from schedproto.v1 import auth_service_pb2 as auth
from schedproto.v1 import job_pb2, job_service_pb2
from support.certs import Authority
from support.wait import wait_until_async
from support.web import Answer, Web, bearer, member, served, token

ON_TOP = 2.0
"""Seconds that the machine may take for what takes FRESH."""
PAGE = {"accept": "text/html"}


@pytest.fixture
async def web(dsn: str) -> AsyncIterator[Web]:
    async with served(dsn, demanded=True) as face:
        yield face


async def log_in(web: Web, text: str, **form: str) -> Answer:
    data = {"token": text, **form}
    return await web.ask("POST", "/login", data=data, allow_redirects=False)


async def revoke(web: Web, token_id: str) -> None:
    call: Any = UNARY["schedd.v1.AuthService.RevokeToken"]
    asked = auth.RevokeTokenRequest(token_id=token_id)
    await call(web.services, Caller(ANONYMOUS, "test"), asked)


def cookie_of(answer: Answer) -> str:
    return str(answer.headers["set-cookie"]).partition(";")[0]


@pytest.mark.parametrize("path", ["/", "/events", "/metrics", "/anything", "/docs"])
async def test_a_page_sends_unknown_callers_to_the_login(web: Web, path: str) -> None:
    answer = await web.get(path, headers=PAGE, allow_redirects=False)
    assert (answer.status, answer.headers["location"]) == (303, f"/login?next={path}")
    assert (await web.get(path)).status == 401


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/login", "/static/schedd.css"])
async def test_probes_the_login_and_its_static_files_need_no_authentication(
    web: Web, path: str
) -> None:
    assert (await web.get(path)).status == 200


async def test_a_call_is_refused_with_a_remedy(web: Web) -> None:
    answer = await web.get("/api/v1/jobs")
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.json["reason"], answer.json["status"]) == ("NO_CREDENTIALS", 401)
    wrong = await web.get("/api/v1/jobs", headers=bearer("schedd_x"))
    assert (wrong.status, wrong.json["reason"]) == (401, "BAD_TOKEN")


async def test_two_tokens_in_one_request_are_refused_not_chosen_from(web: Web) -> None:
    _, text = await token(web, auth.ROLE_VIEWER)
    for texts in ((text, "schedd_x"), ("schedd_x", text), (text, text)):
        twice = [each for one in texts for each in bearer(one).items()]
        answer = await web.get("/api/v1/jobs", headers=twice)
        assert (answer.status, answer.json["reason"]) == (400, "INVALID_FIELD"), answer.text
        assert answer.json["violations"] == [
            {"field": "Authorization", "problem": "the header is given twice: send it once"}
        ]
        assert text not in answer.text


async def test_a_token_calls_what_its_role_allows_in_its_namespace(web: Web) -> None:
    _, text = await token(web, auth.ROLE_VIEWER, "billing")
    sent = bearer(text)
    assert (await web.get("/api/v1/jobs?namespace=billing", headers=sent)).status == 200
    for denied in (
        await web.get("/api/v1/jobs", headers=sent),
        await web.post("/api/v1/pools/p:pause", {"namespace": "billing"}, headers=sent),
        await web.get("/api/v1/cluster", headers=sent),
        await web.post("/api/tasks", {"taskName": "t"}, headers=sent),
        await web.get("/", headers=sent),
        await web.get("/metrics", headers=sent),
    ):
        assert (denied.status, denied.json["reason"]) == (403, "ROLE_MISSING"), denied.text


async def test_a_viewer_of_some_namespaces_sees_the_needed_role_on_a_page_and_can_log_out(
    web: Web,
) -> None:
    _, text = await token(web, auth.ROLE_VIEWER, "billing")
    sent = PAGE | {"cookie": cookie_of(await log_in(web, text))}
    for path in ("/", "/runs?q=state:failed", "/nowhere", "/metrics"):
        denied = await web.get(path, headers=sent)
        assert denied.status == 403
        assert denied.headers["content-type"].startswith("text/html"), path
        assert "it needs the role viewer in all of them" in denied.text
        assert "You are <b>user/alice</b>, viewer in billing." in denied.text
        assert 'action="/logout"' in denied.text
    assert (await web.get("/api/v1/cluster", headers=sent)).json["reason"] == "ROLE_MISSING"
    left = await web.ask("POST", "/logout", headers=sent, allow_redirects=False)
    assert (left.status, left.headers["location"]) == (303, "/login")


async def test_a_missing_or_forbidden_page_names_the_caller(
    web: Web,
) -> None:
    _, text = await token(web, auth.ROLE_VIEWER)
    sent = PAGE | {"cookie": cookie_of(await log_in(web, text))}
    form = sent | {"content-type": "application/x-www-form-urlencoded"}
    nowhere = await web.get("/nowhere", headers=sent)
    denied = await web.ask("POST", "/cluster/pause", data={}, headers=form)
    assert (nowhere.status, denied.status) == (404, 403)
    assert "PauseCluster requires the role admin in" in denied.text
    for answer in (nowhere, denied):
        assert 'You are user/alice (<a href="/login">log in or out</a>)' in answer.text
    assert (await web.get("/static/nowhere.css", headers=sent)).status == 404


async def test_a_login_gives_access_to_pages_until_logout(web: Web) -> None:
    token_id, text = await token(web, auth.ROLE_VIEWER)
    entered = await log_in(web, text, next="/")
    assert (entered.status, entered.headers["location"]) == (303, "/")
    set_cookie = entered.headers["set-cookie"]
    assert set_cookie.startswith("__Host-schedd=schedd_")
    assert {"HttpOnly", "Secure", "Path=/", "SameSite=strict"} <= set(set_cookie.split("; "))
    assert text not in set_cookie
    sent = {"cookie": cookie_of(entered)}
    assert (await web.get("/", headers=sent)).status == 200
    assert "user/alice" in (await web.get("/login", headers=sent)).text
    left = await web.ask("POST", "/logout", headers=sent, allow_redirects=False)
    assert (left.status, left.headers["location"]) == (303, "/login")
    assert (await web.get("/metrics", headers=sent)).json["reason"] == "TOKEN_REVOKED"
    assert (await web.get("/metrics", headers=bearer(text))).status == 200
    lines = await web.services.store.list_audit(None, f"token/{token_id}", None, None, 10)
    assert [(entry.actor, entry.action) for _, entry in lines][:1] == [("user/alice", "login")]
    login = json.loads(lines[0][1].after)
    assert (login["name"], login["role"]) == ("alice", "viewer")
    [(_, ended)] = await web.services.store.list_audit(
        None, f"token/{login['login']}", None, None, 10
    )
    assert ended.action == "logout", "what was done in it is found by its id"


async def test_a_login_and_its_end_wait_for_a_silent_postgresql_no_longer_than_other_calls(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: object) -> None:
        await asyncio.Event().wait()

    _, text = await token(web, auth.ROLE_VIEWER)
    sent = {"cookie": cookie_of(await log_in(web, text)), **PAGE}
    for name in ("log_in", "log_out"):
        monkeypatch.setattr(login_face, name, silent)
    for name in ("READ_WITHIN", "WAITS", "STATEMENTS"):
        monkeypatch.setattr(deadlines, name, 0.5)

    async with asyncio.timeout(10):
        refused = await log_in(web, text)
        left = await web.ask("POST", "/logout", headers=sent, allow_redirects=False)
    assert (refused.status, "set-cookie" in refused.headers) == (503, False)
    assert "PostgreSQL timed out: no answer within 0.5 s" in refused.text
    assert (left.status, "set-cookie" in left.headers) == (504, False), "it may still be good"
    assert "the change may have been made" in left.text


async def test_metrics_are_served_to_recent_callers_while_postgresql_is_silent(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By them the alert comes that it is: a scraper gives up before a look for a token does."""

    async def silent(*_: object) -> None:
        await asyncio.Event().wait()

    _, text = await token(web, auth.ROLE_VIEWER)
    known = [bearer(text), {"cookie": cookie_of(await log_in(web, text))}]
    for sent in known:
        assert (await web.get("/metrics", headers=sent)).status == 200
    _, never_seen = await token(web, auth.ROLE_VIEWER)
    ended_id, ended = await token(web, auth.ROLE_VIEWER)
    over = [bearer(ended), {"cookie": cookie_of(await log_in(web, ended))}]
    for sent in over:
        assert (await web.get("/metrics", headers=sent)).status == 200
    await revoke(web, ended_id)
    monkeypatch.setattr(authentication, "FRESH", 0.0)
    monkeypatch.setattr(deadlines, "READ_WITHIN", 3.0)
    for lookup in ("find", "find_all"):
        monkeypatch.setattr(type(web.services.access_tokens), lookup, silent)

    for sent in known:
        async with asyncio.timeout(authentication.PROMPT + 1):
            metrics = await web.get("/metrics", headers=sent)
        assert metrics.status == 200
        assert "schedd_workers" in metrics.text
        for path in ("/cluster/doctor", "/api/v1/cluster/checks"):
            assert "it is away" in (await web.get(path, headers=sent)).text
        assert (await web.get("/api/v1/jobs", headers=sent)).status == 503
    assert (await web.get("/metrics", headers=bearer(never_seen))).status == 503
    for sent in over:
        assert (await web.get("/metrics", headers=sent)).json["reason"] == "TOKEN_REVOKED"


async def test_a_revocation_without_an_answer_removes_the_token_from_the_cache(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The revocation may have been made: while that can't be read, the token is invalid here."""

    async def away(*_: object) -> None:
        raise Unavailable("it is away")

    token_id, text = await token(web, auth.ROLE_VIEWER)
    for _ in range(2):
        assert (await web.get("/metrics", headers=bearer(text))).status == 200
        with monkeypatch.context() as while_away:
            for name in ("revoke", "find"):
                while_away.setattr(type(web.services.access_tokens), name, away)
            with pytest.raises(Unavailable):
                await revoke(web, token_id)
            answer = (await web.get("/metrics", headers=bearer(text))).json
            assert answer["reason"] == "TOKEN_REVOKED"


async def test_a_login_ends_with_the_token_that_created_it(web: Web) -> None:
    token_id, text = await token(web, auth.ROLE_VIEWER)
    sent = {"cookie": cookie_of(await log_in(web, text))}
    assert (await web.get("/metrics", headers=sent)).status == 200
    await revoke(web, token_id)
    assert (await web.get("/metrics", headers=sent)).json["reason"] == "TOKEN_REVOKED"
    assert (await log_in(web, text)).status == 403


async def ends_at(web: Web, token_id: str, seconds: float) -> None:
    """Have this token end so many seconds from now."""
    ends = "UPDATE access_tokens SET expires_at = now() + %s * interval '1 s' WHERE token_id = %s"
    await web.store.database.call(lambda c: c.exec_driver_sql(ends, (seconds, token_id)))


async def test_a_quiet_stream_of_events_says_that_its_token_was_revoked_here_or_elsewhere(
    web: Web, dsn: str
) -> None:
    async with served(dsn, demanded=True) as other:
        for taken in (web, other):
            token_id, text = await token(web, auth.ROLE_VIEWER)
            async with web.events("/api/v1/events", headers=bearer(text)) as events:
                await revoke(taken, token_id)
                async with asyncio.timeout(FRESH + ON_TOP):
                    event = await anext(events)
            assert (event.name, json.loads(event.data)["reason"]) == ("error", "TOKEN_REVOKED")


async def test_a_quiet_stream_of_events_says_that_its_token_has_expired(web: Web) -> None:
    token_id, text = await token(web, auth.ROLE_VIEWER)
    await ends_at(web, token_id, 2)
    async with web.events("/api/v1/events", headers=bearer(text)) as events:
        async with asyncio.timeout(2 + FRESH + ON_TOP):
            event = await anext(events)
    assert (event.name, json.loads(event.data)["reason"]) == ("error", "TOKEN_EXPIRED")


async def test_a_live_page_on_which_nothing_happens_ends_with_its_login_and_is_refused_then(
    web: Web, dsn: str
) -> None:
    async with served(dsn, demanded=True) as other:
        for taken in (web, other):
            _, text = await token(web, auth.ROLE_VIEWER)
            sent = {"cookie": cookie_of(await log_in(web, text))}
            async with web.events("/live/dead-letters", headers=sent) as events:
                assert (await anext(events)).id  # the page as it is, and then nothing
                await taken.ask("POST", "/logout", headers=sent, allow_redirects=False)
                async with asyncio.timeout(FRESH + ON_TOP):
                    assert [event async for event in events] == []
            answer = await web.get("/live/dead-letters", headers=sent)
            assert (answer.status, answer.json["reason"]) == (401, "TOKEN_REVOKED")


async def test_a_live_page_continues_though_its_reader_cant_be_checked(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While PostgreSQL is stopped the page must say so, and not show old data."""

    async def silent(*_: object) -> None:
        await asyncio.Event().wait()

    _, text = await token(web, auth.ROLE_ADMIN)
    sent = {"cookie": cookie_of(await log_in(web, text))}
    async with web.events("/live/jobs", headers=sent) as events:
        assert (await anext(events)).id
        monkeypatch.setattr(type(web.services.authentication), "check", silent)
        web.cluster.has_trust = False
        async with asyncio.timeout(10):
            event = await anext(events)
    assert "isn't trusted" in event.data or "isn&#39;t trusted" in event.data


async def test_a_login_is_not_listed_and_is_deleted_once_expired(web: Web) -> None:
    token_id, text = await token(web, auth.ROLE_VIEWER)
    await log_in(web, text)
    listed = await web.services.access_tokens.list(None, 10)
    assert [str(each.id) for each in listed] == [token_id]
    count = "SELECT count(*) FROM access_tokens"
    ended = "UPDATE access_tokens SET expires_at = now() WHERE parent IS NOT NULL"
    await web.store.database.call(lambda c: c.exec_driver_sql(ended))
    await web.store.keep_house()
    left = await web.store.database.call(lambda c: c.exec_driver_sql(count).scalar_one())
    assert left == 1


@pytest.mark.parametrize("typed", ["", "schedd_x", "x" * 5000, "\x00é"])
async def test_an_invalid_token_makes_no_login_and_the_page_says_so(web: Web, typed: str) -> None:
    answer = await log_in(web, typed)
    assert answer.status == 403
    assert "set-cookie" not in answer.headers
    assert "isn&#39;t valid in this cluster" in answer.text


async def test_a_login_with_two_tokens_is_refused_as_a_repeated_field(web: Web) -> None:
    _, text = await token(web, auth.ROLE_VIEWER)
    answer = await web.ask("POST", "/login", data=[("token", text), ("token", text)])
    assert answer.status == 400
    assert "token is given twice" in answer.text
    assert "set-cookie" not in answer.headers


async def test_failed_logins_are_logged_once_a_second_at_most_with_their_number(
    web: Web, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await log_in(web, "schedd_x")).status == 403
    monkeypatch.setattr(log_rate_limit.LimitedLine, "every", 3600.0)
    for _ in range(19):
        assert (await log_in(web, "schedd_x")).status == 403
    monkeypatch.setattr(log_rate_limit.LimitedLine, "every", 0.0)
    assert (await log_in(web, "schedd_x")).status == 403
    lines = [one.getMessage() for one in caplog.records if one.name == "schedd.web.http_auth"]
    pattern = r"login failed: peer=127\.0\.0\.1:\d+ failures=(\d+) "
    pattern += r"error=the access token isn't valid in this cluster"
    counts = [found[1] for line in lines if (found := re.fullmatch(pattern, line))]
    assert (len(lines), counts) == (2, ["1", "20"])


@pytest.mark.parametrize("next_", ["https://evil.example/", "//evil.example/", "/\\evil", "x", ""])
async def test_a_login_does_not_redirect_to_another_site(web: Web, next_: str) -> None:
    _, text = await token(web, auth.ROLE_VIEWER)
    assert (await log_in(web, text, next=next_)).headers["location"] == "/"


@pytest.mark.parametrize(
    ("wanted", "page"),
    [
        ("/jobs/etl/trigger", "/jobs/etl"),
        ("/jobs/etl/trigger?namespace=a", "/jobs/etl?namespace=a"),
        ("/workers/w1/drain", "/workers"),
        ("/dead-letters/redrive", "/dead-letters"),
        ("/logout", "/"),
    ],
)
async def test_a_login_leads_to_the_page_of_the_refused_action(
    web: Web, wanted: str, page: str
) -> None:
    _, text = await token(web, auth.ROLE_VIEWER)
    assert (await log_in(web, text, next=wanted)).headers["location"] == page


async def test_a_form_that_is_sent_when_the_login_has_ended_leads_to_the_login_and_back(
    web: Web,
) -> None:
    for referer, back in (
        (f"{web.url}/jobs?filter=etl", "/jobs?filter=etl"),
        ("https://evil.example/jobs", "/jobs/etl"),
    ):
        headers = PAGE | {"referer": referer}
        refused = await web.ask("POST", "/jobs/etl/trigger", data={}, headers=headers)
        assert (refused.status, refused.headers["content-type"][:9]) == (401, "text/html")
        assert f'name="next" value="{back}"' in refused.text
        assert 'name="token"' in refused.text
        assert "Remedy: log in" in refused.text
        assert "schedctl auth" not in refused.text.partition("</section>")[0]
    program = await web.ask("POST", "/jobs/etl/trigger", data={})
    assert (program.status, program.json["reason"]) == (401, "NO_CREDENTIALS")
    assert "schedctl auth token create" in program.json["remedy"]


def hidden_of(page: Answer) -> dict[str, str]:
    """Return the hidden fields of the login form."""
    found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', page.text)
    return {unescape(name): unescape(value) for name, value in found}


async def sent_without_login(web: Web, **fields: str) -> Answer:
    """Return the login page that answers a form for a job from an unknown caller."""
    headers = PAGE | {"referer": f"{web.url}/new-job?namespace=team-a&when=1m"}
    refused = await web.ask("POST", "/new-job?namespace=team-a", data=fields, headers=headers)
    assert (refused.status, refused.headers["cache-control"]) == (401, "no-store")
    assert 'action="/login"' in refused.text
    assert "/login?" not in refused.text, "nothing of it in an address"
    return refused


async def test_a_job_form_is_shown_filled_in_after_the_login_and_not_submitted(
    web: Web,
) -> None:
    nasty = '"><script>alert(1)</script>'
    payload = json.dumps({"of": ["Käse & Brot", "a+b=c", "#", nasty, "x" * 100_000]}, indent=1)
    fields = {"name": "by-form", "schedule": "every", "when": "1m", "payload": payload}
    carried = hidden_of(
        await sent_without_login(web, **fields, time_zone="", request_id="0123", made_up="x")
    )
    typed = {f"typed.{name}": value for name, value in fields.items()}
    assert carried == {"next": "/new-job?namespace=team-a", "undone": "yes"} | typed
    mistyped = await log_in(web, "schedd_x", **carried)
    assert (mistyped.status, hidden_of(mistyped)) == (403, carried)
    assert nasty not in mistyped.text
    _, text = await token(web, auth.ROLE_ADMIN)
    entered = await log_in(web, text, **carried)
    assert (entered.status, entered.headers["cache-control"]) == (200, "no-store")
    assert "Nothing was changed yet" in entered.text
    assert 'action="/new-job?namespace=team-a"' in entered.text
    assert 'value="by-form"' in entered.text
    assert '<option value="every" selected>' in entered.text
    assert f'spellcheck="false">{payload}</textarea>' in unescape(entered.text)
    assert nasty not in entered.text
    login = {"cookie": cookie_of(entered)}
    assert (await web.get("/workers", headers=login)).status == 200
    listed = await web.get("/api/v1/jobs?namespace=team-a", headers=login)
    assert listed.json["jobs"] == []


async def test_a_reason_typed_into_a_dialog_is_shown_after_the_login(web: Web) -> None:
    await create_and_trigger(web)
    headers, reason = PAGE | {"referer": f"{web.url}/jobs/etl"}, 'the "disks" <b>&</b> so'
    data = {"reason": reason, "request_id": "0123"}
    refused = await web.ask("POST", "/jobs/etl/pause", data=data, headers=headers)
    carried = hidden_of(refused)
    assert carried == {"next": "/jobs/etl", "undone": "yes", "typed.reason": reason}
    _, text = await token(web, auth.ROLE_ADMIN)
    entered = await log_in(web, text, **carried)
    assert (entered.status, entered.headers["location"]) == (303, "/jobs/etl")
    cookies = entered.headers.getall("set-cookie")
    sent = {"cookie": "; ".join(cookie.partition(";")[0] for cookie in cookies)}
    page = await web.get("/jobs/etl", headers=sent)
    assert "Nothing was changed yet" in page.text
    assert reason in unescape(page.text)
    assert "<b>&" not in page.text
    assert not (await web.get("/api/v1/jobs/etl", headers=sent)).json["paused"]


async def test_a_button_without_a_dialog_is_shown_after_the_login_as_not_done_yet(web: Web) -> None:
    await create_and_trigger(web)
    headers = PAGE | {"referer": f"{web.url}/jobs/etl"}
    refused = await web.ask("POST", "/jobs/etl/trigger", data={}, headers=headers)
    mistyped = await log_in(web, "schedd_x", **hidden_of(refused))
    _, text = await token(web, auth.ROLE_ADMIN)
    entered = await log_in(web, text, **hidden_of(mistyped))
    assert (entered.status, entered.headers["location"]) == (303, "/jobs/etl")
    cookies = entered.headers.getall("set-cookie")
    sent = {"cookie": "; ".join(cookie.partition(";")[0] for cookie in cookies)}
    page = (await web.get("/jobs/etl", headers=sent)).text
    assert "You are logged in. Nothing was changed yet: send the form again." in page
    assert len((await web.get("/api/v1/runs", headers=sent)).json["runs"]) == 1
    asked = {"cookie": cookie_of(await log_in(web, text, next="/jobs/etl"))}
    assert "Nothing was changed" not in (await web.get("/jobs/etl", headers=asked)).text


@pytest.mark.parametrize(
    ("after", "page"),
    [
        ("//evil.example/new-job", "/"),
        ("https://evil.example/new-job", "/"),
        ("/jobs", "/jobs"),
        ("/new-job?made_up=x", "/new-job?made_up=x"),
    ],
)
async def test_typed_text_is_kept_for_its_own_form_alone(web: Web, after: str, page: str) -> None:
    _, text = await token(web, auth.ROLE_ADMIN)
    sent = {"undone": "yes", "typed.name": "by-form"}
    entered = await log_in(web, text, next=after, **sent)
    assert (entered.status, entered.headers["location"]) == (303, page)


async def test_a_caller_without_access_to_pages_sees_that_instead_of_the_form(web: Web) -> None:
    _, text = await token(web, auth.ROLE_ADMIN, "team-a")
    sent = {"undone": "yes", "typed.name": "by-form"}
    entered = await log_in(web, text, next="/new-job", **sent)
    assert (entered.status, entered.headers["location"]) == (303, "/new-job")


async def test_a_job_form_too_long_for_the_login_is_reported_as_not_kept(
    web: Web,
) -> None:
    for payload in ("x" * 890_000, "x" * 920_000, "\N{SNOWMAN}" * 100_000):
        refused = await sent_without_login(web, name="by-form", payload=payload)
        assert hidden_of(refused) == {"next": "/new-job?namespace=team-a", "undone": "yes"}
        assert "too long to keep" in refused.text
    _, text = await token(web, auth.ROLE_ADMIN)
    for payload in ("x" * 800_000, "\N{SNOWMAN}" * (MAX_PAYLOAD // 3)):
        carried = await sent_without_login(web, name="by-form", payload=payload)
        assert "too long" not in carried.text
        entered = await log_in(web, text, **hidden_of(carried))
        assert (entered.status, payload in entered.text) == (200, True)


@pytest.mark.parametrize(
    ("method", "path", "allow", "page"),
    [
        ("GET", "/jobs/load/trigger", "POST", "/jobs/load"),
        ("POST", "/jobs/tick", "GET, HEAD", "/jobs/tick"),
        ("GET", "/cluster/pause", "POST", "/cluster"),
        ("DELETE", "/login", "GET, HEAD, POST", "/login"),
        ("POST", "/static/schedd.css", "GET, HEAD", "/static/schedd.css"),
    ],
)
async def test_an_unsupported_method_is_answered_by_a_page_with_the_allowed_methods(
    web: Web, method: str, path: str, allow: str, page: str
) -> None:
    _, text = await token(web, auth.ROLE_VIEWER)
    known = bearer(text) if path != "/login" else {}
    answer = await web.ask(method, path, headers=PAGE | known)
    assert (answer.status, answer.headers["allow"]) == (405, allow)
    assert answer.headers["content-type"].startswith("text/html")
    assert f"method {method} not allowed for {path}, only {allow}" in answer.text.replace(
        "Method", "method"
    )
    assert f'href="{page}">Open the page</a>' in answer.text
    program = await web.ask(method, path, headers=known)
    assert (program.status, program.headers["allow"]) == (405, allow)
    assert program.json["reason"] == "METHOD_NOT_ALLOWED"


async def test_the_login_has_a_heading_for_every_caller(web: Web) -> None:
    _, text = await token(web, auth.ROLE_VIEWER)
    login = {"cookie": cookie_of(await log_in(web, text))}
    for headers, heading in (({}, "Log in"), (login, "You are logged in")):
        shown = await web.get("/login", headers=headers)
        assert f'<h1 class="heading">{heading}</h1>' in shown.text


async def test_a_mistyped_token_keeps_the_requested_page_for_the_next_login(web: Web) -> None:
    _, text = await token(web, auth.ROLE_VIEWER)
    asked = await web.get("/runs?q=state:failed", headers=PAGE, allow_redirects=False)
    login = await web.get(asked.headers["location"])
    assert 'name="next" value="/runs?q=state:failed"' in login.text
    mistyped = await log_in(web, "schedd_x", next="/runs?q=state:failed")
    assert 'name="next" value="/runs?q=state:failed"' in mistyped.text
    entered = await log_in(web, text, next="/runs?q=state:failed")
    assert entered.headers["location"] == "/runs?q=state:failed"


@asynccontextmanager
async def over_tls(
    web: Web, tmp_path: Path, uri: str = ""
) -> AsyncIterator[tuple[Web, ssl.SSLContext]]:
    """The same by TLS, and what its client goes by: a certificate of this URI, if one is given."""
    authority = Authority.create(tmp_path)
    tls = authority.issue("m1", san="IP:127.0.0.1")
    mine = ssl.create_default_context(cafile=tls.ca)
    if uri:
        bob = authority.issue("bob", san=f"URI:{uri}")
        mine.load_cert_chain(str(bob.cert), bob.key)
    async with bound("127.0.0.1:0") as http, asyncio.TaskGroup() as group:
        server = group.create_task(http.serve(web.app, tls=context_of(tls)))
        yield replace(web, url=f"https://{http.address}"), mine
        server.cancel()


async def test_an_ended_login_is_ignored_where_there_is_a_certificate(
    web: Web, tmp_path: Path
) -> None:
    _, text = await token(web, auth.ROLE_VIEWER)
    login = {"cookie": cookie_of(await log_in(web, text))}
    async with over_tls(web, tmp_path, "schedd://user/bob/viewer/*") as (secure, mine):
        assert "user/alice" in (await secure.get("/workers", headers=login, ssl=mine)).text
        await web.ask("POST", "/logout", headers=login, allow_redirects=False)
        assert "user/bob" in (await secure.get("/workers", headers=login, ssl=mine)).text
        sent = bearer("schedd_x")
        assert (await secure.get("/workers", headers=login | sent, ssl=mine)).status == 401
    assert (await web.get("/workers", headers=login)).json["reason"] == "TOKEN_REVOKED"


def max_age_of(answer: Answer) -> int:
    return int(str(answer.headers["set-cookie"]).partition("Max-Age=")[2].partition(";")[0])


async def test_a_browser_keeps_a_login_as_long_as_it_is_good(web: Web) -> None:
    token_id, text = await token(web, auth.ROLE_VIEWER)
    assert 8 * 3600 - 60 <= max_age_of(await log_in(web, text)) <= 8 * 3600
    await ends_at(web, token_id, 3600)
    assert 3540 <= max_age_of(await log_in(web, text)) <= 3600


async def test_a_login_ends_when_the_token_that_created_it_expires(web: Web) -> None:
    token_id, text = await token(web, auth.ROLE_VIEWER)
    await ends_at(web, token_id, 3)
    sent = {"cookie": cookie_of(await log_in(web, text))}
    again = {"cookie": cookie_of(await log_in(web, str(sent["cookie"]).partition("=")[2]))}
    for login in (sent, again):  # one that was made by a login, too
        assert (await web.get("/metrics", headers=login)).status == 200

    async def over() -> bool:
        answers = [await web.get("/metrics", headers=login) for login in (sent, again)]
        return [answer.status for answer in answers] == [401, 401]

    await wait_until_async(over, 3 + ON_TOP, "both to end")
    assert (await web.get("/metrics", headers=sent)).json["reason"] == "TOKEN_EXPIRED"


async def test_a_new_login_ends_only_the_previous_login_of_its_browser(web: Web) -> None:
    _, text = await token(web, auth.ROLE_VIEWER)
    elsewhere = {"cookie": cookie_of(await log_in(web, text))}
    first = {"cookie": cookie_of(await log_in(web, text))}
    data = {"token": "schedd_x"}
    assert (await web.ask("POST", "/login", data=data, headers=first)).status == 403
    assert (await web.get("/metrics", headers=first)).status == 200, "no new one, so it stays"
    held = (first, {"cookie": "__Host-schedd=schedd_x"}, {"cookie": f"__Host-schedd={text}"})
    for cookie in held:
        options: Any = {"data": {"token": text}, "headers": cookie, "allow_redirects": False}
        entered = await web.ask("POST", "/login", **options)
        assert entered.status == 303
        second = {"cookie": cookie_of(entered)}
        assert (await web.get("/metrics", headers=second)).status == 200
    assert (await web.get("/metrics", headers=first)).json["reason"] == "TOKEN_REVOKED"
    for good in (elsewhere, bearer(text)):
        assert (await web.get("/metrics", headers=good)).status == 200


@pytest.mark.parametrize("done", [True, False])
async def test_a_former_login_that_cannot_be_revoked_in_time_does_not_block_the_new_one(
    web: Web, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, done: bool
) -> None:
    """Whether or not it was ended: that its time is over says nothing of that."""
    replaced = login_face.replace_login

    async def slowly(*given: Any) -> None:
        if done:
            await replaced(*given)
        await asyncio.Event().wait()

    _, text = await token(web, auth.ROLE_VIEWER)
    first = {"cookie": cookie_of(await log_in(web, text))}
    monkeypatch.setattr(login_face, "replace_login", slowly)
    for name in ("READ_WITHIN", "STATEMENTS"):
        monkeypatch.setattr(deadlines, name, 3.0)
    options: Any = {"data": {"token": text}, "headers": first, "allow_redirects": False}
    entered = await web.ask("POST", "/login", **options)
    assert entered.status == 303
    second = {"cookie": cookie_of(entered)}
    assert (await web.get("/metrics", headers=second)).status == 200
    assert (await web.get("/metrics", headers=first)).status == (401 if done else 200)
    [line] = [one for one in caplog.messages if "login not revoked" in one]
    assert "failures=1" in line


async def test_a_certificate_without_an_identity_differs_from_none_and_is_logged_with_its_name(
    web: Web, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, text = await token(web, auth.ROLE_VIEWER)
    login = {"cookie": cookie_of(await log_in(web, text))}
    async with over_tls(web, tmp_path, "SCHEDD://user/bob/viewer/*") as (secure, mine):
        with caplog.at_level(logging.INFO):
            answer = await secure.get("/api/v1/jobs", ssl=mine)
        assert (answer.status, answer.json["reason"]) == (401, "CERTIFICATE_WITHOUT_SUBJECT")
        assert "'SCHEDD://user/bob/viewer/*'" in answer.json["detail"]
        [line] = [each for each in caplog.messages if "has no name that schedd knows" in each]
        assert line.startswith(
            "request rejected: method=GET path='/api/v1/jobs' peer=('127.0.0.1', "
        )
        assert " rejected=1 error=" in line
        assert "'SCHEDD://user/bob/viewer/*'" in line
        assert (await secure.get("/workers", headers=login, ssl=mine)).status == 200
        await web.ask("POST", "/logout", headers=login, allow_redirects=False)
        over = await secure.get("/workers", headers=login, ssl=mine)
        assert over.json["reason"] == "TOKEN_REVOKED"


async def test_a_login_from_the_page_of_another_site_is_rejected(web: Web) -> None:
    _, text = await token(web, auth.ROLE_ADMIN)
    cookie = cookie_of(await log_in(web, text))
    sent = {"cookie": cookie, "origin": "https://evil.example"}
    assert (await web.post("/api/v1/cluster:pause", {}, headers=sent)).status == 403
    assert (await web.ask("POST", "/login", data={"token": text}, headers=sent)).status == 403


async def test_a_login_over_https_is_rejected_from_a_plaintext_page(
    web: Web, tmp_path: Path
) -> None:
    _, text = await token(web, auth.ROLE_VIEWER)
    async with over_tls(web, tmp_path) as (secure, mine):
        for scheme, status in (("http", 403), ("https", 303)):
            options: Any = {"data": {"token": text}, "allow_redirects": False, "ssl": mine}
            headers = {"origin": secure.url.replace("https", scheme)}
            answer = await secure.ask("POST", "/login", headers=headers, **options)
            assert answer.status == status, scheme


async def test_the_login_of_an_open_cluster_says_that_authentication_is_off(dsn: str) -> None:
    async with served(dsn) as web:
        assert "without authentication" in (await web.get("/login")).text
        assert (await web.get("/")).status == 200


async def create_and_trigger(web: Web) -> str:
    """A job, `etl`, and the id of its run."""
    job = job_pb2.Job(name="etl", cron=["0 9 * * *"])
    job.shell.argv.append("true")
    create = job_service_pb2.CreateJobRequest(job=job)
    trigger = job_service_pb2.TriggerJobRequest(job="etl")
    everybody = Caller(ANONYMOUS, "test")
    await UNARY["schedd.v1.JobService.CreateJob"](web.services, everybody, create)
    run: Any = await UNARY["schedd.v1.JobService.TriggerJob"](web.services, everybody, trigger)
    return str(run.run_id)


async def test_every_page_opens_for_a_viewer_of_all_namespaces(web: Web) -> None:
    """Only lines of the audit are for who is admin: the pages go without."""
    _, text = await token(web, auth.ROLE_VIEWER)
    run = await create_and_trigger(web)
    for page in PAGES:
        path = page.path.format(job="etl", run=run)
        answer = await web.get(path, headers=PAGE | bearer(text))
        assert answer.status == 200, f"{path}: {answer.text[:300]}"


@pytest.mark.parametrize(
    ("role", "offered", "withheld"),
    [
        (auth.ROLE_VIEWER, set(), {"trigger", "pause", "delete", "cancel"}),
        (auth.ROLE_OPERATOR, {"trigger", "pause", "cancel"}, {"delete"}),
        (auth.ROLE_ADMIN, {"trigger", "pause", "delete", "cancel"}, set()),
    ],
)
async def test_a_page_offers_what_its_caller_may_do_and_nothing_else(
    web: Web, role: int, offered: set[str], withheld: set[str]
) -> None:
    _, text = await token(web, role)
    run = await create_and_trigger(web)
    asked = [await web.get(path, headers=bearer(text)) for path in ("/jobs/etl", f"/runs/{run}")]
    shown = "".join(answer.text for answer in asked)
    assert {name for name in offered if f'/{name}"' not in shown} == set()
    assert {name for name in withheld if f'/{name}"' in shown} == set()
    on_jobs = (await web.get("/jobs", headers=bearer(text))).text
    assert ("New job" in on_jobs) == (role == auth.ROLE_ADMIN)
    assert ("Trigger" in on_jobs) == ("trigger" in offered)
    on_cluster = (await web.get("/cluster", headers=bearer(text))).text
    assert ("/cluster/pause" in on_cluster) == (role == auth.ROLE_ADMIN)


async def test_a_viewer_is_offered_no_form_that_changes_anything(web: Web) -> None:
    _, text = await token(web, auth.ROLE_VIEWER)
    web.cluster.members.append(member("m2"))
    run = await create_and_trigger(web)
    for page in PAGES:
        if page.path != "/new-job":  # whose form has no button then
            shown = await web.get(page.path.format(job="etl", run=run), headers=bearer(text))
            assert 'method="post"' not in shown.text, page.path
    assert "Create job" not in (await web.get("/new-job", headers=bearer(text))).text


async def test_an_operator_of_one_namespace_sees_the_permitted_actions_in_it(web: Web) -> None:
    """The caller views all namespaces and operates in one."""
    who = CallerIdentity(IdentityKind.USER, "ann", {"*": Role.VIEWER, "billing": Role.OPERATOR})
    here = PageRequest(web.services, Caller(who, "test"), query={"namespace": "billing"})
    elsewhere = PageRequest(web.services, Caller(who, "test"))
    trigger, drain = "JobService.TriggerJob", "ClusterService.DrainWorker"
    assert (here.may(trigger), elsewhere.may(trigger), here.may(drain)) == (True, False, False)
    assert elsewhere.may("RunService.CancelRun", "billing")
