"""What the fields of requests may hold where the wire leaves more open: calls check by these
tables, and OpenAPI tells by them (`web/rest/openapi`). Pure.

Invariant: nothing stands here that isn't refused otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from google.protobuf.descriptor import FieldDescriptor

from schedd.api.errors import InvalidArgument, Violation, cut


@dataclass(frozen=True, slots=True)
class Named:
    """What an id names, and the command that shows ids of the kind."""

    what: str
    listed: str


@dataclass(frozen=True, slots=True)
class Whole:
    """Whole numbers from `low` to `high`, in words what they mean."""

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
"""Fields that hold the id of something."""
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
"""Texts of which an empty one says as much as none: the usual, all, from the beginning, nothing to
be told. Any other that is a parameter, and empty, is taken for a mistake: left out it would choose
all.
"""
CHOOSING: Final = frozenset({"job", "fingerprint", "member"})
"""Fields of a request's body by which less than all is chosen."""
CAREFUL: Final[Mapping[str, str]] = {"idempotency_key": "a key", "etag": "a value"}
"""Fields of any message by which a change is made once, or to what was seen alone, and what they
hold.
"""

ROWS: Final = 50
MOST_ROWS: Final = 1_000
COMING: Final = 10
MOST_COMING: Final = 1_000
NUMBERS: Final[Mapping[str, Whole]] = {
    "page_size": Whole(
        0, (1 << 31) - 1, f"{ROWS} if it is 0 or isn't given; at most {MOST_ROWS:,} come."
    ),
    "count": Whole(0, MOST_COMING, f"{COMING} if it is 0 or isn't given."),
}
"""Fields that hold a number of things that are asked for."""

MISSING: Final[Mapping[str, str]] = {
    "schedd.v1.ExplainCronRequest.expression": "is missing: give a cron expression",
    "schedd.v1.ExplainInstantRequest.at": "is missing: give the instant to explain",
}
"""Fields, by full name, that a request can't do without: what is said where they are missing."""


def if_empty(field: FieldDescriptor) -> str:
    """What is wrong with this field of a body where it is an empty text; empty: it says no less."""
    if (holds := CAREFUL.get(field.name)) is not None:
        return f"is empty: give {holds}, or leave it out"
    of = field.containing_type
    chooses = of is not None and of.name.endswith("Request") and field.name in CHOOSING
    return "is empty: say which, or leave it out" if chooses else ""


def id_of(field: str, text: str) -> UUID:
    """The id that a field, one of IDS, holds. Raises InvalidArgument."""
    try:
        return UUID(text)
    except ValueError:
        named = IDS[field]
        problem = f"{cut(text)!r} isn't the id of a {named.what}"
        raise InvalidArgument(
            f"{field}: {problem}",
            reason="INVALID_FIELD",
            remedy=f"give an id as `schedctl {named.listed}` shows it; nothing was stored",
            violations=[Violation(field, problem)],
        ) from None
