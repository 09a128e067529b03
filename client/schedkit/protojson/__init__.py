"""The JSON form of messages ("One JSON") in REST, schedctl and events, in both directions.

    message ──to_json──▶ dict for json.dumps          write.py
    dict    ──from_json─▶ message, or all problems    read.py, scalars.py

Invariants
- Every key is always present. An unknown value is null: an unset message or optional, an empty
  string, an UNSPECIFIED enum, a fencing token 0.
- A list or map is never null. A number is null only if it is unset in an optional field, or if
  another field says that it isn't known.
- `from_json(to_json(m), type(m)) == m`, to the millisecond, except for a string payload of invalid
  JSON. Null and absent mean the same.
- Reading collects every problem, each with its path. Unknown keys are never ignored.
"""

from schedkit.protojson.problems import FormErrors, Path, Problem
from schedkit.protojson.read import from_json, named_fields
from schedkit.protojson.scalars import (
    PlainScalar,
    duration_text,
    enum_word,
    instant_text,
    rate_text,
)
from schedkit.protojson.write import UNKNOWN, fields_to_json, payload_value, to_json
from schedkit.text import json_text as standard

__all__ = [
    "UNKNOWN",
    "FormErrors",
    "Path",
    "PlainScalar",
    "Problem",
    "duration_text",
    "enum_word",
    "fields_to_json",
    "from_json",
    "instant_text",
    "named_fields",
    "payload_value",
    "rate_text",
    "standard",
    "to_json",
]
