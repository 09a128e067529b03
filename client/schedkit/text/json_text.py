"""JSON by its standard: finite numbers, whole characters, limited depth.

Python's reader also accepts `NaN` and `1e400`, unpaired surrogates, which can't be encoded, and a
depth that varies with the stack. Any reader can read a text that is valid here.
"""

import json
import math
import re
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any, Final, NoReturn

MOST_NESTED: Final = 100
"""Maximum nested levels of lists and objects in a payload."""

READ_NESTED: Final = 300
"""Nested levels of a stored result that readers accept. Workers accept results of at most
MOST_NESTED; earlier versions accepted more.
"""

MOST_VALUES: Final = 128 * 1024
"""Maximum values in a text that is longer than a payload: each takes time and memory to read."""
SHORT: Final = 256 * 1024
"""Bytes of a text whose values aren't counted."""

_TEXT: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string without an end matches up to the end, and no byte is scanned twice: otherwise each
escaped quote in it would start a new scan, for hours.
"""
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
"""Matches half of a surrogate pair, escaped or literal."""

_STEPS: Final = bytes.maketrans(b"[{]}", b"\2\2\0\0")
"""The step in depth at each bracket, plus one."""
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[{]}"))
_PART: Final = 16 * 1024

Pairs = list[tuple[str, Any]]


class TooMany(ValueError):
    """JSON of more values than `MOST_VALUES`."""

    def __init__(self) -> None:
        super().__init__(f"has too many values: at most {MOST_VALUES:,} are allowed")


class TooDeep(ValueError):
    """JSON, but nested deeper than `MOST_NESTED`."""

    def __init__(self) -> None:
        super().__init__(f"is nested too deeply: at most {MOST_NESTED} levels are allowed")


def loads(
    text: str | bytes,
    *,
    levels: int = MOST_NESTED,
    pairs: Callable[[Pairs], Any] | None = None,
    any_width: bool = False,
) -> Any:
    """Return the value of a text. `pairs` makes each object, as in `json.loads`. `any_width` allows
    more than MOST_VALUES values.

    Raises:
        TooDeep: the text may be JSON, but is nested too deeply.
        TooMany: the text may be JSON, but has too many values.
        ValueError: the text isn't JSON.
    """
    if not any_width:
        check_width(text)
    try:
        value = json.loads(
            text, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=pairs
        )
    except RecursionError:
        raise TooDeep from None
    check_depth(value, levels)
    if _SURROGATE.search(text if isinstance(text, str) else text.decode()):
        _check_text(value)
    return value


def check_depth(value: Any, levels: int = MOST_NESTED) -> None:
    """Raise TooDeep for lists and objects that are nested deeper than this."""
    level = [value]
    for _ in range(levels):
        level = [inner for one in level for inner in _within(one)]
        if not level:
            return
    raise TooDeep


def check_levels(text: bytes) -> None:
    """Raise TooDeep for JSON text that is nested deeper than MOST_NESTED, without reading it."""
    if text.count(b"[") + text.count(b"{") <= MOST_NESTED:
        return
    signs = _TEXT.sub(b"", text).translate(_STEPS, _NO_BRACKETS)
    depth = 0
    for start in range(0, len(signs), _PART):  # other threads run between two parts
        depths = [*accumulate((sign - 1 for sign in signs[start : start + _PART]), initial=depth)]
        if max(depths) > MOST_NESTED:
            raise TooDeep
        depth = depths[-1]


def check_width(text: str | bytes) -> None:
    """Raise TooMany for a text with more than MOST_VALUES values, before any of them is created."""
    if len(text) <= SHORT:
        return
    content = text.encode(errors="replace") if isinstance(text, str) else text
    if _signs(content) > MOST_VALUES and _signs(_TEXT.sub(b"", content)) > MOST_VALUES:
        raise TooMany


def _signs(content: bytes) -> int:
    return sum(content.count(sign) for sign in (b",", b"[", b"{"))


def _check_text(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        raise ValueError(
            "a string contains an unpaired surrogate, which isn't valid Unicode: correct the string"
        ) from None


def _within(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(
            f"the number {text[:40]} is too large for a 64-bit float: write it as a string"
        )
    return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"the number {name} isn't valid JSON: write a finite number, or null")
