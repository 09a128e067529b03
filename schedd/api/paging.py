"""Page tokens: where a list goes on, opaque to the caller, never an offset."""

import base64
import binascii
import json
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from schedd.api.errors import InvalidArgument, Violation

DEFAULT: Final = 50
MOST: Final = 1000
LARGEST: Final = 2**63 - 1
LONGEST_TOKEN: Final = 500


def size(asked: int) -> int:
    """How many rows a page has. Raises InvalidArgument."""
    if asked < 0:
        raise InvalidArgument(
            f"page_size is {asked}",
            reason="BAD_PAGE_SIZE",
            remedy=f"give 1 to {MOST}, or nothing for {DEFAULT}",
            violations=[Violation("page_size", "must not be negative")],
        )
    return min(asked or DEFAULT, MOST)


def token(at: datetime, row: UUID) -> str:
    """The token of the page that goes on past this row."""
    return base64.urlsafe_b64encode(json.dumps([at.isoformat(), str(row)]).encode()).decode()


def read_token(text: str) -> tuple[datetime, UUID] | None:
    """Where to go on; None: from the start. Raises InvalidArgument."""
    if not text:
        return None
    if len(text) > LONGEST_TOKEN:
        raise _bad_token()
    try:
        at, row = json.loads(base64.urlsafe_b64decode(text.encode()))
        instant = datetime.fromisoformat(at)
        return instant if instant.tzinfo else instant.replace(tzinfo=UTC), UUID(row)
    except (ValueError, TypeError, AttributeError, binascii.Error) as wrong:
        raise _bad_token() from wrong


def number_token(number: int) -> str:
    """The token of a list that goes by a number."""
    return base64.urlsafe_b64encode(str(number).encode()).decode()


def read_number_token(text: str) -> int | None:
    """The number to go on below; None: from the start. Raises InvalidArgument."""
    if not text:
        return None
    try:
        number = int(base64.urlsafe_b64decode(text.encode()))
    except (ValueError, binascii.Error) as wrong:
        raise _bad_token() from wrong
    if not 0 <= number <= LARGEST:
        raise _bad_token()
    return number


def _bad_token() -> InvalidArgument:
    return InvalidArgument(
        "page_token isn't one of this cluster's",
        reason="BAD_PAGE_TOKEN",
        remedy="give back next_page_token as it came, or nothing for the first page",
        violations=[Violation("page_token", "can't be read")],
    )
