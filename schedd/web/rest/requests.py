"""From an HTTP request to the message of its call, by the route's rule; nothing is ignored.

    path variables ─┐
    query           ├─ each a field, named once ──▶ message
    body            ┘
    If-Match, Idempotency-Key, Last-Event-ID ──▶ the fields of HEADERS, where the call has them

Invariants
- Every key, parameter and body either reaches the message or is refused by name.
- `If-Match` is a list of entity tags, or `*`; an edit isn't made though it can't be read, nor where
  `If-None-Match` stands beside it, which no call that changes something knows.
- A parameter isn't empty, but for MAY_BE_EMPTY, nor is what chooses in a body (`CHOOSING`): left
  out it chooses all, and who gives one means one.
- An idempotency key, in a header, a parameter or a body, says one, once, and so does an etag: who
  sends an empty one believes to be safe, and isn't.
- A field that is named twice (in the path and in the body, say) must say the same; of where a
  stream goes on the header is the newer word.
- A PATCH without `updateMask` changes the fields that its body names; one that names none is
  refused. With one it changes those that the mask names, and its body names no other.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from starlette.datastructures import Headers
from starlette.requests import Request

from schedd.api.errors import Violation
from schedd.api.field_bounds import IDS, MAY_BE_EMPTY, if_empty
from schedd.web.rest import problems
from schedd.web.rest.bodies import wrong
from schedd.web.rest.http_rules import WHOLE, RouteMatch
from schedd.web.rest.problems import RequestProblem
from schedkit.protojson import FormErrors, from_json, named_fields

KEY: Final = "Idempotency-Key"
HEADERS: Final = {
    "If-Match": "etag",
    KEY: "idempotency_key",
    "Last-Event-ID": "resume_after",
}
"""Header → the field of the request that it stands for."""
NEWEST: Final = "resume_after"
"""The field whose header goes before the query: a browser that comes back to a stream asks by the
address that it first asked by, and the header says how far it has got since.
"""

KEYED: Final = HEADERS[KEY]

UNTAKEN: Final = "If-None-Match"
_TAG: Final = r'(?:W/)?"[!#-~\x80-\xff]*"'
_TAGS: Final = re.compile(rf"[ \t,]*{_TAG}(?:[ \t]*,(?:[ \t]*{_TAG})?)*[ \t]*")
"""Entity tags, of which a list may have empty places (RFC 9110, 5.6.1)."""

MASK: Final = "update_mask"
IDENTITY: Final = frozenset({"name", "namespace", "job_id", "etag"})
"""Fields of a job that say which one is meant; naming them in a body changes nothing."""


def read(request: Request, found: RouteMatch, body: Mapping[str, Any] | None) -> Message:
    """The message that this request stands for, its `body` read before.

    Raises:
        Refusal: it can't be one; the body says all that is wrong.
    """
    try:
        query, headers = list(request.query_params.multi_items()), _whole(request)
        return message_of(found, query, body, headers)
    except FormErrors as errors:
        raise RequestProblem(problems.of_form(errors)) from errors
    except UnicodeError as error:
        raise wrong("the request holds half a surrogate pair: it is no text") from error
    except RecursionError as error:
        raise wrong("the body is nested too deeply") from error


def _whole(request: Request) -> dict[str, str]:
    """Those of its headers that are read, by their names in lower case, and of several lines the
    list that they are. Raises Refusal.
    """
    lines = request.headers
    key_of(lines)
    read = (name.lower() for name in (*HEADERS, UNTAKEN) if name in lines)
    return {name: ", ".join(lines.getlist(name)) for name in read}


def key_of(headers: Headers) -> str | None:
    """The idempotency key, where there is one: no list, as its header isn't one. Raises Refusal."""
    match [key.strip() for key in headers.getlist(KEY)]:
        case []:
            return None
        case [key] if key:
            return key
        case given:
            problem = "is given twice" if len(given) > 1 else "is empty"
            raise wrong(f"{KEY}: {problem}", violations=[Violation(KEY, problem)])


def named(headers: Mapping[str, str], path: str) -> str:
    """A field of the request by what it was given by: its header, where it came in one."""
    names = (name for name, field in HEADERS.items() if field == path and headers.get(name.lower()))
    return next(names, path)


def message_of(
    found: RouteMatch,
    query: Iterable[tuple[str, str]],
    body: Mapping[str, Any] | None,
    headers: Mapping[str, str],
) -> Message:
    """The message of a request whose body was parsed. Raises Refusal, FormErrors. Pure."""
    cls = GetMessageClass(found.route.method.input_type)
    message = _of_body(cls, found, body)
    _put(message, _of_query(cls, found, query), "query")
    _put(message, _of_path(cls, found), "path")
    headed = _of_headers(cls, found, headers)
    if any(field.name == NEWEST for field, _ in headed.ListFields()):
        message.ClearField(NEWEST)
    _put(message, headed, "header")
    _set_mask(message, found, body)
    return message


def _of_body(cls: type[Message], found: RouteMatch, body: Mapping[str, Any] | None) -> Message:
    field = found.route.body
    if not field or body is None:
        return cls()
    message = cls()
    inner = message if field == WHOLE else getattr(message, field)
    inner.CopyFrom(from_json(body, type(inner)))
    if refused := [*_empties(body, cast("Descriptor", inner.DESCRIPTOR))]:
        raise _refusal(refused)
    return message


def _empties(body: Mapping[str, Any], message: Descriptor, at: str = "") -> Iterator[Violation]:
    """What is empty in a body, read as this message before, and would be taken as left out. `at`:
    where it lies.
    """
    fields = _fields(message)
    for key, value in body.items():
        field = fields.get(key)  # none of what stands in a payload
        if field is None:
            continue
        here, of = f"{at}{key}", field.message_type
        if value == "" and (problem := if_empty(field)):
            yield Violation(here, problem)
        elif of is not None and isinstance(value, Mapping):
            yield from _empties(value, of, f"{here}.")
        elif of is not None and isinstance(value, list):
            for place, one in enumerate(value):
                if isinstance(one, Mapping):
                    yield from _empties(one, of, f"{here}[{place}].")


@cache
def _fields(message: Descriptor) -> Mapping[str, FieldDescriptor]:
    """Its fields, by either name that they have."""
    return {name: one for one in message.fields for name in (one.name, one.json_name)}


def _refusal(violations: Sequence[Violation]) -> RequestProblem:
    return wrong("; ".join(f"{it.field}: {it.problem}" for it in violations), violations=violations)


def _of_query(cls: type[Message], found: RouteMatch, query: Iterable[tuple[str, str]]) -> Message:
    """The fields that parameters name, dotted where they lie deeper."""
    form: dict[str, Any] = {}
    refused: list[Violation] = []
    inner = _body_of(cls, found)
    for key, value in query:
        field = _field(cls, key)
        if field is None and inner is not None and _field(inner, key) is not None:
            refused.append(Violation(key, "belongs into the body"))
        elif field is None:
            refused.append(Violation(key, "unknown parameter"))
        elif found.route.body in (WHOLE, field.name):
            refused.append(Violation(key, "belongs into the body"))
        elif not value and field.type == field.TYPE_STRING and field.name not in MAY_BE_EMPTY:
            what = "an id" if field.name in IDS else "a key" if field.name == KEYED else "a value"
            refused.append(Violation(key, f"is empty: give {what}, or leave it out"))
        else:
            _enter(form, key, value, field)
    if refused:
        raise _refusal(refused)
    return from_json(form, cls, strings=True)


def _body_of(cls: type[Message], found: RouteMatch) -> type[Message] | None:
    """What the body is, where it is one field of the request."""
    field = found.route.body
    return None if field in ("", WHOLE) else type(getattr(cls(), field))


def _field(cls: type[Message], key: str) -> FieldDescriptor | None:
    """The top-level field that a parameter's first word names."""
    first = key.partition(".")[0]
    fields = cast("Sequence[FieldDescriptor]", cls.DESCRIPTOR.fields)  # upb's class is its twin
    return next((field for field in fields if first in (field.name, field.json_name)), None)


def _enter(form: dict[str, Any], key: str, value: str, field: FieldDescriptor) -> None:
    if field.message_type is not None and field.message_type.name == "FieldMask":
        form[key] = {"paths": [_snake(path) for path in value.split(",") if path]}
    elif field.is_repeated:
        form.setdefault(key, []).append(value)
    elif not _nest(form, key.split("."), value):
        raise wrong(f"{key}: is given twice", violations=[Violation(key, "is given twice")])


def _snake(path: str) -> str:
    """A mask's path as the proto has it: `retry.maxAttempts` is `retry.max_attempts`."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", path).lower()


def _nest(form: dict[str, Any], path: list[str], value: Any) -> bool:
    """Put it there; False where something stands already, or on the way."""
    for step in path[:-1]:
        inner = form.setdefault(step, {})
        if not isinstance(inner, dict):
            return False
        form = inner
    if path[-1] in form:
        return False
    form[path[-1]] = value
    return True


def _of_path(cls: type[Message], found: RouteMatch) -> Message:
    form: dict[str, Any] = {}
    for variable, value in found.variables.items():
        _nest(form, variable.split("."), value)
    return from_json(form, cls, strings=True)


def _of_headers(cls: type[Message], found: RouteMatch, headers: Mapping[str, str]) -> Message:
    form: dict[str, str] = {}
    for header, field in HEADERS.items():
        given = headers.get(header.lower())
        if given is None:
            continue
        if field not in cls.DESCRIPTOR.fields_by_name:
            raise _untaken(header)
        if field != "etag" or _demands(given):
            form[field] = given
    if UNTAKEN.lower() in headers and found.route.verb != "GET":
        raise _untaken(UNTAKEN)
    return from_json(form, cls)


def _demands(tags: str) -> bool:
    """Whether an `If-Match` asks for one of the tags that it names, not for any (`*`). Raises
    Refusal.
    """
    if tags.strip() == "*":
        return False
    if not _TAGS.fullmatch(tags):
        problem = "is empty" if not tags.strip() else "is no list of entity tags, and not *"
        raise wrong(f"If-Match: {problem}", violations=[Violation("If-Match", problem)])
    return True


def _untaken(header: str) -> RequestProblem:
    problem = "this call takes none; leave it out"
    return wrong(f"{header}: {problem}", violations=[Violation(header, problem)])


def _put(message: Message, part: Message, whence: str) -> None:
    """Merge a part into the message; where both say something they must agree."""
    _agree(message, part, whence)
    message.MergeFrom(part)


def _agree(message: Message, part: Message, whence: str, at: str = "") -> None:
    for field, value in part.ListFields():
        here = f"{at}.{field.json_name}" if at else field.json_name
        own = getattr(message, field.name)
        if field.message_type is not None and not field.is_repeated:
            _agree(own, value, whence, here)
        elif not field.is_repeated and own and own != value:
            raise wrong(
                f"{here}: the {whence} says {value!r}, another part of the request {own!r}",
                violations=[Violation(here, f"differs from the {whence}")],
            )


def _set_mask(message: Message, found: RouteMatch, body: Mapping[str, Any] | None) -> None:
    if found.route.verb != "PATCH" or body is None or MASK not in message.DESCRIPTOR.fields_by_name:
        return
    mask, kind = getattr(message, MASK), type(getattr(message, found.route.body))
    if mask.paths and "*" not in mask.paths:
        mask.paths.extend(_beside_overlap(body, mask.paths))
        told = _unmasked(body, kind.DESCRIPTOR, frozenset(mask.paths))
        if unmasked := [Violation(key, "isn't named by updateMask") for key in told]:
            raise _refusal(unmasked)
    if not mask.paths:
        named = named_fields(body, kind)
        mask.paths.extend(name for name in named if name not in IDENTITY)
    if not mask.paths:
        raise wrong("the body names no field to change", reason="BAD_UPDATE_MASK")


def _beside_overlap(body: Mapping[str, Any], paths: Collection[str]) -> list[str]:
    """`{"overlap": {"allow": 3}}` says two fields in one."""
    both = isinstance(body.get("overlap"), Mapping) and "overlap" in paths
    return ["overlap_limit"] if both and "overlap_limit" not in paths else []


def _unmasked(
    body: Mapping[str, Any],
    message: Descriptor,
    paths: Collection[str],
    at: str = "",
    path: str = "",
) -> Iterator[str]:
    """Where the body, read as this message before, names what these paths don't: by its own keys.
    `at` and `path`: where it lies, by those and by the names of fields.
    """
    fields = _fields(message)
    for key, value in body.items():
        field = fields.get(key)  # none of what stands in a payload
        here = f"{path}{field.name}" if field is not None else ""
        if here in paths or (not path and here in IDENTITY):
            continue
        of = None if field is None or field.is_repeated else field.message_type
        within = any(one.startswith(f"{here}.") for one in paths)
        if within and isinstance(value, Mapping) and of is not None:
            yield from _unmasked(value, of, paths, f"{at}{key}.", f"{here}.")
        else:
            yield f"{at}{key}"
