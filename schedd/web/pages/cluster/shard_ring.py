"""The shards as a ring: each a part of a circle, in the colour of its owner. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import cos, pi, sin
from typing import Final

from schedd.core.ids import SHARDS
from schedproto.v1 import cluster_service_pb2 as cluster_pb

SIZE: Final = 100.0
"""The picture is as wide and as high."""
INNER: Final = 36.0
OUTER: Final = 48.0
FILLED: Final = 0.86
"""The part of a shard's angle that is painted; the rest is the gap to the next."""

NOBODY: Final = -1


def ring(
    shards: Iterable[cluster_pb.Shard], colours: Mapping[str, int]
) -> tuple[tuple[int, str], ...]:
    """Colour of an owner (NOBODY: none) → an SVG path over its shards, the first at twelve."""
    paths: dict[int, list[str]] = {}
    for shard in shards:
        paths.setdefault(colours.get(shard.owner, NOBODY), []).append(_wedge(shard.shard))
    return tuple((colour, "".join(wedges)) for colour, wedges in sorted(paths.items()))


def _wedge(number: int) -> str:
    begin = 2 * pi * number / SHARDS
    end = 2 * pi * (number + FILLED) / SHARDS
    return (
        f"M{_at(begin, OUTER)}A{OUTER:g} {OUTER:g} 0 0 1 {_at(end, OUTER)}"
        f"L{_at(end, INNER)}A{INNER:g} {INNER:g} 0 0 0 {_at(begin, INNER)}z"
    )


def _at(angle: float, radius: float) -> str:
    return f"{SIZE / 2 + radius * sin(angle):.2f} {SIZE / 2 - radius * cos(angle):.2f}"
