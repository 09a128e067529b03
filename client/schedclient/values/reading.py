"""Convert wire messages to values: each field is the message's field of that name."""

import dataclasses
from datetime import UTC
from typing import Any, Final, TypeVar, get_args, get_type_hints

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from schedclient.values.base import Value
from schedclient.values.cluster import AccessToken, Finding, Grant
from schedclient.values.dead_letters import Redrive
from schedclient.values.jobs import After, Backfill, DateRange, Omitted
from schedclient.values.runs import Check, ClusterEvent, Gap, Parent, Run, RunProgress
from schedkit.protojson import UNKNOWN, enum_word, rate_text

V = TypeVar("V", bound=Value)

_NESTED: Final[dict[str, type[Value]]] = {
    "schedd.v1.Run": Run,
    "schedd.v1.RunProgress": RunProgress,
    "schedd.v1.Run.Parent": Parent,
    "schedd.v1.After": After,
    "schedd.v1.ExplainRunResponse.Check": Check,
    "schedd.v1.Finding": Finding,
    "schedd.v1.DateRange": DateRange,
    "schedd.v1.Backfill": Backfill,
    "schedd.v1.BackfillJobResponse.Omitted": Omitted,
    "schedd.v1.Redrive": Redrive,
    "schedd.v1.RunEvent.Gap": Gap,
    "schedd.v1.ClusterEvent": ClusterEvent,
    "schedd.v1.Token": AccessToken,
    "schedd.v1.Identity.Grant": Grant,
}
"""The value class of each nested message."""


def value_of(cls: type[V], message: Message) -> V:
    """Return the value of a message: each field of `cls` from the message's field of that name."""
    fields = message.DESCRIPTOR.fields_by_name
    read = {name: _read(message, fields[name], optional) for name, optional in _shape(cls)}
    return cls(message=message, **read)


def _shape(cls: type[Value]) -> tuple[tuple[str, bool], ...]:
    """Return the names of a value's own fields, and whether each may be None."""
    if cls not in _SHAPES:
        hints = get_type_hints(cls)
        names = [one.name for one in dataclasses.fields(cls) if one.name != "message"]
        _SHAPES[cls] = tuple((name, type(None) in get_args(hints[name])) for name in names)
    return _SHAPES[cls]


_SHAPES: Final[dict[type[Value], tuple[tuple[str, bool], ...]]] = {}


def _read(message: Message, of: Any, optional: bool) -> Any:
    value = getattr(message, of.name)
    if of.message_type is not None and of.message_type.GetOptions().map_entry:
        return dict(value)
    if of.is_repeated:
        return tuple(_single(of, one) for one in value)
    if optional and of.has_presence and not message.HasField(of.name):
        return None
    if not value and (flag := UNKNOWN.get(of.full_name)) is not None and getattr(message, flag):
        return None
    single = _single(of, value)
    return None if optional and single == "" else single


def _single(of: FieldDescriptor, value: Any) -> Any:
    if of.enum_type is not None:
        word = enum_word(of.enum_type, value)
        return "" if word is None else str(word)
    if of.message_type is None:
        return value
    name = of.message_type.full_name
    if name == "google.protobuf.Timestamp":
        return value.ToDatetime(tzinfo=UTC)
    if name == "google.protobuf.Duration":
        return value.ToTimedelta()
    if name == "schedd.v1.Rate":
        return rate_text(value)
    return value_of(_NESTED[name], value)
