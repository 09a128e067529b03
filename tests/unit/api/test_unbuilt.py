"""Nothing is accepted and ignored: each field and call is built, or refused by name."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from schedd.api import calls, unbuilt
from schedd.api.errors import Unbuilt
from schedproto.v1 import job_pb2, job_service_pb2, peer_service_pb2, worker_service_pb2

ROOT = Path(__file__).parents[3]
SOURCES = "\n".join(
    path.read_text()
    for folder in ("schedd", "workerd")
    for path in (ROOT / folder).rglob("*.py")
    if not path.name.endswith("_pb2.py") and path.name != "unbuilt.py"
)


def reachable(message: Descriptor, seen: set[str]) -> Iterator[Descriptor]:
    if message.full_name in seen or not message.full_name.startswith("schedd.v1."):
        return
    seen.add(message.full_name)
    yield message
    for field in message.fields:
        if field.message_type is not None and not is_unbuilt(field):
            yield from reachable(field.message_type, seen)


def requests() -> list[Descriptor]:
    seen: set[str] = set()
    return [m for method in calls.methods() for m in reachable(method.input_type, seen)]


def fields() -> list[FieldDescriptor]:
    unbuilt_calls = {
        method.input_type.full_name
        for method in calls.methods()
        if method.full_name in unbuilt.CALLS
    }
    return [
        field
        for message in requests()
        if message.full_name not in unbuilt_calls
        for field in message.fields
    ]


def is_unbuilt(field: FieldDescriptor) -> bool:
    return field.name in unbuilt.FIELDS.get(field.containing_type.full_name, ())


def set_field(field: FieldDescriptor) -> object:
    message = GetMessageClass(field.containing_type)()
    value = getattr(message, field.name)
    if field.is_repeated:
        if field.message_type is not None:
            value.add()
        else:
            value.append("x")
    elif field.message_type is not None:
        value.SetInParent()
    else:
        setattr(message, field.name, "x" if field.type == FieldDescriptor.TYPE_STRING else 1)
    return message


@pytest.mark.parametrize("method", calls.methods(), ids=lambda method: method.full_name)
def test_every_call_is_built_or_refused_by_name(method):
    built = method.full_name in {**calls.UNARY, **calls.STREAMING}
    assert built != (method.full_name in unbuilt.CALLS)


def test_no_line_names_a_call_or_field_that_the_wire_lacks():
    services = [
        *calls.SERVICES,
        worker_service_pb2.DESCRIPTOR.services_by_name["WorkerService"],
        peer_service_pb2.DESCRIPTOR.services_by_name["PeerService"],
    ]
    known = {method.full_name for service in services for method in service.methods}
    assert known >= unbuilt.CALLS
    there = {(m.full_name, f.name) for m in requests() for f in m.fields}
    assert there >= {(message, name) for message, names in unbuilt.FIELDS.items() for name in names}


@pytest.mark.parametrize(
    "field", [f for f in fields() if not is_unbuilt(f)], ids=lambda field: field.full_name
)
def test_a_field_that_is_accepted_is_read_somewhere(field):
    assert re.search(rf"\b{field.name}\b", SOURCES), f"{field.full_name} is accepted and ignored"


def test_a_field_that_isnt_built_is_refused_by_name_however_deep(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(unbuilt.FIELDS, "schedd.v1.After", frozenset({"with_output"}))
    [field] = [f for f in fields() if is_unbuilt(f) and f.name == "with_output"]
    with pytest.raises(Unbuilt) as refused:
        unbuilt.refuse_unbuilt(set_field(field))
    assert field.name in refused.value.message
    assert "nothing was stored" in refused.value.remedy
    after = job_pb2.After(jobs=["a"], with_output=True)
    request = job_service_pb2.CreateJobRequest(job=job_pb2.Job(after=after))
    with pytest.raises(Unbuilt, match=r"job\.after\.with_output"):
        unbuilt.refuse_unbuilt(request)
