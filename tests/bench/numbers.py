"""Command lines of the benchmarks: the parser, and numbers that are checked before the start."""

from __future__ import annotations

import argparse
import math
from typing import Final

MOST_IN_A_CALL: Final = 500


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keep the lines of a module's docstring, and print the default of each option."""


def plain_parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser without options, for `python -m MODULE` in the folder tests."""
    return argparse.ArgumentParser(
        prog=f"python -m {module}", description=description, formatter_class=_Help
    )


def positive(text: str) -> int:
    """Return a whole number, 1 or more."""
    return _whole(text, 1)


def from_zero(text: str) -> int:
    """Return a whole number, 0 or more."""
    return _whole(text, 0)


def up_to_500(text: str) -> int:
    """Return the number of requests in a call; 0 means a call for each request."""
    number = _whole(text, 0)
    if number > MOST_IN_A_CALL:
        raise argparse.ArgumentTypeError(
            f"{text} is too large: a call has at most {MOST_IN_A_CALL} requests"
        )
    return number


def some_seconds(text: str) -> float:
    """Return seconds, more than 0."""
    if (seconds := seconds_from_zero(text)) == 0:
        raise argparse.ArgumentTypeError(f"{text} isn't valid: give more than 0 seconds")
    return seconds


def seconds_from_zero(text: str) -> float:
    """Return seconds, 0 or more."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} isn't valid: give seconds, 0 or more")
    return seconds


def _whole(text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"{text} isn't valid: give a whole number, {least} or more"
        )
    return int(text)
