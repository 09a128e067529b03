"""Each value of the SDK has the fields that it names."""

from __future__ import annotations

from dataclasses import fields

import pytest

import schedclient  # noqa: F401 - what it exports has made its values known
from schedclient.values import Value


@pytest.mark.parametrize("value", Value.__subclasses__(), ids=lambda value: value.__name__)
def test_a_value_has_the_fields_that_it_names(value: type[Value]) -> None:
    assert {field.name for field in fields(value)} >= set(vars(value).get("__annotations__", ()))
