"""Schemas of OpenAPI that don't follow from descriptors: values, ids, parameters, errors, security.

Other limits are in `api/field_bounds`, which the calls check.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import FieldDescriptor

from schedd.api.definitions.validation import NAME
from schedd.api.field_bounds import IDS, MAY_BE_EMPTY, NUMBERS, if_empty
from schedkit.bounds.rules import END_OF_TIME, FIRST_TIME
from schedkit.protojson.read import ONE_OR_MANY
from schedkit.protojson.write import BASE64, TOKENS

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
        "description": f"Any JSON; raw bytes as an object with the one key {BASE64}.",
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
