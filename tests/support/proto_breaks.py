"""Find what a change of `proto/` breaks for peers that use the version before: compare
descriptors, as `buf breaking` does.

    broken = breaking_changes(old_files, new_files)          sentences; none is good

What counts as broken: a message, field, enum value, service or method that is gone; a number that
means something else; a type, a name (REST goes by it), a presence or a oneof that changed; a path
of REST that changed. A field or an enum value may go where its number and its name are reserved:
a peer that left it unset isn't affected. Additions break nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from google.api.annotations_pb2 import http
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    MethodOptions,
    ServiceDescriptorProto,
)

Files = Sequence[FileDescriptorProto]


def breaking_changes(old: Files, new: Files) -> list[str]:
    """Return all that these files break for peers that use the old ones."""
    return [
        *_each(_messages(old), _messages(new), _message),
        *_each(_enums(old), _enums(new), _enum),
        *_each(_services(old), _services(new), _service),
    ]


def _each(old: Mapping[str, Any], new: Mapping[str, Any], compare: Any) -> Iterator[str]:
    for name, before in old.items():
        if name not in new:
            yield f"{name} is gone"
        else:
            yield from compare(name, before, new[name])


def _message(name: str, old: DescriptorProto, new: DescriptorProto) -> Iterator[str]:
    fields = {field.number: field for field in new.field}
    for field in old.field:
        if field.number in fields:
            changes = _shape(old, field).items() ^ _shape(new, fields[field.number]).items()
            if changes:
                what = ", ".join(sorted({aspect for aspect, _ in changes}))
                yield f"{name}.{field.name} ({field.number}) has another {what}"
        elif not _reserved(new, field.number, field.name):
            yield f"{name}.{field.name} ({field.number}) is gone, and not reserved"
    for number, field in fields.items():
        if any(span.start <= number < span.end for span in old.reserved_range):
            yield f"{name}.{field.name} ({number}) has a number that was reserved"


def _shape(message: DescriptorProto, field: FieldDescriptorProto) -> dict[str, object]:
    oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
    return {
        "name": field.name,
        "name in JSON": field.json_name,
        "type": (field.type, field.type_name),
        "label": field.label,
        "presence": field.proto3_optional,
        "oneof": "" if field.proto3_optional else oneof,
    }


def _enum(name: str, old: EnumDescriptorProto, new: EnumDescriptorProto) -> Iterator[str]:
    values = {value.number: value.name for value in new.value}
    for value in old.value:
        if value.number in values:
            if values[value.number] != value.name:
                yield f"{name}: {value.number} was {value.name}, is {values[value.number]}"
        elif not _reserved(new, value.number, value.name, inclusive=True):
            yield f"{name}.{value.name} ({value.number}) is gone, and not reserved"


def _reserved(
    holder: DescriptorProto | EnumDescriptorProto,
    number: int,
    name: str,
    *,
    inclusive: bool = False,
) -> bool:
    """`inclusive`: an enum's ranges hold their end."""
    spans = ((span.start, span.end + inclusive) for span in holder.reserved_range)
    return name in holder.reserved_name and any(a <= number < b for a, b in spans)


def _options(method: MethodOptions) -> MethodOptions:
    """Return the options, parsed again: only one of the two may know extensions of others."""
    return MethodOptions.FromString(method.SerializeToString())


def _has_kept(old: MethodOptions, new: MethodOptions) -> bool:
    """Whether the new ones say what the old ones said; more paths to the same call are no harm."""
    if old.HasExtension(http) and new.HasExtension(http):
        known, more = old.Extensions[http], new.Extensions[http]
        kept = [one for one in more.additional_bindings if one in known.additional_bindings]
        del more.additional_bindings[:]
        more.additional_bindings.extend(kept)
    return old == new


def _service(name: str, old: ServiceDescriptorProto, new: ServiceDescriptorProto) -> Iterator[str]:
    methods = {method.name: method for method in new.method}
    for method in old.method:
        now = methods.get(method.name)
        if now is None:
            yield f"{name}.{method.name} is gone"
            continue
        for aspect in ("input_type", "output_type", "client_streaming", "server_streaming"):
            if getattr(method, aspect) != getattr(now, aspect):
                yield f"{name}.{method.name} has another {aspect}"
        if not _has_kept(_options(method.options), _options(now.options)):
            yield f"{name}.{method.name} has another path, or other options"


def _messages(files: Files) -> dict[str, DescriptorProto]:
    def below(prefix: str, found: Iterable[DescriptorProto]) -> Iterator[Any]:
        for message in found:
            yield f"{prefix}.{message.name}", message
            yield from below(f"{prefix}.{message.name}", message.nested_type)

    return dict(pair for file in files for pair in below(file.package, file.message_type))


def _enums(files: Files) -> dict[str, EnumDescriptorProto]:
    outer = {f"{file.package}.{enum.name}": enum for file in files for enum in file.enum_type}
    inner = {
        f"{name}.{enum.name}": enum
        for name, message in _messages(files).items()
        for enum in message.enum_type
    }
    return outer | inner


def _services(files: Files) -> dict[str, ServiceDescriptorProto]:
    return {f"{file.package}.{each.name}": each for file in files for each in file.service}
