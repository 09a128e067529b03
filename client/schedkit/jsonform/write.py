"""From a message to One JSON: a walk over its descriptor, so that a new field needs no code."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from schedkit.jsonform import standard
from schedkit.jsonform.scalars import duration_text, enum_word, instant_text, rate_text

BASE64: Final = "$base64"
"""The one key of an object that stands for raw bytes."""

TOKENS: Final = frozenset({"fencing_token"})
"""64-bit numbers that JavaScript would round: decimal strings."""


def to_json(message: Message, *, snake: bool = False) -> dict[str, Any]:
    """The message as a dict that `json.dumps` takes, every key there; `snake` for YAML."""
    return {
        (field.name if snake else field.json_name): _field(message, field, snake)
        for field in fields_of(message)
    }


def fields_of(message: Message) -> Sequence[FieldDescriptor]:
    """The fields of a message, in the order of the proto file."""
    return cast("Sequence[FieldDescriptor]", message.DESCRIPTOR.fields)  # upb's class is its twin


def payload_value(payload: Message) -> Any:
    """The JSON value of a `Payload`, `{"$base64": …}` for raw bytes, None when it holds none."""
    kind = payload.WhichOneof("kind")
    if kind is None:
        return None
    content = getattr(payload, kind)
    if kind == "json":
        try:
            return standard.loads(content)
        except ValueError:
            content = content.encode()
    return {BASE64: base64.b64encode(content).decode()}


def is_map(field: FieldDescriptor) -> bool:
    """Whether the wire has this field as map<…>."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def map_value(field: FieldDescriptor) -> FieldDescriptor:
    """What the values of a map<…> are."""
    assert field.message_type is not None, "a map is a message of key and value"
    return field.message_type.fields_by_name["value"]


def _field(message: Message, field: FieldDescriptor, snake: bool) -> Any:
    value = getattr(message, field.name)
    if is_map(field):
        inner = map_value(field)
        return {str(key): _single(inner, value[key], snake) for key in sorted(value)}
    if field.is_repeated:
        if field.message_type is not None and field.message_type.full_name in MATCHES:
            return _matches(value)
        return [_single(field, one, snake) for one in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    if field.name in TOKENS:
        return str(value) if value else None
    if field.type == FieldDescriptor.TYPE_STRING and not field.has_presence:
        return value or None
    return _single(field, value, snake)


def _single(field: FieldDescriptor, value: Any, snake: bool) -> Any:
    if field.message_type is not None:
        special = WRITERS.get(field.message_type.full_name)
        return special(value) if special else to_json(value, snake=snake)
    if field.enum_type is not None:
        return enum_word(field.enum_type, value)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return base64.b64encode(value).decode()
    return value


MATCHES: Final = frozenset({"schedd.v1.LabelMatch"})
"""Lists of these stand as an object: `{"disk": "ssd", "region": ["eu", "us"]}`."""


def _matches(matches: Iterable[Any]) -> dict[str, Any]:
    return {one.key: one.any_of[0] if len(one.any_of) == 1 else list(one.any_of) for one in matches}


WRITERS: Final[dict[str, Callable[[Any], Any]]] = {
    "google.protobuf.Timestamp": instant_text,
    "google.protobuf.Duration": duration_text,
    "google.protobuf.FieldMask": lambda mask: list(mask.paths),
    "schedd.v1.Payload": payload_value,
    "schedd.v1.Rate": rate_text,
}
"""Messages that stand as a value of their own."""
