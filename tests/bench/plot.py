"""Draw a bar chart (SVG) from the JSON lines of a benchmark.

Each line becomes a group, named by its values of `--by`. Each number of `--value` becomes a bar in
the group. Lines without this value aren't drawn.

    late_ms by workers           groups are drawn one below the other; bars with the same name have
    10 workers   p50 ▏██ 26      the same color; each bar shows its number, so there is no axis;
                 p99 ▏█████ 62   names are at the left, and may be long
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from pathlib import Path
from typing import Any, Final

from bench.numbers import plain_parser

COLOURS: Final = (
    ("#4c78b0", "#5f8fcd"),
    ("#d9822b", "#d98f3f"),
    ("#4a9a5b", "#5aab6d"),
    ("#b94a48", "#d06a66"),
    ("#7d63ae", "#9279c8"),
    ("#8a6d4f", "#a98a68"),
)
"""Colors of names, on light and on dark background; reused if there are more names."""
MARKED: Final = 1
"""The color of highlighted bars if all bars have one name."""
BAR, BETWEEN, EDGE, WIDTH = 17, 12, 20, 440
"""Pixels of a bar with its gap, between groups, of the margin, and of the longest bar."""
LETTER: Final = 6.8
"""Width of a letter in pixels, on average at most."""

STYLE: Final = """\
  .paper { fill: #fbfbf9; stroke: #d8d8d2; }
  text { font: 12px system-ui, sans-serif; fill: #22221f; }
  .title { font-size: 14px; font-weight: 600; }
  .figure, .power { fill: #5f5f5a; font-size: 11px; }
  .grid { stroke: #dededa; stroke-dasharray: 2 3; }
  .span { stroke: #22221f; stroke-width: 1.5; }
"""
DARK: Final = """\
    .paper { fill: #1b1c1e; stroke: #3a3b3e; }
    text { fill: #e8e8e4; }
    .figure, .power { fill: #b0b0aa; }
    .grid { stroke: #3f4043; }
    .span { stroke: #f4f4f0; }
"""


@dataclass(frozen=True, slots=True)
class Group:
    """A group of bars: its name, and its named figures."""

    name: str
    figures: Mapping[str, float]
    between: tuple[float, float] | None = None
    """Least and greatest value of the figure."""


def groups(
    lines: Iterable[Mapping[str, Any]], value: str, by: Sequence[str], between: Sequence[str] = ()
) -> list[Group]:
    """Return a group for each line that has the value."""
    made = []
    for line in lines:
        found = _at(line, value)
        named = found if isinstance(found, Mapping) else {value: found}
        figures = {name: float(one) for name, one in named.items() if _is_figure(one)}
        if figures:
            span = [float(_at(line, one)) for one in between]
            name = " × ".join(_named(_at(line, one), one) for one in by)
            made.append(Group(name, figures, (span[0], span[1]) if span else None))
    return made


def bars(title: str, shown: Sequence[Group], *, log: bool = False, mark: str = "") -> str:
    """An SVG of them.

    Raises:
        ValueError: there is nothing to show.
    """
    if not shown:
        raise ValueError("no line has this value")
    names = [*dict.fromkeys(name for group in shown for name in group.figures)]
    figures = [one for group in shown for one in group.figures.values()]
    scale = Scale.over([*figures, *(one for group in shown for one in group.between or ())], log)
    left = EDGE + max(len(group.name) for group in shown) * LETTER + 8
    top = EDGE + 34 + (22 if len(names) > 1 else 0)
    parts, at = [], top
    for group in shown:
        tall = len(group.figures) * BAR
        parts.append(_text(left - 8, at + tall / 2 + 2, group.name, anchor="end"))
        for place, (name, figure) in enumerate(group.figures.items()):
            kind = MARKED if mark and group.name == mark else names.index(name) % len(COLOURS)
            parts += _bar(left, at + place * BAR, figure, group.between, scale, kind)
        at += tall + BETWEEN
    bottom = at - BETWEEN + 4
    grid = [*_grid(left, top - 6, bottom, scale)]
    wide = max(_most_wide(shown, scale) + left, EDGE + len(title) * LETTER * 1.25) + EDGE
    wide = max(wide, EDGE * 2 + sum(34 + len(name) * LETTER for name in names))
    tall = bottom + (18 if grid else 0) + EDGE - 8
    return "\n".join(
        (*_head(title, ceil(wide), ceil(tall)), *_legend(names), *grid, *parts, "</svg>\n")
    )


@dataclass(frozen=True, slots=True)
class Scale:
    """Length of bars: proportional, or by the power of ten above `low`."""

    most: float
    low: int | None = None

    @classmethod
    def over(cls, figures: Iterable[float], log: bool) -> Scale:
        """Return a scale on which the greatest figure has the full length."""
        some = [one for one in figures if one > 0] or [1.0]
        if not log:
            return cls(max(some))
        return cls(max(some), ceil(log10(min(some))) - 1)

    def pixels(self, figure: float) -> float:
        """Return the length of a figure in pixels; 0 for a figure of 0 or less."""
        if figure <= 0:
            return 0.0
        if self.low is None:
            return WIDTH * figure / self.most
        return WIDTH * (log10(figure) - self.low) / (log10(self.most) - self.low)

    def powers(self) -> Iterator[int]:
        """Return the powers of ten that get a line; none if bars are proportional."""
        if self.low is not None:
            yield from (10**power for power in range(max(self.low, 0), floor(log10(self.most)) + 1))


def main(arguments: Sequence[str]) -> int:
    """Read the lines, draw the picture, and write it."""
    asked = plain_parser("bench.plot", __doc__)
    asked.add_argument(
        "lines", type=Path, metavar="FILE.jsonl", help="file with JSON lines of a benchmark"
    )
    asked.add_argument("picture", type=Path, metavar="OUT.svg", help="SVG file to write")
    asked.add_argument(
        "--value",
        default="late_ms",
        help="field with the number or numbers to draw; a dot selects a nested field",
    )
    asked.add_argument("--by", nargs="+", default=["bench"], help="fields that name a group")
    asked.add_argument(
        "--between",
        nargs=2,
        default=(),
        metavar=("LEAST", "MOST"),
        help="two fields: draw the range between them over the end of the bar",
    )
    asked.add_argument(
        "--only", default="", metavar="NAME=VALUE", help="draw only the lines with this value"
    )
    asked.add_argument(
        "--mark", default="", metavar="GROUP", help="highlight the groups with this name"
    )
    asked.add_argument(
        "--title", default="", help="title of the picture; if empty, built from --value and --by"
    )
    asked.add_argument("--sort", action="store_true", help="draw the greatest value first")
    asked.add_argument("--log", action="store_true", help="use a logarithmic scale")
    options = asked.parse_args(arguments)
    try:
        drawn = _drawn(options)
        options.picture.write_text(drawn, encoding="utf-8")
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except (ValueError, TypeError) as error:
        print(f"{options.lines}: {error}", file=sys.stderr)
        return 1
    return 0


def _drawn(options: argparse.Namespace) -> str:
    key, _, wanted = options.only.partition("=")
    lines = [line for line in read(options.lines) if not key or str(_at(line, key)) == wanted]
    shown = groups(lines, options.value, options.by, options.between)
    if options.sort:
        shown = greatest_first(shown)
    title = options.title or f"{options.value} by {', '.join(options.by)}"
    try:
        return bars(title, shown, log=options.log, mark=options.mark)
    except ValueError as error:
        raise ValueError(f"{error}: --value {options.value}") from error


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file. Raises ValueError or TypeError for a line of another program."""
    found: list[dict[str, Any]] = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            line = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} isn't JSON: {error}") from error
        if not isinstance(line, dict):
            raise TypeError(f"line {number} isn't an object")
        found.append(line)
    return found


def greatest_first(shown: Iterable[Group]) -> list[Group]:
    """Sort the groups by their greatest figure."""
    return sorted(shown, key=lambda group: max(group.figures.values()), reverse=True)


def _at(line: Mapping[str, Any], path: str) -> Any:
    found: Any = line
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _is_figure(one: object) -> bool:
    return isinstance(one, int | float) and not isinstance(one, bool)


def _named(value: object, by: str) -> str:
    """Return a name of a group: a number is followed by the name of its field."""
    return f"{value:,} {by}" if _is_figure(value) else str(value)


def _said(figure: float) -> str:
    return f"{figure:,.3g}" if figure < 100 else f"{figure:,.0f}"


def _most_wide(shown: Iterable[Group], scale: Scale) -> float:
    """Return the width of the longest bar with its figure, in pixels."""
    return max(
        scale.pixels(max(one, *(group.between or (one,)))) + 8 + len(_said(one)) * LETTER
        for group in shown
        for one in group.figures.values()
    )


def _head(title: str, wide: int, tall: int) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tall}"'
        f' width="{wide}" height="{tall}" role="img" aria-label="{escape(title)}">'
    )
    light = "".join(f"  .k{at} {{ fill: {each}; }}\n" for at, (each, _) in enumerate(COLOURS))
    dark = "".join(f"    .k{at} {{ fill: {each}; }}\n" for at, (_, each) in enumerate(COLOURS))
    preferred = "  @media (prefers-color-scheme: dark) {\n"
    yield f"<style>\n{STYLE}{light}{preferred}{DARK}{dark}  }}\n</style>"
    yield f'<rect class="paper" x="0.5" y="0.5" width="{wide - 1}" height="{tall - 1}"/>'
    yield f'<text class="title" x="{EDGE}" y="{EDGE + 12}">{escape(title)}</text>'


def _legend(names: Sequence[str]) -> Iterator[str]:
    at = float(EDGE)
    for place, name in enumerate(names if len(names) > 1 else ()):
        kind = place % len(COLOURS)
        yield f'<rect class="k{kind}" x="{at:.0f}" y="{EDGE + 26}" width="11" height="11"/>'
        yield _text(at + 16, EDGE + 36, name)
        at += 34 + len(name) * LETTER


def _grid(left: float, top: float, bottom: float, scale: Scale) -> Iterator[str]:
    for power in scale.powers():
        at = left + scale.pixels(power)
        yield f'<path class="grid" d="M{at:.1f} {top:.1f}V{bottom:.1f}"/>'
        yield _text(at, bottom + 14, f"{power:,}", anchor="middle", kind="power")


def _bar(
    left: float,
    top: float,
    figure: float,
    between: tuple[float, float] | None,
    scale: Scale,
    kind: int,
) -> Iterator[str]:
    long, end = scale.pixels(figure), scale.pixels(figure)
    yield (
        f'<rect class="k{kind} bar" x="{left:.1f}" y="{top:.1f}" width="{long:.1f}"'
        f' height="{BAR - 3}"/>'
    )
    if between:
        least, end = map(scale.pixels, between)
        middle = top + (BAR - 3) / 2
        yield (
            f'<path class="span" d="M{left + least:.1f} {middle:.1f}H{left + end:.1f}'
            f'M{left + least:.1f} {middle - 3:.1f}v6M{left + end:.1f} {middle - 3:.1f}v6"/>'
        )
    yield _text(left + max(long, end) + 5, top + BAR - 6.5, _said(figure), kind="figure")


def _text(x: float, y: float, words: str, *, anchor: str = "start", kind: str = "") -> str:
    styled = f' class="{kind}"' if kind else ""
    return f'<text{styled} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
