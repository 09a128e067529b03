"""The body of a request: what isn't a JSON object, and what is too large."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from starlette.requests import Request

from faults.hostile import garbage
from schedd.api.definitions import validation
from schedd.api.errors import CallError
from schedd.web.rest import bodies
from schedd.web.rest.bodies import parsed
from schedd.web.rest.problems import RequestProblem
from schedkit.protojson import FormErrors, from_json
from schedproto.v1 import job_pb2
from support.definitions import requested

BODIES = dict(garbage.bodies())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "isn't valid JSON"),
        (b"\xff", "isn't valid JSON"),
        (b'{"a": NaN}', "NaN isn't valid JSON"),
        (b'{"a": 1, "a": 2}', "'a' is given twice"),
        (b"[1]", "must be a JSON object"),
        (b"[" * 100_000, "nested too deeply: at most 100 levels"),
        (b'{"payload": 1e400}', "is too large for a 64-bit float"),
        (b'{"a": ' + b"9" * 5000 + b"}", "isn't valid JSON"),
    ],
)
def test_a_malformed_body_is_rejected_in_words(content: bytes, said: str) -> None:
    with pytest.raises(RequestProblem, match=said) as refused:
        parsed(content)
    assert refused.value.body["status"] == 400


@pytest.mark.parametrize("name", [*BODIES])
def test_a_body_that_isnt_a_request_is_rejected_quickly(name: str) -> None:
    content = BODIES[name]
    began = time.process_time()
    with pytest.raises((RequestProblem, FormErrors, CallError, UnicodeError)) as refused:
        validation.check(requested(from_json(parsed(content), job_pb2.Job)), datetime.now(UTC))
    assert time.process_time() - began < 3
    assert len(str(refused.value)) < 10_000


class Sender:
    """Sends pieces of a MiB, so many of them, and then nothing more; `sent`: the bytes."""

    def __init__(self, pieces: int) -> None:
        self.sent, self._pieces = 0, pieces

    async def receive(self) -> dict[str, Any]:
        if self.sent == self._pieces << 20:
            await asyncio.Event().wait()
        self.sent += 1 << 20
        return {"type": "http.request", "body": bytes(1 << 20), "more_body": True}

    async def refused(self) -> Any:
        """Return the status of the answer it receives."""
        request = Request({"type": "http", "headers": []}, self.receive)
        with pytest.raises(RequestProblem) as refusal:
            await bodies.content_of(request)
        return refusal.value.body["status"]


async def test_a_bounded_rest_of_an_oversized_body_is_read() -> None:
    sender = Sender(1 << 10)
    assert await sender.refused() == 413
    most = bodies.MOST_BYTES + bodies.MOST_DROPPED
    assert most < sender.sent <= most + (2 << 20)


async def test_a_rest_that_doesnt_arrive_isnt_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "DROPPED_WITHIN", 0.05)
    async with asyncio.timeout(5):
        assert await Sender(5).refused() == 413
