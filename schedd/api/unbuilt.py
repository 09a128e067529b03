"""What the wire has and this version hasn't: each answers UNIMPLEMENTED by name.

Nothing is accepted and ignored. A test walks every field of every request and every call: each is
either read by the code or stands here. Building one means deleting its line.
"""

from google.protobuf.message import Message

from schedd.api.errors import Unbuilt

FIELDS: dict[str, frozenset[str]] = {}
"""Message → fields that must not be set."""

CALLS: frozenset[str] = frozenset()
"""Calls that answer UNIMPLEMENTED."""


def refuse_unbuilt(message: Message, path: str = "") -> None:
    """Raise Unbuilt for the first field set in `message`, at any depth, that isn't built."""
    missing = FIELDS.get(message.DESCRIPTOR.full_name, frozenset())
    for field, value in message.ListFields():
        here = f"{path}.{field.name}" if path else field.name
        if field.name in missing:
            raise Unbuilt(here)
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in value if field.is_repeated else (value,):
                refuse_unbuilt(inner, here)
