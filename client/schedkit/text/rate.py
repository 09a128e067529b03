"""Rates as people write them, `100/m`, `5/s`, `3/30s`: a number in any period of this length.

Invariants
- The period is one unit (`s`, `m`, `h`, `d`) or a duration. A caller that accepts a bare number
  gives its unit.
- `parse(render(n, d)) == (n, d)` for every count and every period of whole milliseconds, from 1.
"""

import re
from datetime import timedelta
from fractions import Fraction
from typing import Final

from schedkit.text import duration

_UNITS: Final = ("s", "m", "h", "d")
_COUNT: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?|\.[0-9]{1,9}")


def parse(text: str, *, bare: str = "") -> tuple[Fraction, timedelta]:
    """Return the number and the period. `bare`: the unit of a bare number; empty: rejected. Raises
    ValueError: with a message for the author of the text.
    """
    count, slash, per = (part.strip() for part in text.partition("/"))
    if not slash and bare:
        per = bare
    if not _COUNT.fullmatch(count) or not (per or not slash):
        raise _no_rate(text)
    if not per:
        raise ValueError(f"the rate {text!r} has no time: write for example {count}/s or {count}/m")
    try:
        span = duration.parse(f"1{per}" if per in _UNITS else per)
    except ValueError:
        raise _no_rate(text) from None
    if not Fraction(count) or not span:
        raise ValueError(
            f"the rate {text!r} isn't valid: give a count and a time above 0, such as 100/m"
        )
    return Fraction(count), span


def render(count: int, per: timedelta) -> str:
    """Return the shortest text that `parse` reads as this rate: `100/m`, `3/30s`. Raises
    ValueError: for a negative time. Parts of a millisecond are cut off.
    """
    span = duration.render(per)
    unit = span.removeprefix("1")
    return f"{count}/{unit if unit in _UNITS else span}"


def _no_rate(text: str) -> ValueError:
    return ValueError(f"{text!r} isn't a valid rate: write 100/s, 6/m or 90/h")
