"""The results of the parents are the payload of a chain's run."""

from __future__ import annotations

import json

from schedd.api.definitions.validation import MAX_PAYLOAD
from schedd.core.ids import Id, RunId
from schedd.core.jobs.chains import ChainParents, ParentEnded
from schedd.core.runs.lifecycle import State
from schedd.sources.chains import LEFT_OUT, handed_on
from schedproto.v1 import common_pb2, run_pb2

Payload = common_pb2.Payload


def ended(*names: str) -> list[ParentEnded]:
    return [
        ParentEnded(name, RunId(Id.from_int(n)), State.SUCCEEDED) for n, name in enumerate(names)
    ]


def given(*payloads: common_pb2.Payload | None) -> dict[RunId, bytes]:
    return {RunId(Id.from_int(n)): one.SerializeToString() for n, one in enumerate(payloads) if one}


def payload(after: ChainParents, *payloads: common_pb2.Payload | None) -> common_pb2.Payload:
    return Payload.FromString(handed_on(after, ended(*after.jobs), given(*payloads)))


def test_the_result_of_one_parent_is_passed_unchanged_or_null() -> None:
    alone = ChainParents(("a",))
    assert payload(alone, Payload(json='{"rows": 1.50}')).json == '{"rows": 1.50}'
    assert payload(alone, Payload(raw=b"\xff\0")).raw == b"\xff\0"
    assert payload(alone, None).json == "null"


def test_results_of_several_parents_are_a_map_by_their_names() -> None:
    passed = payload(
        ChainParents(("a", "b", "c")), Payload(json="[1.50]"), Payload(raw=b"\xff"), None
    )
    assert passed.json == '{"a": [1.50], "b": {"base64": "/w=="}, "c": null}'


def test_results_over_the_size_limit_are_null_and_named() -> None:
    names = tuple("abcde")
    large = Payload(json=json.dumps("x" * 64_000))
    text = payload(ChainParents(names), *[large] * 5).json
    assert len(text.encode()) <= MAX_PAYLOAD
    document = json.loads(text)
    assert document[LEFT_OUT] == ["d", "e"]
    assert document["d"] is None
    assert len(document["c"]) == 64_000


def test_results_in_the_result_store_are_null_and_named() -> None:
    kept = run_pb2.StoredResult(object={"size": 70_000, "json": True}).SerializeToString()
    results = given(None, Payload(json="2")) | {RunId(Id.from_int(0)): kept}
    for names, left in ((("a",), '{"a": null, "_left_out": ["a"]}'), (("a", "b"), None)):
        document = Payload.FromString(handed_on(ChainParents(names), ended(*names), results)).json
        assert left in (None, document)
        assert json.loads(document)[LEFT_OUT] == ["a"]


def test_invalid_json_is_passed_as_text() -> None:
    deep = "[" * 30_000 + "]" * 30_000
    passed = payload(ChainParents(("a", "b")), Payload(json=deep), Payload(json="NaN"))
    assert json.loads(passed.json) == {"a": deep, "b": "NaN"}


def test_an_ended_run_of_a_former_parent_is_left_out() -> None:
    passed = handed_on(
        ChainParents(("b",)), ended("a", "b"), given(Payload(json="1"), Payload(json="2"))
    )
    assert Payload.FromString(passed).json == "2"
