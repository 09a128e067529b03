"""Page tokens: where a list goes on, opaque to the caller, never an offset.

Invariant: a token goes with the question that it was given for, whatever the size of its pages;
with another one it is refused.
"""

import base64
import hashlib
import json
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from google.protobuf.message import Message

from schedd.api.errors import InvalidArgument, Violation
from schedd.api.field_bounds import COMING, MOST_COMING, MOST_ROWS, NUMBERS, ROWS

LARGEST: Final = 2**63 - 1
LONGEST_TOKEN: Final = 500


def size(asked: int) -> int:
    """How many rows a page has. Raises InvalidArgument."""
    if asked not in NUMBERS["page_size"]:
        raise InvalidArgument(
            f"page_size is {asked}",
            reason="BAD_PAGE_SIZE",
            remedy=f"give 1 to {MOST_ROWS}, or nothing for {ROWS}",
            violations=[Violation("page_size", "must not be negative")],
        )
    return min(asked or ROWS, MOST_ROWS)


def coming(asked: int) -> int:
    """How many instants are told of those to come. Raises InvalidArgument."""
    if asked not in NUMBERS["count"]:
        raise InvalidArgument(
            f"count is {asked}",
            reason="BAD_COUNT",
            remedy=f"give 1 to {MOST_COMING}, or nothing for {COMING}",
            violations=[Violation("count", f"must be from 0 to {MOST_COMING}")],
        )
    return asked or COMING


def listing(name: str, request: Message) -> str:
    """The list that a request asks for: with other filters, or of another namespace, it is another
    one of the same name.
    """
    asked: Message = type(request)()
    asked.CopyFrom(request)
    for field in ("page_size", "page_token"):
        asked.ClearField(field)
    said = asked.SerializeToString(deterministic=True)
    return f"{name}/{hashlib.sha256(said).hexdigest()[:16]}" if said else name


def token(listing: str, at: datetime, row: UUID) -> str:
    """The token of the page of `listing` that goes on past this row."""
    return _encode([listing, at.isoformat(), str(row)])


def read_token(listing: str, text: str) -> tuple[datetime, UUID] | None:
    """Where to go on in `listing`; None: from the start. Raises InvalidArgument."""
    if not text:
        return None
    try:
        of, at, row = _decode(text)
        instant, number = _instant(at), UUID(row)
    except (ValueError, TypeError, AttributeError, OverflowError) as wrong:
        raise _bad_token() from wrong
    if of != listing:
        raise _of_another(of, listing)
    return instant, number


def reached(text: str) -> datetime | None:
    """How far back the page has come that was given this token; None: to the end."""
    return _instant(_decode(text)[1]) if text else None


def number_token(listing: str, number: int) -> str:
    """The token of a list that goes by a number."""
    return _encode([listing, number])


def read_number_token(listing: str, text: str) -> int | None:
    """The number to go on below; None: from the start. Raises InvalidArgument."""
    if not text:
        return None
    try:
        of, number = _decode(text)
    except (ValueError, TypeError) as wrong:
        raise _bad_token() from wrong
    if of != listing:
        raise _of_another(of, listing)
    if type(number) is not int or not 0 <= number <= LARGEST:
        raise _bad_token()
    return number


def name_token(listing: str, name: str) -> str:
    """The token of a list that goes by a name."""
    return _encode([listing, name])


def read_name_token(listing: str, text: str) -> str:
    """The name to go on past; empty: from the start. Raises InvalidArgument."""
    if not text:
        return ""
    try:
        of, name = _decode(text)
        name.encode()
    except (ValueError, TypeError, AttributeError) as wrong:
        raise _bad_token() from wrong
    if of != listing:
        raise _of_another(of, listing)
    if not isinstance(name, str) or "\0" in name:
        raise _bad_token()
    return name


def _instant(text: str) -> datetime:
    """In UTC, whatever offset it names. Raises ValueError, and OverflowError for what would be no
    instant of the years 1 to 9999 there.
    """
    at = datetime.fromisoformat(text)
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)


def _encode(parts: list[str | int]) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()


def _decode(text: str) -> Any:
    """What was encoded. Raises ValueError."""
    if len(text) > LONGEST_TOKEN:
        raise ValueError("too long")
    return json.loads(base64.b64decode(text.encode(), altchars=b"-_", validate=True))


def _bad_token() -> InvalidArgument:
    return _refusal("page_token isn't one of this cluster's", "can't be read")


def _of_another(of: object, listing: str) -> InvalidArgument:
    """The refusal for a token of another list. What is past the slash is what the list is asked
    by.
    """
    if isinstance(of, str) and of.partition("/")[0] == listing.partition("/")[0]:
        problem = "goes with the filter that it was given for, and this one is another"
    else:
        problem = "is of another list"
    return _refusal(f"page_token {problem}", problem)


def _refusal(message: str, problem: str) -> InvalidArgument:
    return InvalidArgument(
        message,
        reason="BAD_PAGE_TOKEN",
        remedy="give back the token of the last page as it came, or nothing for the first page",
        violations=[Violation("page_token", problem)],
    )
