"""Each value of the SDK has the fields that it names."""

from __future__ import annotations

from dataclasses import fields

import pytest

import schedclient
from schedclient.values.base import Value

EXPORTED = [getattr(schedclient, name) for name in schedclient.__all__]
VALUES = [one for one in EXPORTED if isinstance(one, type) and issubclass(one, Value)]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value.__name__)
def test_a_value_has_the_fields_that_it_names(value: type[Value]) -> None:
    assert {field.name for field in fields(value)} >= set(vars(value).get("__annotations__", ()))
