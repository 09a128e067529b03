"""Rounds put together: medians with their extremes, and ratios of the same round alone.

A shared machine is another one from minute to minute; so schedd's rate is divided by a peer's of
the same round, never by a mean over all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median


def spread(values: Sequence[float], digits: int = 0) -> dict[str, float] | None:
    """Median, least and greatest; None when there is nothing."""
    if not values:
        return None
    figures = {"median": median(values), "min": min(values), "max": max(values)}
    return {name: round(value, digits or None) for name, value in figures.items()}


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """How many times as fast we are; None when one of both came to no end."""
    return round(ours / theirs, 3) if ours and theirs else None


def ratios(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """Of the rounds, by number, that both have brought to an end."""
    both = sorted(ours.keys() & theirs.keys())
    return [round(ours[number] / theirs[number], 3) for number in both]
