"""Nothing is accepted and ignored: each call has a function, and each field is read."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from schedd.api import calls

ROOT = Path(__file__).parents[3]
SOURCES = "\n".join(
    path.read_text()
    for folder in ("schedd", "workerd")
    for path in (ROOT / folder).rglob("*.py")
    if not path.name.endswith("_pb2.py")
)


def reachable(message: Descriptor, seen: set[str]) -> Iterator[Descriptor]:
    if message.full_name in seen or not message.full_name.startswith("schedd.v1."):
        return
    seen.add(message.full_name)
    yield message
    for field in message.fields:
        if field.message_type is not None:
            yield from reachable(field.message_type, seen)


def fields() -> list[FieldDescriptor]:
    seen: set[str] = set()
    requests = [m for method in calls.methods() for m in reachable(method.input_type, seen)]
    return [field for message in requests for field in message.fields]


def test_every_call_has_a_function_and_no_function_lacks_a_call():
    methods = {method.full_name for method in calls.methods()}
    assert methods == {*calls.UNARY, *calls.STREAMING}


@pytest.mark.parametrize("field", fields(), ids=lambda field: field.full_name)
def test_a_field_that_is_accepted_is_read_somewhere(field):
    assert re.search(rf"\b{field.name}\b", SOURCES), f"{field.full_name} is accepted and ignored"
