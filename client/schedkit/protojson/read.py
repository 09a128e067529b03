"""Read messages from One JSON or a manifest. Types come from the descriptor, never from guesses.

Every problem is collected with its path. The message is returned only without problems. Forms may
come from any source, so reading stops at limits on their size and problems.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from schedkit.protojson.problems import FormErrors, InvalidText, Path, Problem, did_you_mean
from schedkit.protojson.scalars import (
    READERS,
    PlainScalar,
    Reader,
    read_bytes,
    read_duration,
    read_enum,
    read_instant,
    read_rate,
    read_token,
    shown,
)
from schedkit.protojson.write import BASE64, MATCHES, TOKENS, is_map, map_value
from schedkit.text.json_text import TooDeep, check_depth

M = TypeVar("M", bound=Message)

ONE_OR_MANY: Final = frozenset(
    {
        "schedd.v1.Job.cron",
        "schedd.v1.Exclude.cron",
        "schedd.v1.Calendar.cron",
        "schedd.v1.Notification.email",
    }
)
"""Lists that may be written as their only element."""

MOST_ENTRIES: Final = 20_000
"""Keys and elements of a form in total, without the contents of its payloads."""
MOST_PROBLEMS: Final = 20
"""Problems of one form that are reported."""


def from_json(obj: Any, message_class: type[M], *, snake: bool = True, strings: bool = False) -> M:
    """Read a mapping as a message.

    Args:
        obj: keys in lowerCamelCase, and in snake_case if `snake`. Values as in One JSON, or
            datetime, timedelta and bytes from programs. Null means absent.
        message_class: the class of the message.
        snake: whether snake_case keys are accepted, too; suggestions then use them.
        strings: numbers and booleans may be text (a manifest read without types).

    Raises:
        FormErrors: lists all problems, at most MOST_PROBLEMS.
    """
    message = message_class()
    reader = _Reader(snake, strings)
    with suppress(_Enough):
        reader.fill(message, obj, ())
    if reader.problems:
        raise FormErrors(reader.problems)
    return message


def named_fields(obj: Mapping[str, Any], message_class: type[Message]) -> list[str]:
    """Return the top-level fields that `obj` names, as in the proto, for a field mask. A null
    counts: it clears the field. `{"overlap": {"allow": 3}}` names two fields. Unknown keys are left
    out: `from_json` reports them.
    """
    fields = message_class.DESCRIPTOR.fields
    known = {name: field.name for field in fields for name in (field.name, field.json_name)}
    names = [known[key] for key in obj if key in known]
    if "overlap" in names and "overlap_limit" in known and "overlap_limit" not in names:
        names.append("overlap_limit")
    return list(dict.fromkeys(names))


class _Enough(Exception):
    """Stops reading at a limit."""


class _Reader:
    """The state of one reading: options, problems so far, and remaining limits."""

    def __init__(self, snake: bool, strings: bool) -> None:
        self.snake = snake
        self.strings = strings
        self.problems: list[Problem] = []
        self.left = MOST_ENTRIES

    def fill(self, message: Message, obj: Any, path: Path) -> None:
        if not isinstance(obj, dict | Mapping):
            self._problem(path, f"the value must be an object with keys, not {shown(obj)}")
            return
        names = _names(message.DESCRIPTOR, self.snake)
        written: dict[str, str] = {}
        for key, value in obj.items():
            self._one_more(path)
            field = names.get(key) if isinstance(key, str) else None
            if field is None:
                style = self.snake and (self.strings or "_" in str(key))
                known = [f.name if style else f.json_name for f in message.DESCRIPTOR.fields]
                self._problem((*path, str(key)), "unknown field", did_you_mean(str(key), known))
            elif value is None:
                continue
            elif field.name in written:
                problem = f"the key is given twice, also as {written[field.name]}"
                self._problem((*path, key), problem)
            elif other := message.WhichOneof(field.group) if field.group else None:
                problem = f"the key can't be combined with {written[other]}; give one of them"
                self._problem((*path, key), problem)
            else:
                written[field.name] = key
                field.read(self, message, value, (*path, key))

    def message(self, inner: Message, value: Any, path: Path) -> None:
        special = _SPECIAL.get(inner.DESCRIPTOR.full_name)
        if special is None:
            inner.SetInParent()
            self.fill(inner, value, path)
            return
        read = self.value(special, value, path)
        if read is not None:
            inner.SetInParent()
            if isinstance(read, Message):
                inner.CopyFrom(read)
            else:
                setattr(inner, "raw" if isinstance(read, bytes) else "json", read)

    def value(self, read: Reader, value: Any, path: Path) -> Any:
        try:
            return read(value, self.strings)
        except ValueError as error:  # InvalidText, or an error of schedkit.text.duration
            self._problem(path, str(error))
            return None

    def list(self, field: FieldDescriptor, into: Any, value: Any, path: Path) -> None:
        of = field.message_type
        if of is not None and of.full_name in MATCHES and isinstance(value, Mapping):
            self._matches(into, value, path)
            return
        if isinstance(value, str) and field.full_name in ONE_OR_MANY:
            value = [value]
        if not isinstance(value, list | tuple):
            self._problem(path, f"the value must be a list, not {shown(value)}")
            return
        for position, one in enumerate(value):
            self._one_more(path)
            here = (*path, position)
            if of is not None:
                self.message(into.add(), one, here)
            elif (read := self.value(_scalar(field), one, here)) is not None:
                into.append(read)

    def map(self, field: FieldDescriptor, into: Any, value: Any, path: Path) -> None:
        if not isinstance(value, Mapping):
            self._problem(path, f"the value must be an object with keys, not {shown(value)}")
            return
        of = _scalar(map_value(field))
        for key, one in value.items():
            self._one_more(path)
            word = self.value(_STRING, str(key), path)
            read = self.value(of, one, (*path, str(key)))
            if word is not None and read is not None:
                into[word] = read

    def _matches(self, into: Any, value: Mapping[Any, Any], path: Path) -> None:
        """Read label matches: `{disk: ssd, region: [eu, us]}`."""
        for key, wanted in value.items():
            self._one_more(path)
            values = wanted if isinstance(wanted, list | tuple) else [wanted]
            if not values or not all(isinstance(one, str) for one in values):
                self._problem((*path, str(key)), "the value must be a string or a list of strings")
                continue
            into.add(key=str(key), any_of=values)

    def allow(self, job: Any, value: Mapping[Any, Any], path: Path) -> None:
        """Read `overlap: {allow: 3}`: at most three runs at once."""
        fields = job.DESCRIPTOR.fields_by_name
        if [str(key).lower() for key in value] != ["allow"]:
            self._problem(path, "the value must be a policy's name, or {allow: N}")
            return
        [(key, limit)] = value.items()
        read = self.value(_scalar(fields["overlap_limit"]), limit, (*path, key))
        if read == 0:
            self._problem((*path, key), "the limit must be at least 1")
        elif read is not None:
            job.overlap = read_enum(fields["overlap"].enum_type, "allow")
            job.overlap_limit = read

    def _one_more(self, path: Path) -> None:
        self.left -= 1
        if self.left < 0:
            self._problem(path, f"the document has more than {MOST_ENTRIES:,} entries in all")
            raise _Enough

    def _problem(self, path: Path, message: str, suggestion: str = "") -> None:
        self.problems.append(Problem(path, message, suggestion))
        if len(self.problems) >= MOST_PROBLEMS:
            raise _Enough


_LOCAL: Final = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}(?::\d{2})?", re.ASCII)


def _local_time(value: Any) -> str:
    """Return a time without an offset as text; empty if the value isn't one."""
    if isinstance(value, datetime) and value.tzinfo is None:
        value = value.isoformat(timespec="seconds")
    return value.upper() if isinstance(value, str) and _LOCAL.fullmatch(value) else ""


def read_payload(value: Any, strings: bool) -> str | bytes:
    """Return JSON text for a value, or bytes for `{"$base64": …}` or bytes."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, Mapping) and list(value) == [BASE64]:
        return read_bytes(value[BASE64])
    if strings:
        value = _typed(value)
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        text.encode()  # half of a surrogate pair isn't text
        check_depth(value)
        return text
    except TooDeep as deep:
        raise InvalidText(str(deep)) from None
    except RecursionError:
        raise InvalidText(str(TooDeep())) from None
    except (TypeError, ValueError) as error:
        raise InvalidText(f"the value isn't valid JSON: {error}; correct the JSON") from None


def _typed(value: Any) -> Any:
    """Return a value that was read without types: unquoted JSON literals are converted."""
    if isinstance(value, Mapping):
        return {str(key): _typed(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_typed(one) for one in value]
    if not isinstance(value, PlainScalar):
        return value
    if value in ("", "~"):
        return None
    if value.lower().lstrip("+-") in (".nan", ".inf"):
        raise ValueError(
            f"{value} isn't a valid number in JSON; for a string, write {value!r} with quotes"
        )
    try:
        return json.loads(value)
    except ValueError:
        return str(value)


_SPECIAL: Final[dict[str, Callable[[Any, bool], Any]]] = {
    "google.protobuf.Timestamp": lambda value, _: read_instant(value),
    "google.protobuf.Duration": lambda value, _: read_duration(value),
    "schedd.v1.Payload": read_payload,
    "schedd.v1.Rate": lambda value, _: read_rate(value),
}
"""Messages that are read from a single value."""


_STRING: Final = READERS[FieldDescriptor.TYPE_STRING]


class _Field(NamedTuple):
    """A field by the key of a form. `group`: the group of which only one field may be given."""

    name: str
    group: str
    read: Callable[[_Reader, Any, Any, Path], None]


@cache
def _names(of: Any, snake: bool) -> Mapping[str, _Field]:
    """Return the accepted names of a descriptor's fields, each with its field."""
    names: dict[str, _Field] = {}
    for one in of.fields:
        group = one.containing_oneof
        several = str(group.name) if group and len(group.fields) > 1 else ""
        names[one.json_name] = _Field(one.name, several, _read(one))
    return names | {field.name: field for field in names.values()} if snake else names


def _read(of: FieldDescriptor) -> Callable[[_Reader, Any, Any, Path], None]:
    """Return the function that reads a value into this field of a message."""
    name, get = of.name, attrgetter(of.name)
    if is_map(of):
        return lambda reader, message, value, path: reader.map(of, get(message), value, path)
    if of.is_repeated:
        return lambda reader, message, value, path: reader.list(of, get(message), value, path)
    scalar = _scalar(of) if of.message_type is None else None

    def read(reader: _Reader, message: Message, value: Any, path: Path) -> None:
        if scalar is None:
            reader.message(get(message), value, path)
        elif (found := reader.value(scalar, value, path)) is not None:
            setattr(message, name, found)

    def read_at(reader: _Reader, job: Any, value: Any, path: Path) -> None:
        if local := _local_time(value):
            job.local_at = local
        else:
            read(reader, job, value, path)

    def read_overlap(reader: _Reader, job: Any, value: Any, path: Path) -> None:
        if isinstance(value, Mapping):
            reader.allow(job, value, path)
        else:
            read(reader, job, value, path)

    own = {"schedd.v1.Job.at": read_at, "schedd.v1.Job.overlap": read_overlap}
    return own.get(of.full_name, read)


@cache
def _scalar(of: FieldDescriptor) -> Reader:
    if (enum := of.enum_type) is not None:
        return lambda value, _: read_enum(enum, value)
    return (lambda value, _: read_token(value)) if of.name in TOKENS else READERS[of.type]
