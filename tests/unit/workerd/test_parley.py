"""What a worker believes of what a handler's process says."""

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
    kind, told, more = handler_protocol.sizes(data[: handler_protocol.HEAD.size])
    rest = data[handler_protocol.HEAD.size :]
    assert len(rest) == told + more
    return handler_protocol.frame(kind, rest[:told], rest[told:])


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
def test_an_end_comes_across_as_it_was(outcome):
    assert handler_protocol.end_in(read(handler_protocol.end_frame(outcome).encoded())) == outcome


def test_progress_comes_across_as_it_was():
    progress = Progress(30.0, 120.0, "pages")
    assert (
        handler_protocol.progress_in(read(handler_protocol.progress_frame(progress).encoded()))
        == progress
    )


def test_a_frame_without_an_end_is_refused_before_it_is_read():
    with pytest.raises(MalformedFrame, match="frame of"):
        handler_protocol.sizes(handler_protocol.HEAD.pack(b"e", 2, handler_protocol.MOST + 1))


@pytest.mark.parametrize("told", [b"{", b"[]", b"3", b"\xff", b"[" * 200_000])
def test_what_is_no_object_is_refused(told):
    with pytest.raises(MalformedFrame):
        handler_protocol.frame(b"e", told, b"")


@pytest.mark.parametrize(
    "told",
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
def test_an_end_that_cant_be_meant_is_refused(told):
    with pytest.raises(MalformedFrame):
        handler_protocol.end_in(Frame(handler_protocol.END, told))


@pytest.mark.parametrize("data", [b"x" * (MAX_RESULT + 1), b"\xff"])
def test_a_result_that_cant_be_kept_is_refused(data):
    with pytest.raises(MalformedFrame):
        handler_protocol.end_in(Frame(handler_protocol.END, {**END, "json": True}, data))


def test_an_error_is_cut():
    said = Frame(handler_protocol.END, {**END, "verdict": "FAILED", "error": "x" * 10 * MAX_ERROR})
    assert len(handler_protocol.end_in(said).error) == MAX_ERROR


@pytest.mark.parametrize(
    "told",
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
def test_a_progress_that_is_none_is_refused(told):
    with pytest.raises(MalformedFrame):
        handler_protocol.progress_in(Frame(handler_protocol.PROGRESS, told))
