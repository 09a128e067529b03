"""Turn an HTTP request into the message of its call, by the rule of its route.

    path variables ─┐
    query           ├─ fields ──▶ message
    body            ┘
    If-Match, Idempotency-Key, Last-Event-ID ──▶ the fields of HEADERS, if the call has them

Invariants
- Every key, parameter and body either reaches the message or is rejected by name.
- `If-Match` is a list of entity tags, or `*`. An invalid one rejects the edit, and so does
  `If-None-Match`, which no call that changes something supports.
- Empty parameters are rejected, except MAY_BE_EMPTY, and so are empty selectors in a body: empty
  would select everything.
- An empty or repeated idempotency key or etag is rejected: it would protect from nothing.
- A field that is given twice, such as in path and body, must have the same value. For the cursor of
  a stream, the header has priority.
- A PATCH without `updateMask` changes the fields in its body, at least one. With a mask, it changes
  the fields in the mask, and the body must contain no others.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from starlette.datastructures import Headers
from starlette.requests import Request

from schedd.api.errors import FieldViolation
from schedd.api.request_bounds import IDS, MAY_BE_EMPTY, if_empty
from schedd.web.rest import problems
from schedd.web.rest.bodies import wrong
from schedd.web.rest.http_rules import WHOLE, RouteMatch
from schedd.web.rest.problems import RequestProblem
from schedkit.protojson import FormErrors, from_json, named_fields

KEY: Final = "Idempotency-Key"
HEADERS: Final = {"If-Match": "etag", KEY: "idempotency_key", "Last-Event-ID": "resume_after"}
"""Header → field of the request."""
NEWEST: Final = "resume_after"
"""The field whose header has priority over the query. A browser that reconnects to a stream sends
its first address again, and its position in the header.
"""

KEYED: Final = HEADERS[KEY]

UNTAKEN: Final = "If-None-Match"
_TAG: Final = r'(?:W/)?"[!#-~\x80-\xff]*"'
_TAGS: Final = re.compile(rf"[ \t,]*{_TAG}(?:[ \t]*,(?:[ \t]*{_TAG})?)*[ \t]*")
"""Entity tags; a list may have empty elements (RFC 9110, 5.6.1)."""

MASK: Final = "update_mask"
IDENTITY: Final = frozenset({"name", "namespace", "job_id", "etag"})
"""Fields of a job that identify it; in a body they change nothing."""


def read_request(request: Request, found: RouteMatch, body: Mapping[str, Any] | None) -> Message:
    """Return the message of a request whose body was read.

    Raises:
        RequestProblem: the request is invalid, with all problems.
    """
    try:
        query, headers = list(request.query_params.multi_items()), _whole(request)
        return message_of(found, query, body, headers)
    except FormErrors as errors:
        raise problems.of_form(errors) from errors
    except UnicodeError as error:
        raise wrong(
            "the request contains an unpaired surrogate, which isn't valid Unicode: correct"
            " the string"
        ) from error
    except RecursionError as error:
        raise wrong(
            "the request's body is nested too deeply: use fewer levels of lists and objects"
        ) from error


def _whole(request: Request) -> dict[str, str]:
    """Return the supported headers by their names in lower case; repeated headers are joined.
    Raises RequestProblem.
    """
    lines = request.headers
    key_of(lines)
    read = (name.lower() for name in (*HEADERS, UNTAKEN) if name in lines)
    return {name: ", ".join(lines.getlist(name)) for name in read}


def key_of(headers: Headers) -> str | None:
    """Return the idempotency key, if any; it must be a single value. Raises RequestProblem."""
    match [key.strip() for key in headers.getlist(KEY)]:
        case []:
            return None
        case [key] if key:
            return key
        case given:
            problem = "the header is given twice" if len(given) > 1 else "the value is empty"
            raise _refusal([FieldViolation(KEY, problem)])


def named(headers: Mapping[str, str], path: str) -> str:
    names = (name for name, field in HEADERS.items() if field == path and headers.get(name.lower()))
    return next(names, path)


def message_of(
    found: RouteMatch,
    query: Iterable[tuple[str, str]],
    body: Mapping[str, Any] | None,
    headers: Mapping[str, str],
) -> Message:
    """Return the message of a parsed request. Raises RequestProblem, FormErrors. Pure."""
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


def _empties(
    body: Mapping[str, Any], message: Descriptor, at: str = ""
) -> Iterator[FieldViolation]:
    """Yield empty values in a body that would count as missing. `at`: path of the body."""
    fields = _fields(message)
    for key, value in body.items():
        field = fields.get(key)  # None inside a payload
        if field is None:
            continue
        here, of = f"{at}{key}", field.message_type
        if value == "" and (problem := if_empty(field)):
            yield FieldViolation(here, problem)
        elif of is not None and isinstance(value, Mapping):
            yield from _empties(value, of, f"{here}.")
        elif of is not None and isinstance(value, list):
            for place, one in enumerate(value):
                if isinstance(one, Mapping):
                    yield from _empties(one, of, f"{here}[{place}].")


@cache
def _fields(message: Descriptor) -> Mapping[str, FieldDescriptor]:
    return {name: one for one in message.fields for name in (one.name, one.json_name)}


def _refusal(violations: Sequence[FieldViolation]) -> RequestProblem:
    return wrong("; ".join(f"{it.field}: {it.problem}" for it in violations), violations=violations)


def _of_query(cls: type[Message], found: RouteMatch, query: Iterable[tuple[str, str]]) -> Message:
    """Return the fields in parameters; dots separate nested fields."""
    form: dict[str, Any] = {}
    refused: list[FieldViolation] = []
    part = found.route.body
    inner = None if part in ("", WHOLE) else type(getattr(cls(), part))
    for key, value in query:
        field = _field(cls, key)
        if field is None and inner is not None and _field(inner, key) is not None:
            refused.append(FieldViolation(key, "must be in the body, not in the address"))
        elif field is None:
            refused.append(FieldViolation(key, "unknown parameter"))
        elif part in (WHOLE, field.name):
            refused.append(FieldViolation(key, "must be in the body, not in the address"))
        elif not value and field.type == field.TYPE_STRING and field.name not in MAY_BE_EMPTY:
            what = "an id" if field.name in IDS else "a key" if field.name == KEYED else "a value"
            refused.append(FieldViolation(key, f"is empty: give {what}, or leave it out"))
        else:
            _enter(form, key, value, field)
    if refused:
        raise _refusal(refused)
    return from_json(form, cls, strings=True)


def _field(cls: type[Message], key: str) -> FieldDescriptor | None:
    return _fields(cast("Descriptor", cls.DESCRIPTOR)).get(key.partition(".")[0])


def _enter(form: dict[str, Any], key: str, value: str, field: FieldDescriptor) -> None:
    if field.message_type is not None and field.message_type.name == "FieldMask":
        form[key] = {"paths": [_snake(path) for path in value.split(",") if path]}
    elif field.is_repeated:
        form.setdefault(key, []).append(value)
    elif not nest(form, key.split("."), value):
        raise _refusal([FieldViolation(key, "the parameter is given twice")])


def _snake(path: str) -> str:
    """Return a path of a mask in proto names: `retry.maxAttempts` → `retry.max_attempts`."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", path).lower()


def nest(form: dict[str, Any], path: list[str], value: Any) -> bool:
    """Set a nested value; False if it, or a parent, already has a value."""
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
        nest(form, variable.split("."), value)
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
    """Return whether an `If-Match` names tags, not `*`. Raises RequestProblem."""
    if tags.strip() == "*":
        return False
    if not _TAGS.fullmatch(tags):
        problem = "the value must be a list of entity tags, or *"
        raise _refusal([FieldViolation("If-Match", problem)])
    return True


def _untaken(header: str) -> RequestProblem:
    return _refusal([FieldViolation(header, "not supported by this call; leave it out")])


def _put(message: Message, part: Message, source: str) -> None:
    _agree(message, part, source)
    message.MergeFrom(part)


def _agree(message: Message, part: Message, source: str, at: str = "") -> None:
    for field, value in part.ListFields():
        here = f"{at}.{field.json_name}" if at else field.json_name
        own = getattr(message, field.name)
        if field.message_type is not None and not field.is_repeated:
            _agree(own, value, source, here)
        elif not field.is_repeated and own and own != value:
            raise wrong(
                f"{here}: the {source} has {value!r}, but another part of the request has {own!r}:"
                " give the same value",
                violations=[FieldViolation(here, f"differs from the {source}")],
            )


def _set_mask(message: Message, found: RouteMatch, body: Mapping[str, Any] | None) -> None:
    if found.route.verb != "PATCH" or body is None or MASK not in message.DESCRIPTOR.fields_by_name:
        return
    mask, kind = getattr(message, MASK), type(getattr(message, found.route.body))
    if mask.paths and "*" not in mask.paths:
        mask.paths.extend(_beside_overlap(body, mask.paths))
        found_keys = _unmasked(body, kind.DESCRIPTOR, frozenset(mask.paths))
        if unmasked := [FieldViolation(key, "isn't in updateMask") for key in found_keys]:
            raise _refusal(unmasked)
    if not mask.paths:
        named = named_fields(body, kind)
        mask.paths.extend(name for name in named if name not in IDENTITY)
    if not mask.paths:
        raise wrong(
            "the request's body has no field to change: give at least one field",
            reason="BAD_UPDATE_MASK",
        )


def _beside_overlap(body: Mapping[str, Any], paths: Collection[str]) -> list[str]:
    """Return `overlap_limit` for `{"overlap": {"allow": 3}}`, which sets two fields."""
    both = isinstance(body.get("overlap"), Mapping) and "overlap" in paths
    return ["overlap_limit"] if both and "overlap_limit" not in paths else []


def _unmasked(
    body: Mapping[str, Any],
    message: Descriptor,
    paths: Collection[str],
    at: str = "",
    path: str = "",
) -> Iterator[str]:
    """Yield keys of a body that aren't in these paths. `at`, `path`: path of the body, in its own
    keys and in names of fields.
    """
    fields = _fields(message)
    for key, value in body.items():
        field = fields.get(key)  # None inside a payload
        here = f"{path}{field.name}" if field is not None else ""
        if here in paths or (not path and here in IDENTITY):
            continue
        of = None if field is None or field.is_repeated else field.message_type
        within = any(one.startswith(f"{here}.") for one in paths)
        if within and isinstance(value, Mapping) and of is not None:
            yield from _unmasked(value, of, paths, f"{at}{key}.", f"{here}.")
        else:
            yield f"{at}{key}"
