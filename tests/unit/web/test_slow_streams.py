"""A stream of which nothing comes for long: begun all the same, and gone with its reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf.message import Message

from schedd.api.errors import NotFoundError
from schedd.web.rest import rest
from schedproto.v1 import run_pb2

GONE = {"type": "http.disconnect"}


class Answers:
    """No event comes; `left` is set when no reader awaits one any more."""

    def __init__(self) -> None:
        self.left = False

    async def stream(self) -> AsyncIterator[Message]:
        try:
            await asyncio.Event().wait()
            yield run_pb2.LogPiece()
        finally:
            self.left = True


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_reader_that_disconnects_before_the_first_event_ends_the_stream(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(rest, "FIRST_WITHIN", 0.01)
    answers, sent = Answers(), []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    async def receive() -> Any:
        return GONE

    response = await rest._streamed(answers.stream(), asyncio.Event())
    assert response is not None
    await asyncio.wait_for(response({"method": method}, receive, send), 5)
    await asyncio.sleep(0)
    assert sent[0] == "http.response.start"
    assert answers.left


async def test_an_immediate_error_is_raised_before_the_stream_begins() -> None:
    async def none() -> AsyncIterator[Message]:
        raise NotFoundError("no run", reason="NO_SUCH_RUN", remedy="look")
        yield run_pb2.LogPiece()

    with pytest.raises(NotFoundError):
        await rest._streamed(none(), asyncio.Event())
