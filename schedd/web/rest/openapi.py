"""OpenAPI 3.1, made from the routes and the descriptors of their messages. Pure.

    routes ──▶ paths: parameters, body, answers   ──▶ one document, served at /api/v1/openapi.json
    messages of the wire ──▶ schemas in One JSON: one for requests (`Job.Input`), one for answers,
                             in which every key is required

The schemas describe what `schedkit.protojson` reads and writes: names, nulls, texts for times and
durations. Alternative forms (snake_case keys, `1h30m`) are accepted and not listed.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias, cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from schedd.api.definitions.validation import NAME
from schedd.api.request_bounds import IDS, MAY_BE_EMPTY, MISSING, NUMBERS, if_empty
from schedd.web.rest.http_rules import WHOLE, Route
from schedd.web.rest.requests import HEADERS, NEWEST
from schedkit.bounds.rules import END_OF_TIME, FIRST_TIME
from schedkit.protojson.read import ONE_OR_MANY
from schedkit.protojson.scalars import bare_name
from schedkit.protojson.write import BASE64, MATCHES, TOKENS, UNKNOWN, is_map, map_value

# Schemas that don't follow from descriptors: values, ids, parameters, errors, security. Other
# limits are in `api/request_bounds`, which the calls check.

Schema: TypeAlias = dict[str, Any]

PROBLEM: Final = "Problem"

TEXT: Final[Schema] = {"type": "string"}
INSTANT: Final[Schema] = {
    "type": "string",
    "format": "date-time",
    "description": f"From {FIRST_TIME:%Y} to {END_OF_TIME:%Y}.",
}
DURATION: Final[Schema] = {"type": "string", "pattern": r"^-?[0-9]{1,12}(\.[0-9]{1,9})?s$"}
BYTES: Final[Schema] = {"type": "string", "contentEncoding": "base64"}
TOKEN: Final[Schema] = {"type": "string", "pattern": "^[0-9]{1,19}$"}

SPECIAL: Final[Mapping[str, Schema]] = {
    "google.protobuf.Timestamp": INSTANT,
    "google.protobuf.Duration": DURATION,
    "google.protobuf.FieldMask": {"type": "array", "items": TEXT},
    "schedd.v1.Rate": {"type": "string", "pattern": r"^[1-9][0-9]*/[0-9a-z]+$"},
    "schedd.v1.Payload": {
        "description": f"Any JSON; raw bytes as an object with the one key {BASE64}."
    },
}
"""Messages with a JSON form of their own."""

UUID: Final[Schema] = {"type": "string", "format": "uuid"}
WORD: Final[Schema] = TEXT | {"minLength": 1}
NAMESPACE: Final[Schema] = {"type": "string", "pattern": f"^({NAME.pattern})?$"}
ANSWERED_IDS: Final = frozenset({"job_id", "creator_id"})
"""Fields that are ids in answers. In requests only an edit checks them; otherwise they are ignored,
as all fields that the cluster sets.
"""


def whole(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


SCALARS: Final[Mapping[int, Schema]] = {
    FieldDescriptor.TYPE_STRING: TEXT,
    FieldDescriptor.TYPE_BYTES: BYTES,
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_DOUBLE: {"type": "number"},
    FieldDescriptor.TYPE_FLOAT: {"type": "number"},
    FieldDescriptor.TYPE_INT32: whole(-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_INT64: whole(-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_UINT32: whole(0, (1 << 32) - 1),
    FieldDescriptor.TYPE_UINT64: whole(0, (1 << 64) - 1),
}


def scalar(field: FieldDescriptor, *, written: bool) -> Schema:
    """Return the schema of a scalar field; `written`: in requests."""
    if field.name in TOKENS:
        return TOKEN
    if written and if_empty(field):
        return WORD
    holds_id = field.name in IDS or (field.name in ANSWERED_IDS and not written)
    return UUID if holds_id else SCALARS[field.type]


def asked_by(field: FieldDescriptor) -> Schema:
    if field.name == "namespace":
        return NAMESPACE
    if (number := NUMBERS.get(field.name)) is not None:
        return whole(number.low, number.high) | {"description": number.meaning}
    schema = scalar(field, written=True)
    return WORD if schema is TEXT and field.name not in MAY_BE_EMPTY else schema


WAYS_TO_WRITE: Final[Mapping[str, Schema]] = {
    "schedd.v1.Job.overlap": {
        "type": "object",
        "properties": {"allow": whole(1, (1 << 31) - 1)},
        "required": ["allow"],
        "additionalProperties": False,
    },
    **dict.fromkeys(ONE_OR_MANY, TEXT),
}
"""Fields with an additional JSON form."""

PROBLEM_SCHEMA: Final[Schema] = {
    "type": "object",
    "description": "The error (RFC 9457); programs use `reason`.",
    "properties": {
        "type": TEXT,
        "title": TEXT,
        "status": {"type": "integer"},
        "detail": TEXT,
        "reason": TEXT,
        "remedy": {"type": ["string", "null"]},
        "violations": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"field": TEXT, "problem": TEXT},
                "required": ["field", "problem"],
            },
        },
    },
    "required": ["type", "title", "status", "detail", "reason", "remedy", "violations"],
}

BEARER: Final = "accessToken"
CERTIFICATE: Final = "certificate"
SCHEMES: Final[Mapping[str, Schema]] = {
    BEARER: {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "schedd_…",
        "description": "An access token, from `schedctl auth token create`.",
    },
    CERTIFICATE: {
        "type": "mutualTLS",
        "description": "A user certificate, from `schedctl auth issue user`.",
    },
}
"""Authentication schemes. Members without TLS don't authenticate."""

INPUT: Final = ".Input"
EVENTS: Final = "text/event-stream"
JSON: Final = "application/json"


def document(
    routes: Iterable[Route],
    version: str,
    *,
    statuses: Mapping[str, int],
    streaming: Iterable[str] = (),
    words: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the whole document. `statuses`: success statuses other than 200, by full name of the
    call; `streaming`: full names of calls that stream events; `words`: operations that aren't
    calls, by path and method. If a call has the same operation, bodies and answers are merged.
    """
    schemas = _Schemas()
    streams, seen = frozenset(streaming), set[str]()
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        name = route.method.full_name
        operation = _operation(route, schemas, statuses.get(name, 200), events=name in streams)
        if name in seen:  # another way to the same call
            operation["operationId"] += "By" + route.template.rpartition("/")[2].capitalize()
        seen.add(name)
        paths.setdefault(_path(route), {})[route.verb.lower()] = operation
    for path, verbs in (words or {}).items():
        for verb, operation in verbs.items():
            there = paths.setdefault(path, {})
            there[verb] = _beside(there[verb], operation) if verb in there else operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "schedd",
            "version": version,
            "description": "Distributed job scheduler. Semantics of fields: docs/semantics.md.",
        },
        "security": [{BEARER: []}, {CERTIFICATE: []}, {}],
        "paths": paths,
        "components": {
            "securitySchemes": SCHEMES,
            "schemas": {PROBLEM: PROBLEM_SCHEMA, **dict(sorted(schemas.made.items()))},
            "responses": {
                PROBLEM: {
                    "description": "The request was rejected, or failed.",
                    "content": {"application/problem+json": {"schema": _ref(PROBLEM)}},
                }
            },
        },
    }


def answered(status: int, schema: Schema, headers: Schema | None = None) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "Done.", "content": {JSON: {"schema": schema}}}
    if headers:
        success["headers"] = headers
    return {str(status): success, "default": {"$ref": f"#/components/responses/{PROBLEM}"}}


def asked(schema: Schema) -> dict[str, Any]:
    return {"required": True, "content": {JSON: {"schema": schema}}}


class _Schemas:
    def __init__(self) -> None:
        self.made: dict[str, Schema] = {}

    def ref(self, message: Descriptor, *, written: bool) -> Schema:
        """Return the schema of a message; `written`: in requests."""
        if (special := SPECIAL.get(message.full_name)) is not None:
            return special
        name = message.full_name.removeprefix("schedd.v1.") + (INPUT if written else "")
        if name not in self.made:
            self.made[name] = {}  # a message may be recursive
            self.made[name] = self._object(message, written)
        return _ref(name)

    def field(self, field: FieldDescriptor, *, written: bool) -> Schema:
        """Return the schema of a field, nullable where null is allowed."""
        if is_map(field):
            values = self._single(map_value(field), written)
            schema: Schema = {"type": "object", "additionalProperties": values}
        elif field.is_repeated:
            schema = self._list(field, written)
        else:
            schema = self._single(field, written)
            if not written and not _may_be_unknown(field):
                return schema
        if written:
            if (other := WAYS_TO_WRITE.get(field.full_name)) is not None:
                schema = {"anyOf": [schema, other]}
        elif is_map(field) or field.is_repeated:
            return schema
        return _or_null(schema)

    def _object(self, message: Descriptor, written: bool) -> Schema:
        schema: Schema = {
            "type": "object",
            "properties": {
                one.json_name: self.field(one, written=written) for one in message.fields
            },
        }
        if written:
            return schema | {"additionalProperties": False}
        return schema | {"required": [one.json_name for one in message.fields]}

    def _list(self, field: FieldDescriptor, written: bool) -> Schema:
        of = field.message_type
        items = self._single(field, written)
        if of is None or of.full_name not in MATCHES:
            return {"type": "array", "items": items}
        texts = {"type": "array", "items": TEXT, "minItems": 1}
        by_key = {"type": "object", "additionalProperties": {"anyOf": [TEXT, texts]}}
        return {"anyOf": [by_key, {"type": "array", "items": items}]} if written else by_key

    def _single(self, field: FieldDescriptor, written: bool) -> Schema:
        if field.message_type is not None:
            return self.ref(field.message_type, written=written)
        if field.enum_type is not None:
            return _enum(field.enum_type)
        return scalar(field, written=written)


def _operation(route: Route, schemas: _Schemas, status: int, *, events: bool) -> dict[str, Any]:
    method = route.method
    words = [word.lower() for word in re.findall("[A-Z][a-z]*", method.name)]
    operation: dict[str, Any] = {
        "operationId": method.name[0].lower() + method.name[1:],
        "tags": [method.containing_service.name.removesuffix("Service")],
        "summary": " ".join(words).capitalize(),
        "parameters": [*_parameters(route)],
    }
    if route.body == WHOLE:
        schema = schemas.ref(method.input_type, written=True)
        operation["requestBody"] = asked(schema) | {"required": False}
    elif route.body:
        field = method.input_type.fields_by_name[route.body]
        assert field.message_type is not None, "a body is a message"
        schema = schemas.ref(field.message_type, written=True)
        operation["requestBody"] = asked(schema) | {"required": False}
    answer = schemas.ref(method.output_type, written=False)
    if events:
        operation["responses"] = answered(200, answer)
        operation["responses"]["200"] |= {
            "description": "Server-sent events with such an object as data; the last event is"
            " `end`, or `error` with a problem.",
            "content": {EVENTS: {"schema": _stream(answer)}},
        }
        if NEWEST in method.input_type.fields_by_name:
            operation["responses"]["204"] = {"description": "The stream has no further events."}
    else:
        headers = {"ETag": {"schema": TEXT}} if method.output_type.name == "Job" else None
        operation["responses"] = answered(status, answer, headers)
    return operation


def _stream(answer: Schema) -> Schema:
    last = {"type": "object", "additionalProperties": False}
    return TEXT | {
        "contentMediaType": EVENTS,
        "contentSchema": {"anyOf": [answer, last, _ref(PROBLEM)]},
    }


def _parameters(route: Route) -> Iterator[dict[str, Any]]:
    request = route.method.input_type
    for variable in route.variables:
        yield {
            "name": _variable(variable),
            "in": "path",
            "required": True,
            "schema": UUID if variable in IDS else {**TEXT, "minLength": 1},
        }
    for header, field in HEADERS.items():
        if field in request.fields_by_name:
            schema = {**TEXT, "minLength": 1} if field == "etag" else TEXT
            yield {"name": header, "in": "header", "schema": schema}
    if route.body == WHOLE:
        return
    taken = {route.body, *route.variables}
    for one in request.fields:
        if one.name not in taken:
            yield from _query(one, one.json_name)


def _path(route: Route) -> str:
    """Return its template with short names of variables: `{job}` for `{job.name}`."""
    return re.sub(r"\{([^}]+)\}", lambda found: f"{{{_variable(found[1])}}}", route.template)


def _variable(path: str) -> str:
    return path.partition(".")[0]


def _query(field: FieldDescriptor, name: str) -> Iterator[dict[str, Any]]:
    of = field.message_type
    if of is not None and of.full_name == "google.protobuf.FieldMask":
        yield {"name": name, "in": "query", "schema": TEXT}
    elif of is not None and of.full_name not in SPECIAL:
        if not field.is_repeated:
            for inner in of.fields:
                yield from _query(inner, f"{name}.{inner.json_name}")
    else:
        if field.enum_type is not None:
            schema = _enum(field.enum_type)
        else:
            schema = SPECIAL[of.full_name] if of is not None else asked_by(field)
        if field.is_repeated:
            schema = {"type": "array", "items": schema}
        found = {"name": name, "in": "query", "schema": schema}
        yield found | {"required": True} if field.full_name in MISSING else found


def _beside(call: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    merged = dict(call)
    merged["requestBody"] = asked({"anyOf": [_schema(one["requestBody"]) for one in (call, other)]})
    responses = dict(call["responses"])
    for status, answer in other["responses"].items():
        if status in responses and "content" in answer:
            either = {"anyOf": [_schema(responses[status]), _schema(answer)]}
            responses[status] = {**responses[status], "content": {JSON: {"schema": either}}}
    return merged | {"responses": responses}


def _schema(holder: Mapping[str, Any]) -> Schema:
    return cast("Schema", holder["content"][JSON]["schema"])


def _enum(enum: EnumDescriptor) -> Schema:
    return {"type": "string", "enum": [bare_name(one) for one in enum.values if one.number]}


def _may_be_unknown(field: FieldDescriptor) -> bool:
    """Return whether the field may be null in an answer."""
    return (
        field.has_presence
        or field.enum_type is not None
        or field.name in TOKENS
        or field.full_name in UNKNOWN
        or field.type == FieldDescriptor.TYPE_STRING
    )


def _or_null(schema: Schema) -> Schema:
    if not schema.keys() & {"type", "anyOf", "$ref"}:
        return schema  # anything, null among it
    if isinstance(schema.get("type"), str):
        nullable = {**schema, "type": [schema["type"], "null"]}
        return nullable | {"enum": [*schema["enum"], None]} if "enum" in schema else nullable
    return {"anyOf": [schema, {"type": "null"}]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
