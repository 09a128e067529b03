"""Convert wire messages to values: each field is the message's field of that name."""

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from operator import attrgetter
from typing import Any, Final, TypeAlias, TypeVar, get_args, get_type_hints

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from schedclient.values.base import Value
from schedclient.values.cluster import AccessToken, Finding, Grant
from schedclient.values.dead_letters import Redrive
from schedclient.values.jobs import After, Backfill, DateRange, Omitted
from schedclient.values.runs import Check, ClusterEvent, Gap, Parent, Run, RunProgress
from schedkit.protojson import UNKNOWN, enum_word, rate_text

V = TypeVar("V", bound=Value)
Read: TypeAlias = Callable[[Any], Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

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
    known: Any = cls  # mypy: a class whose values have no hash
    readers = _readers(known, message.DESCRIPTOR)
    return cls(message=message, **{name: read(message) for name, read in readers})


@cache
def _readers(cls: type[Value], of: Any) -> tuple[tuple[str, Read], ...]:
    """Return the names of a value's own fields, each with the function that reads it."""
    hints = get_type_hints(cls)
    names = [one.name for one in dataclasses.fields(cls) if one.name != "message"]
    fields = of.fields_by_name
    optional = {name: type(None) in get_args(hints[name]) for name in names}
    return tuple((name, _reader(fields[name], optional[name])) for name in names)


def _reader(of: FieldDescriptor, optional: bool) -> Read:
    """Return the function that reads this field of a message. `optional`: it may return None."""
    name, get = of.name, attrgetter(of.name)
    if of.message_type is not None and of.message_type.GetOptions().map_entry:
        return lambda message: dict(found) if (found := get(message)) else {}
    single = _single(of)
    if of.is_repeated:
        return lambda message: tuple(map(single, found)) if (found := get(message)) else ()
    flag, presence = UNKNOWN.get(of.full_name), optional and of.has_presence
    if single is _itself and not optional and flag is None:
        return get

    def read(message: Message) -> Any:
        if presence and not message.HasField(name):
            return None
        value = get(message)
        if flag is not None and not value and getattr(message, flag):
            return None
        found = single(value)
        return None if optional and found == "" else found

    return read


def _single(of: FieldDescriptor) -> Read:
    """Return the function that converts one value of a field."""
    if (enum := of.enum_type) is not None:
        return lambda value: str(enum_word(enum, value)) if value else ""
    if of.message_type is None:
        return _itself
    name = of.message_type.full_name
    return _SPECIAL.get(name) or partial(value_of, _NESTED[name])


def _itself(value: Any) -> Any:
    return value


def _instant(stamp: Timestamp) -> datetime:
    """Return an aware datetime: in a third of the time of `ToDatetime`."""
    return _EPOCH + timedelta(0, stamp.seconds, stamp.nanos // 1_000)


_SPECIAL: Final[dict[str, Read]] = {
    "google.protobuf.Timestamp": _instant,
    "google.protobuf.Duration": Duration.ToTimedelta,
    "schedd.v1.Rate": rate_text,
}
"""Messages that are read as a single value."""
