"""Messages by their descriptors, for tests that look at every field."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor

from schedkit.bounds.rules import Table, rule_of_type


def messages(*roots: Descriptor) -> Iterator[Descriptor]:
    """Yield the roots and all messages in their fields."""
    seen: dict[str, Descriptor] = {}
    waiting = [*roots]
    while waiting:
        one = waiting.pop()
        own = one.file.package == "schedd.v1" and not one.GetOptions().map_entry
        if own and one.full_name not in seen:
            seen[one.full_name] = one
        elif one.full_name in seen or one.file.package != "schedd.v1":
            continue
        waiting += [field.message_type for field in one.fields if field.message_type is not None]
    return iter(seen.values())


def unknown_rows(table: Table, messages: Iterator[Descriptor]) -> Iterator[str]:
    """Yield fields of these messages that have no row, and rows of fields that don't exist."""
    for message in messages:
        rows = table.get(message.full_name, {})
        fields = {field.name: field for field in message.fields}
        yield from (
            f"{message.full_name}.{name} has no row"
            for name in sorted(fields.keys() - {*rows})
            if rule_of_type(fields[name]) is None
        )
        yield from (f"{message.full_name}.{name} isn't a field" for name in {*rows} - fields.keys())
