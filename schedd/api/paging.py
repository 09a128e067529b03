"""Page tokens: the position at which a list continues. Opaque to the caller, never an offset.

Invariant: a token is valid only for the list and filter it was issued for, with any page size.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message

from schedd.api.errors import FieldViolation, InvalidArgumentError
from schedd.api.request_bounds import COMING, MOST_COMING, MOST_ROWS, NUMBERS, ROWS
from schedd.core.ids import Id

KeyId = TypeVar("KeyId")
K = TypeVar("K")
R = TypeVar("R")

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


def token(listing: str, *key: datetime | Id | str | int) -> str:
    """Return the token of the page of `listing` after the row with this key."""
    parts = [one.isoformat() if isinstance(one, datetime) else one for one in key]
    return base64.urlsafe_b64encode(json.dumps([listing, *parts], default=str).encode()).decode()


def read_token(listing: str, text: str, read_key: Callable[..., K]) -> K | None:
    """Return the key after which `listing` continues; None: from the start. `read_key` returns it
    from its parts in JSON, or raises ValueError. Raises InvalidArgumentError.
    """
    if not text:
        return None
    try:
        of, *parts = _decode(text)
        if isinstance(of, str) and of != listing:
            same = of.partition("/")[0] == listing.partition("/")[0]
            problem = f"was issued for {'a list with another filter' if same else 'another list'}"
            raise _refusal(f"page_token {problem}", problem)
        return read_key(*parts)
    except (ValueError, TypeError, AttributeError, OverflowError) as wrong:
        raise _refusal(
            "page_token is invalid: it can't be decoded", "the token can't be decoded"
        ) from wrong


def time_and(kind: Callable[[Id], KeyId]) -> Callable[[str, str], tuple[datetime, KeyId]]:
    """Return the reader of keys that are a time and an id of this kind."""
    return lambda at, row: (_instant(at), kind(Id.parse(row)))


def name_of(name: str) -> str:
    name.encode()
    if "\0" in name:
        raise ValueError("the name in the page token contains a NUL character")
    return name


def number_of(number: int) -> int:
    if type(number) is not int or not 0 <= number <= LARGEST:
        raise ValueError("the number in the page token is out of range")
    return number


class Paged(Generic[K]):
    """The page that a request asks for: at most `size` rows after the row with the key `after`."""

    def __init__(self, name: str, request: Any, read_key: Callable[..., K]) -> None:
        """`name`: of the list. Raises InvalidArgumentError."""
        self.size: Final = size(request.page_size)
        self.read_rows: Final = self.size + 1
        """Rows to read: one more shows that there is a next page."""
        self.listing: Final = listing(name, request)
        self.after: Final = read_token(self.listing, request.page_token, read_key)

    def cut(self, rows: Sequence[R], key_of: Callable[[R], tuple[Any, ...]]) -> tuple[Any, str]:
        """Return the rows of the page, and the token of the next page; empty: there is none."""
        page = rows[: self.size]
        return page, token(self.listing, *key_of(page[-1])) if rows[self.size :] else ""


def reached(text: str) -> datetime | None:
    """Return the time of the last row before this token; None: there is no next page."""
    return _instant(_decode(text)[1]) if text else None


def _instant(text: str) -> datetime:
    """Return the time in UTC. Raises ValueError, and OverflowError outside the years 1 to 9999."""
    at = datetime.fromisoformat(text)
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)


def _decode(text: str) -> Any:
    """Return the parts of a token. Raises ValueError."""
    if len(text) > LONGEST_TOKEN:
        raise ValueError("the page token is too long")
    return json.loads(base64.b64decode(text.encode(), altchars=b"-_", validate=True))


def _refusal(message: str, problem: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        message,
        reason="BAD_PAGE_TOKEN",
        remedy="send the page token of the last answer unchanged, or send no page token to get the"
        " first page",
        violations=[FieldViolation("page_token", problem)],
    )
