"""Durations as people write them: `90s`, `1h30m`, `250ms`, `2d`.

Invariants
- A unit is always written: a bare number is rejected, because its unit is unknown.
- Units come in descending order, each once; so one text has one meaning.
- `parse(render(d)) == d` for every duration of whole milliseconds from zero up.
"""

import re
from datetime import timedelta
from typing import Final

_UNITS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
"""Milliseconds in each unit, greatest first."""

_READ: Final = {"w": 604_800_000, **_UNITS}
"""Accepted units. Weeks are rendered as days."""

_SHAPE: Final = re.compile("".join(rf"(?:(?P<{unit}>[0-9]{{1,15}}){unit})?" for unit in _READ))
_BARE: Final = re.compile(r"[0-9]+(\.[0-9]+)?")


def parse(text: str) -> timedelta:
    """Parse a duration. Raises ValueError: with a message for the author of the text."""
    trimmed = text.strip()
    match = _SHAPE.fullmatch(trimmed)
    if match is None or not trimmed:
        if _BARE.fullmatch(trimmed):
            raise ValueError(
                f"the duration {text!r} needs a unit, such as {trimmed}s or {trimmed}m"
            )
        raise ValueError(
            f"{text!r} isn't a valid duration; write whole numbers with units w, d, h, m, s, ms, "
            "greatest first, such as 90s, 1h30m or 250ms"
        )
    millis = sum(int(match[unit] or 0) * size for unit, size in _READ.items())
    try:
        return timedelta(milliseconds=millis)
    except OverflowError:
        raise ValueError(
            f"the duration {text!r} is too long: give less than 10,000 years"
        ) from None


def render(duration: timedelta) -> str:
    """Return the shortest text that `parse` reads as this duration: `1h30m`. Zero is `0s`. Raises
    ValueError: for a negative duration. Parts of a millisecond are cut off.
    """
    left = duration // timedelta(milliseconds=1)
    if left < 0:
        raise ValueError(f"the duration {duration!r} isn't valid: it must not be negative")
    parts = []
    for unit, size in _UNITS.items():
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
