"""JSON as its standard has it: finite numbers, and no deeper than any reader can follow.

Python's reader also takes `NaN` and `1e400`, which no other does, and how deep it goes hangs on the
stack it stands on. What passes here can be read back by everybody.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

MOST_NESTED: Final = 100
"""Lists and objects within each other, in a payload."""

Pairs = list[tuple[str, Any]]


class TooDeep(ValueError):
    """JSON, but nested deeper than `MOST_NESTED`."""

    def __init__(self) -> None:
        super().__init__(f"is nested too deeply: at most {MOST_NESTED} levels are allowed")


def loads(
    text: str | bytes,
    *,
    levels: int = MOST_NESTED,
    pairs: Callable[[Pairs], Any] | None = None,
) -> Any:
    """The value that a text stands for; `pairs` makes each object, as in `json.loads`.

    Raises:
        TooDeep: it may be JSON, and is nested too deeply.
        ValueError: it is no JSON.
    """
    try:
        value = json.loads(
            text, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=pairs
        )
    except RecursionError:
        raise TooDeep from None
    check_depth(value, levels)
    return value


def check_depth(value: Any, levels: int = MOST_NESTED) -> None:
    """Raise TooDeep for lists and objects that are nested deeper than this."""
    level = [value]
    for _ in range(levels):
        level = [inner for one in level for inner in _within(one)]
        if not level:
            return
    raise TooDeep


def _within(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is larger than any reader can hold")
    return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
