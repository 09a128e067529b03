"""The checks of every request before anything else reads it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from schedd.web.guard import MOST_AT_A_TIME, AtATime, SameOrigin


class Door:
    """An app whose answers begin when they are let, and end when they are let."""

    def __init__(self) -> None:
        self.begin, self.end = asyncio.Event(), asyncio.Event()
        self.waiting = 0

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        self.waiting += 1
        await self.begin.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await self.end.wait()
        await send({"type": "http.response.body", "body": b""})


async def answer_of(app: Any, host: str, path: str = "/api/v1/jobs") -> list[Message]:
    """Return the answer."""
    said: list[Message] = []

    async def send(message: Message) -> None:
        said.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": "GET", "path": path, "client": (host, 1), "headers": []}
    await app(scope, receive, send)
    return said


async def waiting(door: Door, number: int) -> None:
    async with asyncio.timeout(5):
        while door.waiting < number:  # noqa: ASYNC110 - each turn of the loop brings one in
            await asyncio.sleep(0)


async def test_no_host_has_more_requests_under_way_than_it_may() -> None:
    door = Door()
    app = AtATime(door)
    async with asyncio.TaskGroup() as group:
        for number in range(MOST_AT_A_TIME):
            group.create_task(answer_of(app, "a"), name=f"request {number}")
        await waiting(door, MOST_AT_A_TIME)
        start, body = await answer_of(app, "a")
        assert start["status"] == 429
        assert (b"retry-after", b"1") in start["headers"]
        assert json.loads(body["body"])["reason"] == "TOO_MANY_REQUESTS"
        another = group.create_task(answer_of(app, "b"), name="of another host")
        health = group.create_task(answer_of(app, "a", "/healthz"), name="health")
        stream = group.create_task(answer_of(app, "a", "/api/v1/events"), name="events")
        await waiting(door, MOST_AT_A_TIME + 3)
        door.begin.set()
        door.end.set()
    assert {one.result()[0]["status"] for one in (another, health, stream)} == {200}


async def test_answers_that_have_begun_and_requests_that_failed_count_no_more() -> None:
    door = Door()
    app = AtATime(door)
    door.begin.set()
    async with asyncio.TaskGroup() as group:
        for number in range(2 * MOST_AT_A_TIME):
            group.create_task(answer_of(app, "a"), name=f"stream {number}")
        await waiting(door, 2 * MOST_AT_A_TIME)
        door.begin.clear()
        left = [
            asyncio.create_task(answer_of(app, "a"), name=f"left {number}")
            for number in range(MOST_AT_A_TIME)
        ]
        await waiting(door, 3 * MOST_AT_A_TIME)
        for each in left:
            each.cancel()
        await asyncio.wait(left)
        door.begin.set()
        door.end.set()
        assert (await answer_of(app, "a"))[0]["status"] == 200


@pytest.mark.parametrize(
    ("scheme", "origin", "status"),
    [
        ("https", "https://m1.example:7421", 200),
        ("https", "http://m1.example:7421", 403),
        ("https", "m1.example:7421", 403),
        ("https", "null", 403),
        ("https", "https://m1.example", 403),
        ("http", "http://m1.example:7421", 200),
        ("http", "https://m1.example:7421", 200),  # a proxy before us ended TLS
        ("http", "http://evil.example", 403),
    ],
)
async def test_a_page_of_another_scheme_host_or_port_is_another_site_s(
    scheme: str, origin: str, status: int
) -> None:
    door = Door()
    door.begin.set()
    door.end.set()
    said: list[Message] = []

    async def send(message: Message) -> None:
        said.append(message)

    headers = [(b"host", b"m1.example:7421"), (b"origin", origin.encode())]
    about = {"type": "http", "method": "POST", "path": "/login", "scheme": scheme}
    await SameOrigin(door)(about | {"headers": headers}, asyncio.Event().wait, send)
    assert said[0]["status"] == status
