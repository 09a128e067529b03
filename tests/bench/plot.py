"""`python -m bench.plot FILE.jsonl OUT.svg --value late_ms --by workers` (from tests/): bars.

Lines of JSON in, a picture out: for each line a group, named by its values of `--by`, and in it a
bar for each number of `--value` (a figure, or several by name; a dot goes deeper). Lines that have
no such value are left out. `--log` for what spans powers of ten: its bars begin at the power below
the least.

    late_ms by workers
    p50 ▏███ 26         groups stand side by side, bars of one name have one colour, and each bar
    p99 ▏██████ 62      says its figure: a reader needs no axis
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10
from pathlib import Path
from typing import Any, Final

COLOURS: Final = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860")
BAR, GAP, HEIGHT, HEAD, FOOT = 34, 26, 220, 64, 34
"""Of a bar, between groups, of the tallest bar, above them, below them; in pixels."""
LETTER: Final = 7
"""Pixels that a letter takes, more or less."""


@dataclass(frozen=True, slots=True)
class Group:
    """Bars that stand together: a name, and figures by theirs."""

    name: str
    figures: Mapping[str, float]


def groups(lines: Iterable[Mapping[str, Any]], value: str, by: Sequence[str]) -> list[Group]:
    """One for each line that has such a value."""
    made = []
    for line in lines:
        found = _at(line, value)
        named = found if isinstance(found, Mapping) else {value: found}
        figures = {name: float(one) for name, one in named.items() if _is_figure(one)}
        if figures:
            name = " × ".join(f"{_at(line, one)} {one}" for one in by)
            made.append(Group(name, figures))
    return made


def bars(title: str, shown: Sequence[Group], *, log: bool = False) -> str:
    """An SVG of them.

    Raises:
        ValueError: there is nothing to show.
    """
    if not shown:
        raise ValueError("no line has such a value")
    names = [*dict.fromkeys(name for group in shown for name in group.figures)]
    heights = _heights([one for group in shown for one in group.figures.values()], log)
    parts, left = [], GAP
    for group in shown:
        own = len(group.figures) * BAR
        wide = max(own, len(group.name) * LETTER)
        for place, (name, figure) in enumerate(group.figures.items()):
            at = left + (wide - own) // 2 + place * BAR
            parts += _bar(at, heights[figure], figure, COLOURS[names.index(name) % len(COLOURS)])
        parts.append(_text(left + wide / 2, HEAD + HEIGHT + 20, group.name))
        left += wide + GAP
    legend = GAP
    for name, colour in zip(names, COLOURS * (len(names) // len(COLOURS) + 1), strict=False):
        parts.append(f'<rect x="{legend}" y="30" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(legend + 14, 39, name, anchor="start"))
        legend += 24 + len(name) * LETTER
    width, height = max(left, legend, GAP + len(title) * 9), HEAD + HEIGHT + FOOT
    return "\n".join(
        (
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
                f' width="{width}" height="{height}" font-family="sans-serif" font-size="11">'
            ),
            f'<rect width="{width}" height="{height}" fill="white"/>',
            f'<text x="{GAP}" y="20" font-size="14">{escape(title)}</text>',
            *parts,
            "</svg>\n",
        )
    )


def main(arguments: Sequence[str]) -> int:
    """Read, draw, write."""
    asked = argparse.ArgumentParser(prog="python -m bench.plot", description=__doc__)
    asked.add_argument("lines", type=Path, metavar="FILE.jsonl")
    asked.add_argument("picture", type=Path, metavar="OUT.svg")
    asked.add_argument("--value", default="late_ms")
    asked.add_argument("--by", nargs="+", default=["bench"])
    asked.add_argument("--title", default="")
    asked.add_argument("--log", action="store_true")
    options = asked.parse_args(arguments)
    lines = [json.loads(line) for line in options.lines.read_text(encoding="utf-8").splitlines()]
    shown = groups(lines, options.value, options.by)
    title = options.title or f"{options.value} by {', '.join(options.by)}"
    try:
        options.picture.write_text(bars(title, shown, log=options.log), encoding="utf-8")
    except ValueError as error:
        print(f"{options.lines}: {error}: {options.value}", file=sys.stderr)
        return 1
    return 0


def _at(line: Mapping[str, Any], path: str) -> Any:
    found: Any = line
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _is_figure(one: object) -> bool:
    return isinstance(one, int | float) and not isinstance(one, bool)


def _heights(figures: Iterable[float], log: bool) -> dict[float, float]:
    """Of each figure's bar, in pixels; nothing is less than none."""
    some = {one: max(one, 0.0) for one in figures}
    most = max(some.values())
    least = min((one for one in some.values() if one > 0), default=1.0)
    if not log:
        return {one: HEIGHT * size / (most or 1.0) for one, size in some.items()}
    low = floor(log10(least)) - (log10(least) == floor(log10(least)))
    span = (log10(most) - low) if most > 0 else 1.0
    return {
        one: HEIGHT * (log10(size) - low) / span if size > 0 else 0.0 for one, size in some.items()
    }


def _bar(left: int, height: float, figure: float, colour: str) -> list[str]:
    top = HEAD + HEIGHT - height
    return [
        f'<rect x="{left}" y="{top:.1f}" width="{BAR - 3}" height="{height:.1f}" fill="{colour}"/>',
        _text(
            left + (BAR - 3) / 2, top - 3, f"{figure:,.3g}" if figure < 100 else f"{figure:,.0f}"
        ),
    ]


def _text(x: float, y: float, words: str, *, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
