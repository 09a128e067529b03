"""The base class of the values that calls return: frozen, with aware UTC times, created by
`reading`. The other modules of this package have the values by noun.

Invariants
- A value never changes; another call returns a new one.
- None means unknown, as in One JSON; a time is an aware datetime in UTC, a duration a timedelta.
- `value.message` is the complete wire message, `value.to_json()` its One JSON.
- A state or reason that is newer than this code is shown by its number; this isn't an error.
"""

from dataclasses import field
from typing import Any

from google.protobuf.message import Message

from schedkit.protojson import to_json
from schedkit.records import immutable_dataclass


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """Base of all values, with the message that it was made from."""

    message: Message = field(repr=False, compare=False)

    def to_json(self, *, snake: bool = False) -> dict[str, Any]:
        """Return its One JSON, with every key."""
        return to_json(self.message, snake=snake)
