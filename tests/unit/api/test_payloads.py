"""Payloads are checked on arrival: every stored payload can be shown later."""

import pytest

from schedd.api.definitions.validation import MAX_PAYLOAD, payload_violations
from schedproto.v1 import common_pb2


@pytest.mark.parametrize(
    "text",
    [
        r'"\ud83d\ude00"',
        r'"\\ud800"',
        "{}",
        "1",
        '"x"',
        "[1, 2.5, null]",
        '{"deep": ' + "[" * 99 + "]" * 99 + "}",
        "1e308",
    ],
)
def test_json_is_kept_unchanged(text: str):
    assert list(payload_violations(common_pb2.Payload(json=text))) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "isn't valid JSON"),
        ("[" * 100_000 + "]" * 100_000, "at most 100 levels"),
        ("[" * 101 + "]" * 101, "at most 100 levels"),
        ("NaN", "isn't valid JSON"),
        ("[-Infinity]", "isn't valid JSON"),
        ('{"a": 1e400}', "isn't valid JSON"),
        (r'["\ud800"]', "an unpaired surrogate"),
        (r'{"\uDFFF": 1}', "an unpaired surrogate"),
        ('"' + "x" * MAX_PAYLOAD + '"', "bytes; at most"),
    ],
    ids=[
        "broken",
        "deep",
        "a level too deep",
        "nan",
        "infinity",
        "too great",
        "half a character",
        "half a key",
        "large",
    ],
)
def test_unreadable_json_is_refused(text: str, problem: str):
    [violation] = payload_violations(common_pb2.Payload(json=text))
    assert problem in violation.problem


def test_bytes_are_accepted_up_to_the_limit():
    assert list(payload_violations(common_pb2.Payload(raw=b"\xff" * MAX_PAYLOAD))) == []
    assert list(payload_violations(common_pb2.Payload(raw=b"\xff" * (MAX_PAYLOAD + 1))))
