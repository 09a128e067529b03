"""Conversion of payloads by the annotations of handlers."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NotRequired, TypedDict

import pydantic
import pytest

from workerd.executors.handlers.payload_types import PayloadMismatch, fit_of


@dataclass
class Line:
    sku: str
    count: int = 1


@dataclass
class Order:
    customer: str
    cents: int
    lines: list[Line] = field(default_factory=list)


class Person(TypedDict):
    name: str
    age: NotRequired[int]


class Model(pydantic.BaseModel):
    name: str
    age: int


def fitted(annotation: Any, value: object) -> object:
    def function(payload, ctx):
        return payload, ctx

    function.__annotations__["payload"] = annotation
    return fit_of(function)(value)


GIVEN = {"customer": "c", "cents": 5, "lines": [{"sku": "x", "count": 2}], "more": 1}


@pytest.mark.parametrize(
    ("annotation", "value", "wanted"),
    [
        (Order, GIVEN, Order("c", 5, [Line("x", 2)])),
        ("Order", {"customer": "c", "cents": 5}, Order("c", 5)),
        (Order | None, None, None),
        (Person, {"name": "n"}, {"name": "n"}),
        (Model, {"name": "n", "age": 3}, Model(name="n", age=3)),
        (list[Model], [{"name": "n", "age": 3}], [Model(name="n", age=3)]),
        (bytes, b"\xff", b"\xff"),
        (None, None, None),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (Mapping[str, Any], {"a": [1]}, {"a": [1]}),
        (float, 3, 3.0),
        (datetime, "2026-01-01T00:00:00Z", datetime(2026, 1, 1, tzinfo=UTC)),
        (Any, {"a": 1}, {"a": 1}),
        (object, b"x", b"x"),
    ],
)
def test_a_payload_becomes_what_the_annotation_names(annotation, value, wanted):
    assert fitted(annotation, value) == wanted


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (Order, {"customer": "c"}, "missing required field `cents`"),
        (Order, {"customer": "c", "cents": "7"}, "Expected `int`, got `str` - at `$.cents`"),
        (Order, {**GIVEN, "lines": [{"sku": 3}]}, "at `$.lines[0].sku`"),
        (Order, None, "Expected `object`, got `null`"),
        (Order, b"x", "Expected `object`, got `bytes`"),
        (Person, {"name": 1}, "at `$.name`"),
        (Model, {"name": "n"}, "age: Field required"),
        (list[Model], [{"name": "n", "age": "x"}], "0.age: "),
        (bytes, "YQ==", "Expected `bytes`, got `str`"),
        (str, b"x", "Expected `str`, got `bytes`"),
        (None, 3, "Expected `null`, got `int`"),
        (int, 3.5, "Expected `int`, got `float`"),
        (dict[str, str], {"a": 1}, "Expected `str`, got `int`"),
    ],
)
def test_a_payload_that_does_not_fit_is_reported_with_its_path(annotation, value, said):
    with pytest.raises(
        PayloadMismatch, match="the payload doesn't match its declared type: "
    ) as misfit:
        fitted(annotation, value)
    assert said in str(misfit.value)


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        ("Nowhere", "the type 'Nowhere' can't be resolved"),
        (Order | Line, "more than one dataclass"),
    ],
)
def test_an_unreadable_annotation_is_reported_at_once(annotation, said):
    with pytest.raises(TypeError, match=said):
        fitted(annotation, {})


def test_without_an_annotation_the_payload_is_plain_json():
    assert fit_of(lambda payload, ctx: None)({"a": 1}) == {"a": 1}
    assert fit_of(max)(None) is None


def test_a_wrapper_without_an_annotation_receives_the_payload_unchanged():
    def bill(payload: Order, ctx: object) -> None: ...

    @functools.wraps(bill)
    def any_of_them(*given):
        return bill(*given)

    @functools.wraps(bill)
    def the_same(payload, ctx):
        return bill(payload, ctx)

    assert fit_of(any_of_them)({"a": 1}) == {"a": 1}
    assert fit_of(the_same)({"customer": "c", "cents": 5}) == Order("c", 5)


def test_an_error_names_another_parameter_by_its_own_name():
    def run(config: Order, payload: Any, ctx: object) -> None: ...

    with pytest.raises(PayloadMismatch, match="the config doesn't match its declared type"):
        fit_of(run, 0, "config")({})
    assert fit_of(run, 1)(3) == 3
