"""An example of each message with every field set: the same at each call, for any descriptors.

    for example in examples(descriptor, make): …        `make`: descriptor → its message class

Of a oneof one field can be set at a time: there are as many examples as the largest oneof within
has fields, and each sets another. Values differ from field to field, so that one can't pass for
another; an enum's isn't its zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

Make = Callable[[Descriptor], type[Message]]

DEEPEST = 4
"""How far messages are filled inward where they hold their own kind (`google.protobuf.Value`)."""
SMALL = {FieldDescriptor.TYPE_BOOL}


def examples(of: Descriptor, make: Make) -> Iterator[Message]:
    """Examples that set each field at least once."""
    for turn in range(_turns(of, frozenset())):
        yield _filled(of, make, turn, ())


def _turns(of: Descriptor, seen: frozenset[str]) -> int:
    if of.full_name in seen:
        return 1
    within = seen | {of.full_name}
    inner = [_turns(f.message_type, within) for f in of.fields if f.message_type is not None]
    return max([len(oneof.fields) for oneof in of.oneofs] + inner, default=1)


def _filled(of: Descriptor, make: Make, turn: int, above: tuple[str, ...]) -> Message:
    message = make(of)()
    for field in of.fields:
        oneof = field.containing_oneof
        if oneof is not None and oneof.fields[turn % len(oneof.fields)].number != field.number:
            continue
        if above.count(of.full_name) < DEEPEST or field.message_type is None:
            _set(message, field, make, turn, (*above, of.full_name))
    return message


def _set(
    message: Message, field: FieldDescriptor, make: Make, turn: int, above: tuple[str, ...]
) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        held = getattr(message, field.name)
        if value.message_type is not None:
            held[_plain(key, turn)].CopyFrom(_filled(value.message_type, make, turn, above))
        else:
            held[_plain(key, turn)] = _plain(value, turn)
    elif field.message_type is not None:
        inner = _filled(field.message_type, make, turn, above)
        if field.is_repeated:
            getattr(message, field.name).append(inner)
        else:
            getattr(message, field.name).CopyFrom(inner)
    elif field.is_repeated:
        getattr(message, field.name).extend([_plain(field, turn), _plain(field, turn + 1)])
    else:
        setattr(message, field.name, _plain(field, turn))


def _plain(field: FieldDescriptor, turn: int) -> Any:
    """A value of the field's own that isn't what it has unset."""
    number = field.number + turn
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return bytes([0, 255, number % 256])
        case FieldDescriptor.CPPTYPE_STRING:
            return f"{field.name} {turn} é"
        case FieldDescriptor.CPPTYPE_BOOL:
            return True
        case FieldDescriptor.CPPTYPE_ENUM:
            numbers = [value.number for value in field.enum_type.values if value.number]
            return numbers[turn % len(numbers)] if numbers else 0
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return number + 0.5
        case FieldDescriptor.CPPTYPE_INT64 if field.full_name.startswith("schedd"):
            return 2**40 + number
        case _:
            return 1000 + number
