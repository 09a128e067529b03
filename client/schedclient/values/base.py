"""What calls return: frozen values with aware UTC instants, made by `reading`. What all have in
common is here; those of runs are in `run_values`, those of jobs in `job_values`, and so on.

Invariants
- A value never changes; asking again gives a new one.
- None means unknown, as in One JSON; an instant is an aware datetime in UTC, a length a timedelta.
- `value.message` is the wire's message in full, `value.to_json()` its One JSON.
- A state or reason that is newer than this code is shown by its number, never an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from schedkit.protojson import to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """Base of all values: the message it was made from."""

    message: Message = field(repr=False, compare=False)

    def to_json(self, *, snake: bool = False) -> dict[str, Any]:
        """One JSON of it, every key there."""
        return to_json(self.message, snake=snake)
