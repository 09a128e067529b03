"""Requests through a proxy: the client they come from, without more rights for any."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from schedd.web.guard import MOST_AT_A_TIME, AtATime, Forwarded, Reach
from schedkit.net.proxies import Proxies

LOCAL = Proxies.from_texts(["127.0.0.1"])


class GatedApp:
    """An app that answers when it is let, and knows who asked."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.asked: list[str] = []

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        self.asked.append(scope["client"][0])
        await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def answer_of(
    app: Any, forwarded: str = "", peer: str = "127.0.0.1", path: str = "/api/v1/jobs"
) -> list[Message]:
    """Return the answer."""
    said: list[Message] = []

    async def send(message: Message) -> None:
        said.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    headers = [(b"x-forwarded-for", forwarded.encode())] if forwarded else []
    scope = {"type": "http", "method": "GET", "path": path, "client": (peer, 4711)}
    await app({**scope, "headers": headers}, receive, send)
    return said


async def test_clients_of_a_trusted_proxy_have_places_of_their_own() -> None:
    held = GatedApp()
    app = Forwarded(AtATime(held), Reach(LOCAL))
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        for _ in range(MOST_AT_A_TIME):
            group.create_task(answer_of(app, "203.0.113.9"))
        while len(held.asked) < MOST_AT_A_TIME:  # noqa: ASYNC110 - each turn brings one in
            await asyncio.sleep(0)
        start, body = await answer_of(app, "203.0.113.9")
        assert start["status"] == 429
        assert json.loads(body["body"])["reason"] == "TOO_MANY_REQUESTS"
        held.go.set()
        assert (await answer_of(app, "198.51.100.7"))[0]["status"] == 200
    assert set(held.asked) == {"203.0.113.9", "198.51.100.7"}


async def test_no_other_proxy_is_trusted() -> None:
    held = GatedApp()
    held.go.set()
    for reach in (Reach(), Reach(Proxies.from_texts(["10.0.0.2"]))):
        await answer_of(Forwarded(held, reach), "203.0.113.9", peer="198.51.100.7")
    assert held.asked == ["198.51.100.7"] * 2


@pytest.mark.parametrize("client", ["203.0.113.9", "10.0.0.7", "unknown", "127.0.0.1, 10.0.0.7"])
async def test_a_remote_client_behind_a_local_proxy_isnt_local(client: str) -> None:
    held = GatedApp()
    held.go.set()
    app = Forwarded(held, Reach(LOCAL, loopback_alone=True))
    start, body = await answer_of(app, client)
    assert start["status"] == 403
    assert json.loads(body["body"])["reason"] == "NOT_LOOPBACK"
    assert held.asked == []
    assert (await answer_of(app, client, path="/readyz"))[0]["status"] == 200


@pytest.mark.parametrize("client", ["", "127.0.0.1", "::1"])
async def test_a_local_client_is_served_through_the_proxy_too(client: str) -> None:
    held = GatedApp()
    held.go.set()
    app = Forwarded(held, Reach(LOCAL, loopback_alone=True))
    assert (await answer_of(app, client))[0]["status"] == 200


async def test_all_clients_are_served_with_tls_or_insecure() -> None:
    held = GatedApp()
    held.go.set()
    assert (await answer_of(Forwarded(held, Reach(LOCAL)), "203.0.113.9"))[0]["status"] == 200
