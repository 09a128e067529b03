"""Page tokens: the position at which a list continues. Opaque to the caller, never an offset.

Invariant: a token is valid only for the list and filter it was issued for, with any page size.
"""

import base64
import hashlib
import json
from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf.message import Message

from schedd.api.errors import FieldViolation, InvalidArgumentError
from schedd.api.field_bounds import COMING, MOST_COMING, MOST_ROWS, NUMBERS, ROWS
from schedd.core.ids import Id

LARGEST: Final = 2**63 - 1
LONGEST_TOKEN: Final = 500


def size(asked: int) -> int:
    """Return the number of rows of a page. Raises InvalidArgumentError."""
    if asked not in NUMBERS["page_size"]:
        raise InvalidArgumentError(
            f"page_size is {asked}, but must not be negative",
            reason="BAD_PAGE_SIZE",
            remedy=f"give 1 to {MOST_ROWS} rows, or leave page_size out for {ROWS}",
            violations=[FieldViolation("page_size", "must not be negative")],
        )
    return min(asked or ROWS, MOST_ROWS)


def coming(asked: int) -> int:
    """Return how many future scheduled times to list. Raises InvalidArgumentError."""
    if asked not in NUMBERS["count"]:
        raise InvalidArgumentError(
            f"count must be from 0 to {MOST_COMING}, not {asked}",
            reason="BAD_COUNT",
            remedy=f"give 1 to {MOST_COMING}, or leave count out for {COMING}",
            violations=[FieldViolation("count", f"must be from 0 to {MOST_COMING}")],
        )
    return asked or COMING


def listing(name: str, request: Message) -> str:
    """Return the identity of the requested list: its name with a digest of its filters."""
    asked: Message = type(request)()
    asked.CopyFrom(request)
    for field in ("page_size", "page_token"):
        asked.ClearField(field)
    said = asked.SerializeToString(deterministic=True)
    return f"{name}/{hashlib.sha256(said).hexdigest()[:16]}" if said else name


def token(listing: str, at: datetime, row: Id) -> str:
    """Return the token of the page of `listing` after this row."""
    return _encode([listing, at.isoformat(), str(row)])


def read_token(listing: str, text: str) -> tuple[datetime, Id] | None:
    """Return the row after which `listing` continues; None: start. Raises InvalidArgumentError."""
    if not text:
        return None
    try:
        of, at, row = _decode(text)
        instant, number = _instant(at), Id.parse(row)
    except (ValueError, TypeError, AttributeError, OverflowError) as wrong:
        raise _bad_token() from wrong
    if of != listing:
        raise _of_another(of, listing)
    return instant, number


def reached(text: str) -> datetime | None:
    """Return the time of the last row before this token; None: there is no next page."""
    return _instant(_decode(text)[1]) if text else None


def number_token(listing: str, number: int) -> str:
    """Return the token of a list that is ordered by number."""
    return _encode([listing, number])


def read_number_token(listing: str, text: str) -> int | None:
    """Return the number below which the list continues; None: from the start. Raises
    InvalidArgumentError.
    """
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
    """Return the token of a list that is ordered by name."""
    return _encode([listing, name])


def read_name_token(listing: str, text: str) -> str:
    """Return the name after which the list continues; empty: from the start. Raises
    InvalidArgumentError.
    """
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
    """Return the time in UTC. Raises ValueError, and OverflowError outside the years 1 to 9999."""
    at = datetime.fromisoformat(text)
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)


def _encode(parts: list[str | int]) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()


def _decode(text: str) -> Any:
    """Return the parts of a token. Raises ValueError."""
    if len(text) > LONGEST_TOKEN:
        raise ValueError("too long")
    return json.loads(base64.b64decode(text.encode(), altchars=b"-_", validate=True))


def _bad_token() -> InvalidArgumentError:
    return _refusal("page_token is invalid: it can't be read", "can't be read")


def _of_another(of: object, listing: str) -> InvalidArgumentError:
    """Return the error for a token of another list, or of the same list with another filter."""
    if isinstance(of, str) and of.partition("/")[0] == listing.partition("/")[0]:
        problem = "was issued for a list with another filter"
    else:
        problem = "was issued for another list"
    return _refusal(f"page_token {problem}", problem)


def _refusal(message: str, problem: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        message,
        reason="BAD_PAGE_TOKEN",
        remedy="send the page token of the last answer unchanged, or send no page token to get the"
        " first page",
        violations=[FieldViolation("page_token", problem)],
    )
