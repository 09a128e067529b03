"""Rows by their names: exactly those that were asked for, where `-k` takes all that hold a word."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

MOST_SHOWN = 5


def refusal(wanted: Iterable[str], known: Collection[str], left: Collection[str]) -> str | None:
    """Why these names can't be run; None: they can. `known`: the names of all tests that there are.
    `left`: of those that other options have left.
    """
    for name in wanted:
        if name in left:
            continue
        if name in known:
            return f"--row {name!r}: -m or -k leaves it out; `make faults-all` has every row"
        near = _near(name, known)
        more = f", and {len(near) - MOST_SHOWN} more" if len(near) > MOST_SHOWN else ""
        hint = f"; near are {', '.join(map(repr, near[:MOST_SHOWN]))}{more}" if near else ""
        return f"--row {name!r}: there is no test of exactly this name{hint}"
    return None


def _near(name: str, known: Collection[str]) -> list[str]:
    """The cases of the same test; or else what is spelt alike."""
    function = name.partition("[")[0]
    cases = [each for each in known if each.partition("[")[0] == function]
    return sorted(cases) or difflib.get_close_matches(name, known, n=MOST_SHOWN)
