"""One JSON: how a message of the wire stands in REST, in schedctl and in events, both ways.

    message ──to_json──▶ dict for json.dumps          write.py
    dict    ──from_json─▶ message, or all problems    read.py, scalars.py

Invariants
- Every key is always there; what is unknown is null: an unset message or optional, an empty
  string, an UNSPECIFIED enum, a fencing token 0. A list or map is never null, a number never
  but where the wire can tell it from unset, or another field says that it isn't known.
- `from_json(to_json(m), type(m)) == m`, to the millisecond, but for a string payload of invalid
  JSON. Null and absent mean the same.
- Reading collects every problem, each with its path; nothing unknown is ever ignored.
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
