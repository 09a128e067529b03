"""Tables of what the fields of requests may hold, beyond their proto types. Calls check them, and
OpenAPI documents them (`web/rest/openapi`). Pure.

Invariant: a request that breaks a rule of these tables is rejected.
"""

from collections.abc import Mapping
from typing import Final

from google.protobuf.descriptor import FieldDescriptor

from schedd.api.errors import cut, wrong
from schedd.core.ids import Id
from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class Named:
    """The kind of object that an id names, and the command that lists such ids."""

    what: str
    listed: str


@dataclass(frozen=True, slots=True)
class Whole:
    """Whole numbers from `low` to `high`; `meaning` is for documentation."""

    low: int
    high: int
    meaning: str

    def __contains__(self, number: int) -> bool:
        return self.low <= number <= self.high


_RUN: Final = Named("run", "run list")
IDS: Final[Mapping[str, Named]] = {
    "run_id": _RUN,
    "run_ids": _RUN,
    "parent_run_id": _RUN,
    "backfill_id": Named("backfill", "job backfills"),
    "redrive_id": Named("redrive", "dlq redrives"),
    "token_id": Named("token", "auth token list"),
}
"""Fields that hold an id."""
MAY_BE_EMPTY: Final = frozenset(
    {
        "namespace",
        "filter",
        "page_token",
        "resume_after",
        "note",
        "reason",
        "request_id",
        "time_zone",
    }
)
"""Text parameters that may be empty: an empty one means the default. Any other empty parameter is
rejected as a mistake, because leaving it out would select all.
"""
CHOOSING: Final = frozenset({"job", "fingerprint", "member"})
"""Fields of a request's body that narrow its selection."""
CAREFUL: Final[Mapping[str, str]] = {"idempotency_key": "a key", "etag": "a value"}
"""Fields that guard a change against repetition or conflicts, with a word for their content."""

ROWS: Final = 50
MOST_ROWS: Final = 1_000
COMING: Final = 10
MOST_COMING: Final = 1_000
NUMBERS: Final[Mapping[str, Whole]] = {
    "page_size": Whole(
        0, (1 << 31) - 1, f"{ROWS} if it is 0 or isn't given; at most {MOST_ROWS:,} are returned."
    ),
    "count": Whole(0, MOST_COMING, f"{COMING} if it is 0 or isn't given."),
}
"""Fields that hold a number of requested objects."""

MISSING: Final[Mapping[str, str]] = {
    "schedd.v1.ExplainCronRequest.expression": "is missing: give a cron expression",
    "schedd.v1.ExplainInstantRequest.at": "is missing: give the scheduled time to explain",
}
"""Required fields, by full name, with the problem to report if they are missing."""


def if_empty(field: FieldDescriptor) -> str:
    """Return the problem of an empty text in this field of a body; empty: it is allowed."""
    if (holds := CAREFUL.get(field.name)) is not None:
        return f"is empty: give {holds}, or leave it out"
    of = field.containing_type
    chooses = of is not None and of.name.endswith("Request") and field.name in CHOOSING
    return "is empty: give a value, or leave it out" if chooses else ""


def id_of(field: str, text: str) -> Id:
    """Return the id in a field of IDS. Raises InvalidArgumentError."""
    try:
        return Id.parse(text)
    except ValueError:
        named = IDS[field]
        raise wrong(
            field,
            f"{cut(text)!r} isn't the id of a {named.what}",
            f"give an id as `schedctl {named.listed}` shows it; nothing was stored",
        ) from None
