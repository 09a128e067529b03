"""Fields and calls of the protos that this version doesn't implement: UNIMPLEMENTED, by name.

Invariant: no field is accepted and ignored. A test checks that each field and call is either used
by the code or listed here.
"""

from google.protobuf.message import Message

from schedd.api.errors import Unbuilt

FIELDS: dict[str, frozenset[str]] = {}
"""Message → fields that must not be set."""

CALLS: frozenset[str] = frozenset()
"""Calls that answer UNIMPLEMENTED."""


def refuse_unbuilt(message: Message, path: str = "") -> None:
    """Raise Unbuilt for the first set field of `message`, at any depth, that isn't implemented."""
    missing = FIELDS.get(message.DESCRIPTOR.full_name, frozenset())
    for field, value in message.ListFields():
        here = f"{path}.{field.name}" if path else field.name
        if field.name in missing:
            raise Unbuilt(here)
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in value if field.is_repeated else (value,):
                refuse_unbuilt(inner, here)
