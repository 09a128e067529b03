"""Write messages as One JSON by their descriptors, so that a new field needs no code.

descriptor ──once──▶ a writer for each field        message ──▶ the writers ──▶ dict
"""

import base64
from collections.abc import Callable, Collection
from functools import cache
from operator import attrgetter
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from schedkit.protojson.scalars import duration_text, enum_word, instant_text, rate_text
from schedkit.text import json_text

BASE64: Final = "$base64"
"""The only key of an object that represents raw bytes."""

TOKENS: Final = frozenset({"fencing_token"})
"""64-bit numbers that JavaScript would round; written as decimal strings."""

UNKNOWN: Final = dict.fromkeys(
    (f"schedd.v1.Worker.{name}" for name in ("free", "running", "unstored_results")),
    "heartbeats_missing",
)
"""Numbers that are unknown if they are 0 and the flag of this name is set."""


def to_json(message: Message, *, snake: bool = False) -> dict[str, Any]:
    """Return the message as a dict for `json.dumps`, with every key; `snake` for YAML."""
    return {key: write(message) for key, write in _writers(message.DESCRIPTOR, snake)}


def fields_to_json(message: Message, names: Collection[str]) -> dict[str, Any]:
    """Return only these fields, by their JSON names, as `to_json` does. Others aren't computed."""
    writers = _writers(message.DESCRIPTOR, False)
    return {key: write(message) for key, write in writers if key in names}


def payload_value(payload: Message) -> Any:
    """Return the JSON value of a `Payload`: `{"$base64": …}` for raw bytes, None if it is empty."""
    kind = payload.WhichOneof("kind")
    if kind is None:
        return None
    content = getattr(payload, kind)
    if kind == "json":
        try:
            return json_text.loads(content, levels=json_text.READ_NESTED, any_width=True)
        except ValueError:
            content = content.encode()
    return {BASE64: base64.b64encode(content).decode()}


def is_map(field: FieldDescriptor) -> bool:
    """Return whether this field is a map<…> on the wire."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def map_value(field: FieldDescriptor) -> FieldDescriptor:
    assert field.message_type is not None, "a map is a message of key and value"
    return field.message_type.fields_by_name["value"]


@cache
def _writers(message: Descriptor, snake: bool) -> tuple[tuple[str, Callable[[Message], Any]], ...]:
    """Return the key of each field, and its writer."""
    return tuple(
        (field.name if snake else field.json_name, _field(field, snake)) for field in message.fields
    )


def _field(field: FieldDescriptor, snake: bool) -> Callable[[Message], Any]:
    value = attrgetter(field.name)
    if is_map(field):
        inner = _single(map_value(field), snake)
        return lambda message: {
            str(key): inner(value(message)[key]) for key in sorted(value(message))
        }
    single = _single(field, snake)
    if field.is_repeated:
        if field.message_type is not None and field.message_type.full_name in MATCHES:
            return lambda message: {
                one.key: one.any_of[0] if len(one.any_of) == 1 else list(one.any_of)
                for one in value(message)
            }
        return lambda message: [single(one) for one in value(message)]
    if field.name in TOKENS:
        return lambda message: str(value(message)) if value(message) else None
    if field.type == FieldDescriptor.TYPE_STRING and not field.has_presence:
        return lambda message: value(message) or None
    if (flag := UNKNOWN.get(field.full_name)) is not None:
        return lambda message: value(message) or (None if getattr(message, flag) else 0)
    if not field.has_presence:
        return lambda message: single(value(message))
    name = field.name
    return lambda message: single(value(message)) if message.HasField(name) else None


def _single(field: FieldDescriptor, snake: bool) -> Callable[[Any], Any]:
    if field.message_type is not None:
        special = WRITERS.get(field.message_type.full_name)
        return special or (lambda value: to_json(value, snake=snake))
    if (enum := field.enum_type) is not None:
        return lambda value: enum_word(enum, value)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return lambda value: base64.b64encode(value).decode()
    return lambda value: value


MATCHES: Final = frozenset({"schedd.v1.LabelMatch"})
"""Lists of these are written as an object: `{"disk": "ssd", "region": ["eu", "us"]}`."""


WRITERS: Final[dict[str, Callable[[Any], Any]]] = {
    "google.protobuf.Timestamp": instant_text,
    "google.protobuf.Duration": duration_text,
    "google.protobuf.FieldMask": lambda mask: list(mask.paths),
    "schedd.v1.Payload": payload_value,
    "schedd.v1.Rate": rate_text,
}
"""Messages that are written as a single value."""
