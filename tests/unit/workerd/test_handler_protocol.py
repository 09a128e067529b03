"""Messages of a handler's process, which the worker checks."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from schedclient.handlers import Progress
from workerd.core.outcome import (
    MAX_ERROR,
    MAX_RESULT,
    AttemptOutcome,
    AttemptVerdict,
    Content,
    OutcomeReason,
)
from workerd.executors.handlers import handler_protocol
from workerd.executors.handlers.handler_protocol import Frame, MalformedFrame

END = {"verdict": "SUCCEEDED", "reason": "NONE", "error": "", "retry_after": None, "json": None}


def read(data: bytes) -> Frame:
    kind, head, more = handler_protocol.sizes(data[: handler_protocol.HEAD.size])
    rest = data[handler_protocol.HEAD.size :]
    assert len(rest) == head + more
    return handler_protocol.frame(kind, rest[:head], rest[head:])


@pytest.mark.parametrize(
    "outcome",
    [
        AttemptOutcome(AttemptVerdict.SUCCEEDED),
        AttemptOutcome(AttemptVerdict.SUCCEEDED, result=Content(b'{"a":1}', json=True)),
        AttemptOutcome(AttemptVerdict.SUCCEEDED, result=Content(b"\xff\0", json=False)),
        AttemptOutcome(AttemptVerdict.FAILED, OutcomeReason.DONT_RETRY, "DontRetry: \udcff"),
        AttemptOutcome(
            AttemptVerdict.FAILED, OutcomeReason.EXCEPTION, "e", retry_after=timedelta(seconds=1.5)
        ),
    ],
)
def test_an_end_is_transferred_unchanged(outcome):
    assert handler_protocol.end_in(read(handler_protocol.end_frame(outcome).encoded())) == outcome


def test_progress_is_transferred_unchanged():
    progress = Progress(30.0, 120.0, "pages")
    assert (
        handler_protocol.progress_in(read(handler_protocol.progress_frame(progress).encoded()))
        == progress
    )


def test_an_oversized_frame_is_rejected_before_it_is_read():
    with pytest.raises(MalformedFrame, match="1,048,579 bytes; at most"):
        handler_protocol.sizes(handler_protocol.HEAD.pack(b"e", 2, handler_protocol.MOST + 1))


@pytest.mark.parametrize("head", [b"{", b"[]", b"3", b"\xff", b"[" * 200_000])
def test_an_end_that_isnt_an_object_is_rejected(head):
    with pytest.raises(MalformedFrame):
        handler_protocol.frame(b"e", head, b"")


@pytest.mark.parametrize(
    "head",
    [
        {},
        {**END, "verdict": "WON"},
        {**END, "reason": 3},
        {**END, "verdict": ["SUCCEEDED"]},
        {**END, "retry_after": "soon"},
        {**END, "retry_after": 1e300},
        {**END, "retry_after": float("nan")},
    ],
)
def test_an_invalid_end_is_rejected(head):
    with pytest.raises(MalformedFrame):
        handler_protocol.end_in(Frame(handler_protocol.END, head))


@pytest.mark.parametrize("data", [b"x" * (MAX_RESULT + 1), b"\xff"])
def test_a_result_that_cant_be_stored_is_rejected(data):
    with pytest.raises(MalformedFrame):
        handler_protocol.end_in(Frame(handler_protocol.END, {**END, "json": True}, data))


def test_a_long_error_is_truncated():
    said = Frame(handler_protocol.END, {**END, "verdict": "FAILED", "error": "x" * 10 * MAX_ERROR})
    assert len(handler_protocol.end_in(said).error) == MAX_ERROR


@pytest.mark.parametrize(
    "head",
    [
        {"done": 1.0, "total": 0.0, "note": ""},
        {"done": 2.0, "total": 1.0, "note": ""},
        {"done": -1.0, "total": 1.0, "note": ""},
        {"done": 1.0, "total": 1.0},
        {"done": "1", "total": 1.0, "note": ""},
        json.loads('{"done": NaN, "total": 1.0, "note": ""}'),
        json.loads('{"done": 1.0, "total": Infinity, "note": ""}'),
    ],
)
def test_an_invalid_progress_is_rejected(head):
    with pytest.raises(MalformedFrame):
        handler_protocol.progress_in(Frame(handler_protocol.PROGRESS, head))
