"""What keeps instants from running, in words: a row of the ledger says it, and explain reads it.

Each is a noun: it stands behind "skipped by" and "missed". A calendar says its own (`calendars`),
and of a run that was in the way the store writes `run ID` (`store/dispatch/overlap.py`).
"""

from datetime import UTC, datetime


def time_text(instant: datetime) -> str:
    """Return a time for use in a sentence: RFC 3339 in UTC, with milliseconds if it has any."""
    written = instant.astimezone(UTC).isoformat(timespec="milliseconds")
    return written.replace(".000+00:00", "Z").replace("+00:00", "Z")


def pause(by: str, since: datetime | None, note: str, *, of: str = "") -> str:
    """Return a pause (of the job, or `of` something else) as text: by whom, since when, why."""
    said = "a pause" + (f" of {of}" if of else "") + (f" by {by}" if by else "")
    return said + (f" since {time_text(since)}" if since else "") + (f": {note}" if note else "")


def edit(by: str) -> str:
    """Who gave the job another schedule."""
    return f"an edit by {by}"


def deletion(by: str) -> str:
    """Who deleted the job."""
    return f"its job's deletion by {by}"
