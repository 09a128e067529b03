"""Large JSON from jobs and servers doesn't block the loop."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer as TestServer

from schedkit.egress.policy import Egress
from schedkit.protojson import payload_value
from schedkit.text.json_text import TooDeep
from schedproto.v1 import job_pb2
from support.attempts import attempt_start
from support.calling import called
from support.fake_member import FakeMember
from workerd.core.outcome import AttemptVerdict, OutcomeReason
from workerd.executors import http
from workerd.executors.base import Stop
from workerd.executors.handlers import large_json
from workerd.executors.handlers.invocation import returned
from workerd.executors.handlers.large_json import LARGE, TooLong, is_json, light, written
from workerd.messages import payload as payload_of

MANY = 100_000


@pytest.mark.slow
@pytest.mark.parametrize("loop", [True, False])
async def test_a_large_result_is_written_while_the_loop_runs(loop: bool) -> None:
    returned, turns = asyncio.Event(), 0

    def gives(_payload: Any, _ctx: Any) -> object:
        main.call_soon_threadsafe(returned.set)
        return [{"n": 7, "of": "it"}] * MANY

    async def gives_on_the_loop(payload: Any, ctx: Any) -> object:
        return gives(payload, ctx)

    async def tick() -> None:
        nonlocal turns
        await returned.wait()
        while True:
            turns += 1
            await asyncio.sleep(0.001)

    main = asyncio.get_running_loop()
    ticking = asyncio.create_task(tick())
    outcome = await called(gives_on_the_loop if loop else gives, loop=loop)
    ticking.cancel()
    assert outcome.result is not None
    assert len(outcome.result.data) == MANY * 18 + 1
    assert turns > 10, "written in one go it has one turn or two"


@dataclass
class Where:
    """A value built from a payload, in a thread."""

    text: str

    def __post_init__(self) -> None:
        self.thread = threading.current_thread()


@pytest.mark.parametrize(("size", "here"), [(100, True), (LARGE, False)])
async def test_a_large_payload_is_read_outside_of_the_loop(size: int, here: bool) -> None:
    seen: list[Where] = []

    async def takes(payload: Where, _ctx: Any) -> None:
        seen.append(payload)
        assert (payload.thread is threading.current_thread()) is here
        assert threading.current_thread() is not threading.main_thread()

    outcome = await called(takes, payload=json.dumps({"text": "x" * size}))
    assert outcome.verdict is AttemptVerdict.SUCCEEDED, outcome.error
    assert len(seen) == 1


async def test_a_large_payload_of_invalid_json_fails_for_good() -> None:
    async def never(_payload: Any, _ctx: Any) -> None:
        raise AssertionError("it isn't called")

    outcome = await called(never, payload="[" + "0," * LARGE)
    assert (outcome.verdict, outcome.reason) == (AttemptVerdict.FAILED, OutcomeReason.DONT_RETRY)
    assert "isn't valid JSON" in outcome.error


async def test_without_a_free_thread_json_is_handled_on_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(_call: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(large_json._threads, "submit", none)
    assert await large_json.beside(threading.current_thread) is threading.current_thread()


@pytest.mark.slow
@pytest.mark.parametrize(
    "value",
    [
        pytest.param([*range(LARGE)], id="numbers"),
        pytest.param("x" * (LARGE + 1), id="text"),
        pytest.param({"a": ["\u00e9" * LARGE, None, 1.5]}, id="nested"),
        pytest.param({f"{n}": {} for n in range(LARGE)}, id="keys"),
    ],
)
def test_json_written_in_steps_equals_json_written_at_once(value: object) -> None:
    assert not light(value)
    whole = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    assert written(value, len(whole)) == whole
    with pytest.raises(TooLong):
        written(value, len(whole) - 1)


@pytest.mark.parametrize(
    ("value", "is_light"),
    [
        (None, True),
        ([1, "a", {"b": [2.5, True]}], True),
        ("x" * 1000, True),
        (OrderedDict(a=1), False),
        ([[0] * 1000] * 1000, False),
        ({"x" * LARGE: 1}, False),
        (object(), False),
    ],
)
def test_only_a_surely_small_value_is_light(value: object, is_light: bool) -> None:
    assert light(value) is is_light


def test_a_value_that_contains_itself_is_invalid_json() -> None:
    value: list[object] = []
    value.append(value)
    assert not light(value)
    with pytest.raises(ValueError, match="Circular"):
        written(value, LARGE)


@pytest.mark.parametrize(
    ("data", "is_it"),
    [
        (b'{"a": [1, 2.5e3, null, "\xc3\xa9"]}', True),
        (b"0", True),
        (b"[1,]", False),
        (b"[1] 2", False),
        (b"NaN", False),
        (b"", False),
        (b'"\xff"', False),
        (b'"\xed\xa0\x80"', False),
        ('"a"'.encode("utf-16"), False),
    ],
)
def test_json_is_validated_without_building_values(data: bytes, is_it: bool) -> None:
    assert is_json(data) is is_it


def nested(levels: int, inner: object = 0) -> object:
    value = inner
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("beside_it", [[], ["[" * 500], [*range(LARGE)], [[]] * 20_000])
def test_a_result_of_100_levels_is_written_and_one_of_101_names_the_limit(
    beside_it: list[object],
) -> None:
    fits = [nested(99), *beside_it]
    assert json.loads(written(fits, 1 << 24)) == fits
    assert is_json(json.dumps(fits).encode())
    for deep in ([nested(100), *beside_it], [*beside_it, nested(100)]):
        with pytest.raises(TooDeep, match="at most 100 levels"):
            written(deep, 1 << 24)
        with pytest.raises(TooDeep, match="at most 100 levels"):
            is_json(json.dumps(deep).encode())


@pytest.mark.parametrize("data", [b"[" * 200_000, b"[" * 200_000 + b"]" * 200_000])
def test_too_deeply_nested_text_names_the_limit(data: bytes) -> None:
    with pytest.raises(TooDeep, match="at most 100 levels"):
        is_json(data)


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        (nested(101), "nested too deeply: at most 100 levels"),
        (nested(900), "nested too deeply: at most 100 levels"),
        (nested(100_000), "nested too deeply: at most 100 levels"),
        (math.nan, "not JSON compliant"),
        ([math.inf], "not JSON compliant"),
        ({1, 2}, "set is not JSON serializable"),
        (datetime.now(UTC), "datetime is not JSON serializable"),
        (b"x" * 11, "11 bytes; at most 10 are allowed"),
        (["x" * 11], "more than 10 bytes"),
        ("\ud800", "surrogates not allowed"),
        ([b"x"], "bytes is not JSON serializable"),
    ],
)
def test_a_result_that_cant_be_kept_fails_the_run_with_the_reason(
    value: object, limit: str
) -> None:
    outcome = returned(value, 10 if "10" in limit.split() else 1 << 24)
    assert outcome.verdict is AttemptVerdict.FAILED
    assert outcome.reason is OutcomeReason.DONT_RETRY
    assert limit in outcome.error


@pytest.mark.parametrize(
    "value",
    [
        [*range(200_000)],
        2**53 + 1,
        -(10**400),
        {"$base64": "AAEC"},
        [1e300, -0.0, "\u2028", ""],
        nested(100),
        {"a": {"b": [None, True, {}]}},
        b"\xff\x00",
    ],
)
def test_a_result_reads_as_what_the_handler_returned(value: object) -> None:
    content = returned(value, 1 << 24).result
    assert content is not None
    payload = payload_of(content)
    read = payload.raw if payload.WhichOneof("kind") == "raw" else payload_value(payload)
    assert read == value


@pytest.mark.parametrize(("size", "here"), [(100, True), (LARGE, False)])
async def test_a_large_answer_is_checked_outside_of_the_loop(
    monkeypatch: pytest.MonkeyPatch, size: int, here: bool
) -> None:
    threads: list[threading.Thread] = []

    def looked(data: bytes) -> bool:
        threads.append(threading.current_thread())
        return is_json(data)

    async def answer(_request: web.BaseRequest) -> web.Response:
        return web.json_response(["x" * size])

    monkeypatch.setattr(http, "is_json", looked)
    async with TestServer(answer) as server:
        action = job_pb2.HttpAction(url=str(server.make_url("/")))
        assignment = FakeMember().assignment(incarnation="i", http=action)
        attempt = attempt_start(assignment, "w1", datetime.now(UTC), most_result=1 << 24)
        executor = http.HttpExecutor(Egress(allow=("127.0.0.1", "localhost")))
        outcome = await executor.run(attempt, Stop())
        await executor.close()
    assert outcome.result is not None
    assert (outcome.result.json, len(outcome.result.data)) == (True, size + 4)
    assert [each is threading.current_thread() for each in threads] == [here]
