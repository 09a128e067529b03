"""Texts for why a scheduled time didn't run. The run's row has the text, and explain shows it.

Each text is a noun phrase, to follow "skipped by" or "missed". Calendars have their own text
(`calendars`). For a run that blocked this one, the store writes `run ID`
(`store/dispatch/overlap.py`).
"""

from datetime import UTC, datetime


def time_text(instant: datetime) -> str:
    """Return a time for use in a sentence: RFC 3339 in UTC, with milliseconds if it has any."""
    written = instant.astimezone(UTC).isoformat(timespec="milliseconds")
    return written.replace(".000+00:00", "Z").replace("+00:00", "Z")


def pause(by: str, since: datetime | None, note: str, *, of: str = "") -> str:
    """Return the text for a pause of the job, or `of` something else: by whom, since when, why."""
    said = "a pause" + (f" of {of}" if of else "") + (f" by {by}" if by else "")
    return said + (f" since {time_text(since)}" if since else "") + (f": {note}" if note else "")


def edit(by: str) -> str:
    return f"an edit by {by}"


def deletion(by: str) -> str:
    return f"its job's deletion by {by}"
