"""Instants as people type them."""

from __future__ import annotations

from datetime import UTC, datetime

from schedd.web.pages.forms import wrong


def instant_of(text: str, field: str) -> datetime:
    """What a field for an instant says, in UTC where it names no offset. Raises InvalidArgument."""
    try:
        at = datetime.fromisoformat(text)
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        problem = f"{text[:60]!r} is no instant"
        raise wrong(field, problem, "for example 2030-01-01T02:00, or 2030-01-01") from None
