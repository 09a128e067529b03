"""Parse times that people type."""

from datetime import UTC, datetime

from schedd.web.pages.forms import wrong


def instant_of(text: str, field: str) -> datetime:
    """Return the time in a field, in UTC without an offset. Raises InvalidArgumentError."""
    try:
        at = datetime.fromisoformat(text)
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        problem = f"{text[:60]!r} isn't a valid time"
        raise wrong(field, problem, "give for example 2030-01-01T02:00 or 2030-01-01") from None
