"""Line numbers of the keys of a TOML text, for messages: tomllib doesn't keep them.

A scan by line, not a parser: it finds headers and keys at the start of a line. A key inside an
inline table gets the line of the nearest key around it.
"""

from __future__ import annotations

import re
from typing import Final

_NAME: Final = r"""(?:[\w-]+|"[^"]*"|'[^']*')"""
_DOTTED: Final = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_HEADER: Final = re.compile(rf"\s*\[+\s*({_DOTTED})\s*\]")
_KEY: Final = re.compile(rf"\s*({_DOTTED})\s*=")

Path = tuple[str, ...]


def lines_of(text: str) -> dict[Path, int]:
    """Line (from 1) of each key and table, by its full path; the first one where there are two."""
    found: dict[Path, int] = {}
    table: Path = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = full = _names(header[1])
        elif key := _KEY.match(line):
            full = table + _names(key[1])
        else:
            continue
        for depth in range(1, len(full) + 1):
            found.setdefault(full[:depth], number)
    return found


def nearest(found: dict[Path, int], path: Path) -> int | None:
    """Return the line of `path`, or of the table around it; None if neither was found."""
    depths = range(len(path), 0, -1)
    return next((found[path[:depth]] for depth in depths if path[:depth] in found), None)


def _names(dotted: str) -> Path:
    return tuple(name.strip("\"'") for name in re.findall(_NAME, dotted))
