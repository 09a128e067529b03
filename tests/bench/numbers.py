"""Numbers of the benchmarks' command lines; invalid ones are rejected before the start."""

from __future__ import annotations

import argparse
import math
from typing import Final

MOST_IN_A_CALL: Final = 500


def positive(text: str) -> int:
    """A whole number from 1 on."""
    return _whole(text, 1)


def from_zero(text: str) -> int:
    """A whole number from 0 on."""
    return _whole(text, 0)


def up_to_500(text: str) -> int:
    """So many in a call; 0: each has its own."""
    number = _whole(text, 0)
    if number > MOST_IN_A_CALL:
        raise argparse.ArgumentTypeError(f"{text}: at most {MOST_IN_A_CALL} go in a call")
    return number


def some_seconds(text: str) -> float:
    """A time that passes."""
    if (seconds := seconds_from_zero(text)) == 0:
        raise argparse.ArgumentTypeError(f"{text}: a time above 0 is wanted")
    return seconds


def seconds_from_zero(text: str) -> float:
    """A time, none among them."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: seconds from 0 on are wanted")
    return seconds


def _whole(text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text}: a whole number from {least} on is wanted")
    return int(text)
